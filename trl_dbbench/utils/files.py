"""Atomic writes, checks of paths, clear errors for a full disk, and folders locked for one process."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from trl_dbbench.errors import ConfigError, StorageError
from trl_dbbench.utils.lookup import nearest

logger = logging.getLogger(__name__)

LOCK_FILE = "_lock"  # names with a leading underscore are not uploaded to the hub

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def write_atomically(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that replaces `path` if the block succeeds, and is removed if it fails.

    For a symbolic link, the target is replaced; a pipe or a device is written to directly.

    Args:
        mode: `"w"` for UTF-8 text, `"wb"` for bytes. A lone surrogate is written as an escape.

    Raises:
        ConfigError: if `path` is a folder, its folder does not exist, or it cannot be written.
        StorageError: if the disk is full.
    """
    path = Path(path)
    check_writable(path)
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "backslashreplace"}
    if is_stream(path):
        sys.stdout.flush()  # it may be the same file
        number = _descriptor(path)
        with open(path if number is None else os.dup(number), mode, **text) as file:  # noqa: PTH123
            yield file
        return
    target = path.resolve()
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with telling_of_no_space(path, "Free some, or name another place."):
            try:
                file = unfinished.open(mode, **text)
            except OSError as error:
                raise ConfigError(f"'{path}' cannot be written: {error}.") from None
            with file:
                yield file
            unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as JSON with `write_atomically`."""
    with write_atomically(path) as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def is_stream(path: str | Path) -> bool:
    """Return whether a path is a pipe, a device or an open file, which cannot be replaced by another file."""
    path = Path(path)
    return path.exists() and (not path.is_file() or str(path.parent) in ("/dev", "/dev/fd"))


def _descriptor(path: Path) -> int | None:
    """Return the descriptor that a path in `/dev` refers to; `None` for other paths.

    Opening the path itself would truncate the file behind the descriptor.
    """
    named = {"/dev/stdout": 1, "/dev/stderr": 2}
    if path.parent == Path("/dev/fd") and path.name.isdigit():
        return int(path.name)
    return named.get(str(path))


def check_writable(path: str | Path) -> None:
    """Raise ConfigError for a path that cannot be written as a file, before hours of work are lost."""
    path = Path(path)
    try:
        fits = not path.is_dir() and path.absolute().parent.is_dir()
    except PermissionError:
        raise ConfigError(f"'{path}' cannot be written: its folder may not be entered.") from None
    if not fits:
        raise ConfigError(f"'{path}' cannot be written: it must be a file in a folder that is there.")
    folder = path.resolve().parent
    if not is_stream(path) and not os.access(folder, os.W_OK):
        raise ConfigError(f"'{path}' cannot be written: '{folder}' may not be written to.")


def check_folder(path: str | Path, setting: str) -> None:
    """Raise ConfigError for a path that cannot be a folder to write to, before hours of work are lost."""
    whole = Path(path).absolute()
    there = next(each for each in (whole, *whole.parents) if os.access(each, os.F_OK))
    if not (there.is_dir() and os.access(there, os.W_OK)):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise ConfigError(f"{setting}: '{path}' cannot be the folder: '{there}' {why}. Name another one.")


def check_outputs(outputs: Iterable[str | Path | None], *sources: str | Path | None) -> None:
    """Raise ConfigError for outputs that would replace each other or a source."""
    paths = [Path(output) for output in outputs if output is not None]
    read = [*_files_among(sources)]
    for place, path in enumerate(paths):
        check_writable(path)
        if path.resolve() in [other.resolve() for other in paths[:place]]:
            raise ConfigError(f"'{path}' would be written twice; name two files.")
        if path.exists() and any(map(path.samefile, read)):
            raise ConfigError(f"'{path}' is the file to read; write to another.")


def _files_among(sources: Iterable[str | Path | None]) -> Iterator[Path]:
    """Yield the sources that exist; for a folder, the Parquet and CSV files in it."""
    for source in (Path(each) for each in sources if each is not None):
        if source.is_dir():
            yield from (each for suffix in ("parquet", "csv") for each in source.glob(f"*.{suffix}"))
        elif source.exists():
            yield source


# --- full disks -----------------------------------------------------------------------------------


def is_full(error: BaseException | None, folder: Path) -> bool:
    """Return whether an error was caused by a full disk.

    Libraries that write with native code raise their own errors; most contain the system's message. PyTorch's
    do not, so a RuntimeError counts if the disk of `folder` is full.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return True
        if any(os.strerror(number) in str(error) for number in NO_SPACE):
            return True
        if type(error) is RuntimeError and shutil.disk_usage(folder).free < 2**20:
            return True
        error = error.__cause__
    return False


@contextmanager
def telling_of_no_space(path: Path, remedy: str) -> Iterator[None]:
    """Raise StorageError with a remedy if the block, which writes `path`, fails because the disk is full."""
    folder = path.resolve().parent
    try:
        yield
    except Exception as error:
        if not is_full(error, folder):
            raise
        raise StorageError(f"no space is left for {path}: {free_space(folder)}. {remedy}") from error


def free_space(*folders: str | Path) -> str:
    """Describe free space for a message: `'runs/first' has 1.5 MB free, '/tmp' has 2,000.0 MB free`."""
    return ", ".join(f"'{each}' has {shutil.disk_usage(each).free / 1e6:,.1f} MB free" for each in folders)


def write_through(path: Path) -> None:
    """Flush a file, or a folder's list of files, to disk, so that it survives a crash.

    Raises:
        OSError: if it cannot be written; a full disk may become apparent only here.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError:
        if not path.is_dir():  # some file systems cannot flush folders
            raise
    finally:
        os.close(number)


def visible(paths: Iterable[Path]) -> list[Path]:
    """Return the paths, sorted, without hidden files: macOS puts `._a.csv` beside `a.csv`."""
    return sorted(path for path in paths if not path.name.startswith("."))


def nearest_path(path: str | Path) -> Path | None:
    """Return the existing path whose name is most similar to that of a missing one; `None` if there is none.

    A missing folder in the path is corrected first.
    """
    path = Path(path)
    if not path.name or path.exists():
        return None
    folder = path.parent if path.parent.is_dir() else nearest_path(path.parent)
    if folder is None or not folder.is_dir():
        return None
    if (folder / path.name).exists():
        return folder / path.name
    # compare stems, as similar files mostly share their suffix
    there = {each.stem: each for each in visible(folder.iterdir())}
    return there.get(nearest(path.stem, there) or "")


def check_not_misspelled(name: str) -> None:
    """Raise ConfigError, naming the nearest path, for a missing path before the hub is asked for a model.

    A hub id is `model` or `owner/model`. Any other name (`./a`, `a/b/c`) is a path, and so is one whose first
    part is a folder here, unless the hub's cache holds it.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    path = Path(name).expanduser()
    if path.exists() or not name:
        return
    parts, near = name.split("/"), nearest_path(path)
    if len(parts) <= 2 and not name.startswith((".", "/", "~")):
        cached = Path(HF_HUB_CACHE) / f"models--{'--'.join(parts)}"
        if cached.is_dir() or near is None or not (len(parts) == 2 and Path(parts[0]).is_dir()):
            return
    raise ConfigError(
        f"{name} is not a folder" + (f"; nearest: {near}." if near else ", so there is no model in it.")
    )


def found_from_everywhere(name: str | Path) -> str:
    """Return the absolute path of a folder or file, or a hub id unchanged."""
    return str(Path(name).resolve()) if Path(name).exists() else str(name)


# --- line-based files -----------------------------------------------------------------------------


def whole_lines(path: Path, *, cut: bool = False) -> list[bytes]:
    """Read a file's complete lines, without one that a kill cut short; none if the file does not exist.

    Lines are not decoded: a crash of the machine or a bad disk can leave arbitrary bytes in them.

    Args:
        cut: also remove an incomplete last line from the file, so that more can be appended.
    """
    if not path.exists():
        return []
    whole, newline, _ = path.read_bytes().rpartition(b"\n")
    if cut:
        os.truncate(path, len(whole + newline))
    return whole.split(b"\n") if newline else []


# --- locks ----------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder during the block; raise ConfigError if another run holds the lock.

    The operating system releases the lock when the process ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a+") as file:
        if not locks(file, folder):
            file.seek(0)
            who = file.read().strip() or "its process is not known"
            raise ConfigError(
                f"another run trains in '{folder}': {who}. Give this one an output_dir of its own, or start "
                "it when that one has ended."
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def locks(file: IO[Any], path: Path) -> bool:
    """Lock an open file until it is closed; return False if another process holds the lock.

    Args:
        path: the file or folder that the lock protects, for the warning if its file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning("%s cannot be locked (%s): see to it that nothing else uses it.", path, error)
    return True


def shortest_names(paths: Sequence[Sequence[str]], taken: Collection[str] = ()) -> list[str] | None:
    """Return the shortest distinct endings of paths that are not `taken`. Paths are given as their parts.

    Returns `None` if two paths are equal.
    """
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(each[-length:]) for each in paths]
        if len(set(names)) == len(names) and not set(names) & set(taken):
            return names
    return None
