"""Things that users choose by name in a YAML: one of ours, or one of their own by its dotted path.

```yaml
reward_funcs: [outcome, my_rewards.short]
advantage: my_advantages.centred
```
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from trl_dbbench.errors import ConfigError

T = TypeVar("T")


def look_up(kind: str, name: str, ours: Mapping[str, T]) -> T:
    """What `name` stands for.

    Args:
        kind: what is looked up, for the error text: `"reward function"`.
        name: a key of `ours`, or the dotted path of an object in a module that Python finds from the working
            directory or the environment.
        ours: the library's own.

    Returns:
        The value in `ours`, or the imported object, which is callable.

    Raises:
        ConfigError: if the name is unknown, the module cannot be imported, or the object cannot be called.
    """
    if name in ours:
        return ours[name]
    module_name, dot, attribute = name.rpartition(".")
    if not dot:
        raise ConfigError(
            f"unknown {kind} {name!r}; allowed: {', '.join(ours)}, or the dotted path of your own, such as "
            "my_module.my_name."
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # whatever the user's module does when it is imported
        raise ConfigError(
            f"the {kind} {name!r} cannot be imported: {type(error).__name__}: {error}. A dotted path is "
            "module.name, and the module must be in the working directory or installed."
        ) from error
    if not callable(found):
        raise ConfigError(f"the {kind} {name!r} is not callable but {type(found).__name__}.")
    return found
