"""Lookup of objects that a recipe names: built-in ones by name, a user's own by dotted path.

```yaml
reward_funcs: [outcome, my_rewards.short, rewards/mine.py:brief]  # or module:name
advantage: my_advantages.centred
```
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from trl_dbbench.errors import ConfigError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to a misspelled one; `None` if none is similar."""
    folded = {each.casefold(): each for each in known}
    found = get_close_matches(str(name).casefold(), folded, n=1)
    return folded[found[0]] if found else None


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, listing the allowed names and the nearest one."""
    known = list(known)
    near = nearest(name, known)
    return f"unknown {kind} {name!r}; allowed: {', '.join(known)}" + (f"; nearest: {near}" if near else "")


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first `most` names, and how many more there are, as text."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise ConfigError, naming the nearest allowed value, for a setting whose value is not allowed."""
    allowed = list(allowed)
    if value not in allowed:
        raise ConfigError(f"{unknown(name, str(value), map(str, allowed))}.")


def look_up(kind: str, name: str, ours: Mapping[str, T]) -> T:
    """Return the object with this name: the value in `ours`, or an imported callable.

    Args:
        kind: the kind of object, for error messages: `"reward function"`.
        name: a key of `ours`; the dotted path of an object in a module that is installed or in the working
            directory; or a file and the object's name, separated by a colon.

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
    except Exception as error:  # importing a user's module can raise anything
        raise ConfigError(
            f"the {kind} {name!r} cannot be imported: {type(error).__name__}: {error}. Write "
            "module.name, where the module is in the working directory or installed, or file.py:name."
        ) from error
    if not callable(found):
        raise ConfigError(f"the {kind} {name!r} is not callable but {type(found).__name__}.")
    return found


def place_of(function: object) -> str | None:
    """Return the name under which `look_up` finds a user's function again; `None` if it has no name."""
    name, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if name is None:
        return None
    return f"{module}{':' if str(module).endswith('.py') else '.'}{name}"


def _module(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _module_of_file(path: str) -> ModuleType:
    """Import a file once, with its absolute path as the module's name; it can import modules beside it."""
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
    # to pickle a function for another process, Python also imports the name's part before its first dot
    sys.modules.setdefault(name.partition(".")[0], module)
    return module
