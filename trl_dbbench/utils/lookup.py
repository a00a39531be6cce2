"""Things that users choose by name in a YAML: one of ours, or one of their own by its place.

```yaml
reward_funcs: [outcome, my_rewards.short, rewards/mine.py:brief]  # or module:name
advantage: my_advantages.centred
```
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from trl_dbbench.errors import ConfigError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of these names that a misspelled one most likely stands for, if any is like it."""
    folded = {each.casefold(): each for each in known}
    found = get_close_matches(str(name).casefold(), folded, n=1)
    return folded[found[0]] if found else None


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that is none of these, and which of them is nearest, if one is."""
    known = list(known)
    near = nearest(name, known)
    return f"unknown {kind} {name!r}; allowed: {', '.join(known)}" + (f"; nearest: {near}" if near else "")


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise ConfigError for a setting whose value is none of those that it may have, naming the nearest."""
    allowed = list(allowed)
    if value not in allowed:
        raise ConfigError(f"{unknown(name, str(value), map(str, allowed))}.")


def check_share(name: str, value: float) -> None:
    """Raise ConfigError for a setting that is no share of something."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a share from 0 to 1, is {value}.")


def look_up(kind: str, name: str, ours: Mapping[str, T]) -> T:
    """What `name` stands for.

    Args:
        kind: what is looked up, for the error text: `"reward function"`.
        name: a key of `ours`; or the dotted path of an object in a module that Python finds from the working
            directory or the environment; or a file with the object's name after a colon.
        ours: the library's own.

    Returns:
        The value in `ours`, or the imported object, which is callable.

    Raises:
        ConfigError: if the name is unknown, the module cannot be imported, or the object cannot be called.
    """
    if name in ours:
        return ours[name]
    place, sign, attribute = name.rpartition(":") if ":" in name else name.rpartition(".")
    if not sign:
        near = nearest(name, ours)
        raise ConfigError(
            f"unknown {kind} {name!r}; allowed: {', '.join(ours)}, or the dotted path of your own, such as "
            f"my_module.my_name or my_file.py:my_name.{f' Nearest: {near}.' if near else ''}"
        )
    try:
        module = _module_of_file(place) if place.endswith(".py") else _module(place)
        found = getattr(module, attribute)
    except Exception as error:  # whatever the user's module does when it is imported
        raise ConfigError(
            f"the {kind} {name!r} cannot be imported: {type(error).__name__}: {error}. Write "
            "module.name, where the module is in the working directory or installed, or file.py:name."
        ) from error
    if not callable(found):
        raise ConfigError(f"the {kind} {name!r} is not callable but {type(found).__name__}.")
    return found


def place_of(function: object) -> str | None:
    """The name by which `look_up` finds a user's own function again; `None` if it has none."""
    name, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if name is None:
        return None
    return f"{module}{':' if str(module).endswith('.py') else '.'}{name}"


def _module(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _module_of_file(path: str) -> ModuleType:
    """The module that a file holds, made once. It goes by the file's whole path, and finds its neighbours."""
    file = Path(path).expanduser().resolve()
    name = str(file)
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise FileNotFoundError(f"there is no file '{path}'")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # as its name ends in .py
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
