"""Writing files: no reader sees half of one, a full disk is told as such, and a folder can be locked."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from trl_dbbench.errors import ConfigError, StorageError
from trl_dbbench.utils.lookup import nearest

logger = logging.getLogger(__name__)

LOCK_FILE = "_lock"  # a name that is not pushed to the hub

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def write_atomically(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a file that takes the place of `path` when the block ends well, and is removed when it fails.

    Args:
        path: an older file there is replaced.
        mode: `"w"` for UTF-8 text, `"wb"` for bytes. Half of a surrogate pair, which UTF-8 cannot hold, is
            written as an escape.

    Raises:
        ConfigError: if `path` is a folder, its folder is not there, or it cannot be written.
        StorageError: if the disk is full.
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
    except Exception as error:
        if not is_full(error, path.parent):
            raise
        raise StorageError(
            f"'{path}' cannot be written, no space is left: {free_space(path.parent)}. Free some, or name "
            "another place."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Raises ConfigError for a path that cannot be a file, before hours of work end there."""
    path = Path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"'{path}' cannot be written: it must be a file in a folder that is there.")


# --- a disk that is full --------------------------------------------------------------------------


def is_full(error: BaseException | None, folder: Path) -> bool:
    """Whether an error came up because there was no space to write to.

    Libraries that do not write by Python have errors of their own. Most hold the system's words. PyTorch's
    hold none that could be relied on, so a RuntimeError counts if the disk of `folder` is full.
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


def free_space(*folders: str | Path) -> str:
    """What is free in folders, for a message: `'runs/first' has 1.5 MB free, '/tmp' has 2,000.0 MB free`."""
    return ", ".join(f"'{each}' has {shutil.disk_usage(each).free / 1e6:,.1f} MB free" for each in folders)


def write_through(path: Path) -> None:
    """Returns when a file, or a folder's list of files, is on the disk, where a crash does not take it.

    Raises:
        OSError: if it cannot be written; a full disk may show only here.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError:
        if not path.is_dir():  # not every file system does it for folders
            raise
    finally:
        os.close(number)


def nearest_path(path: str | Path) -> Path | None:
    """What lies in the folder of a path that is not there, and has a name like its; where the folder is not
    there either, the same is asked of that one."""
    path = Path(path)
    if not path.name or path.exists():
        return None
    folder: Path | None = path.parent
    if folder is not None and not folder.is_dir():
        folder = nearest_path(folder)
        if folder is None or not folder.is_dir():
            return None
        if (folder / path.name).exists():
            return folder / path.name
    assert folder is not None
    # by what stands before the ending, which alike files have in common anyway
    there = {each.stem: each for each in sorted(folder.iterdir()) if not each.name.startswith(".")}
    return there.get(nearest(path.stem, there) or "")


def check_not_misspelled(name: str, what: str) -> None:
    """Refuses a path that is not there, before it is taken for a hub id and asked of the hub.

    A hub id is `model` or `owner/model`. A name is a path if it cannot be one (`./a`, `a/b/c`), or if its
    first part is a folder here; one that the hub's cache holds is none.

    Args:
        what: is looked for, for the error text: `"model"`.

    Raises:
        ConfigError: naming what is there and has a name like it.
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
        f"{name} is no folder" + (f"; nearest: {near}." if near else f", so there is no {what} in it.")
    )


def found_from_everywhere(name: str | Path) -> str:
    """A folder's whole path; a hub id as it is."""
    return str(Path(name).resolve()) if Path(name).is_dir() else str(name)


# --- files of lines -------------------------------------------------------------------------------


def whole_lines(path: Path, *, cut: bool = False) -> list[str]:
    """The lines of a file, which need not be there, without one that a kill cut short.

    Args:
        cut: takes that one off the file, which can then be appended to.
    """
    if not path.exists():
        return []
    whole, newline, _ = path.read_bytes().rpartition(b"\n")
    if cut:
        os.truncate(path, len(whole + newline))
    return whole.decode("utf-8").split("\n") if newline else []


# --- a folder for one process ---------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps the folder for this block. The system ends the lock with the process, however that ends.

    Raises:
        ConfigError: if another run has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip() or "its process is not known"
            raise ConfigError(
                f"another run trains in '{folder}': {who}. Give this one an output_dir of its own, or start "
                "it when that one has ended."
            ) from None
        except OSError as error:
            logger.warning("%s cannot be locked (%s): see to it that no other run uses it.", folder, error)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def shortest_names(paths: Sequence[Sequence[str]], taken: Collection[str] = ()) -> list[str] | None:
    """Return names that tell paths apart, of as many last parts as it takes; `None` if two are the same.

    Args:
        paths: the parts of each.
        taken: what none may be called.
    """
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(each[-length:]) for each in paths]
        if len(set(names)) == len(names) and not set(names) & set(taken):
            return names
    return None
