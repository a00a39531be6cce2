"""Writing a file so that no reader ever sees half of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from trl_dbbench.errors import ConfigError


@contextmanager
def write_atomically(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a file that takes the place of `path` when the block ends well, and is removed when it fails.

    Args:
        path: an older file there is replaced.
        mode: `"w"` for UTF-8 text, `"wb"` for bytes. Half of a surrogate pair, which UTF-8 cannot hold, is
            written as an escape.

    Raises:
        ConfigError: if `path` is a folder, its folder is not there, or it cannot be written.
    """
    path = Path(path)
    check_writable(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "backslashreplace"}
    try:
        try:
            file = unfinished.open(mode, **text)
        except OSError as error:
            raise ConfigError(f"'{path}' cannot be written: {error}.") from None
        with file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Raises ConfigError for a path that cannot be a file, before hours of work end there."""
    path = Path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"'{path}' cannot be written: it must be a file in a folder that is there.")
