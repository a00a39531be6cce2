"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.files import check_folder, check_outputs, write_atomically


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """Such as that of `--json >(jq .)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        with write_atomically(pipe) as file:
            file.write("{}")
    assert read.result() == "{}" and pipe.is_fifo()


def test_what_a_symbolic_link_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "tasks.jsonl", tmp_path / "link.jsonl"
    target.write_text("old")
    link.symlink_to(target)
    with write_atomically(link) as file:
        file.write("new")
    assert link.is_symlink() and target.read_text() == "new"
    assert list((tmp_path / "disk").iterdir()) == [target]


def test_a_path_that_cannot_be_a_folder(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "folder", "--out")
    (tmp_path / "tasks.jsonl").touch()
    for path in (tmp_path / "tasks.jsonl", tmp_path / "tasks.jsonl" / "out"):
        with pytest.raises(
            ConfigError, match=f"--out: '{path}' cannot be the folder: .* is a file. Name another"
        ):
            check_folder(path, "--out")


def test_a_folder_that_may_not_be_entered(tmp_path: Path) -> None:
    """Such as another user's home. Python 3.11 could not even tell whether anything is there."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    user = os.geteuid()
    os.setresuid(user or 65534, user or 65534, user)  # root may enter every folder
    try:
        with pytest.raises(ConfigError, match=r"out.json' cannot be written: its folder may not be entered"):
            check_outputs([closed / "out.json"])
        with pytest.raises(
            ConfigError, match=r"--out: .*run' cannot be the folder: '.*' may not be written to"
        ):
            check_folder(closed / "new" / "run", "--out")
    finally:
        os.setresuid(user, user, user)


def test_a_folder_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before hours of work, not after them. Root may write everywhere but on a disk that is read only."""
    monkeypatch.setattr("trl_dbbench.utils.files.os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(ConfigError, match=f"'{tmp_path}' may not be written to"):
        check_outputs([tmp_path / "eval.json"])
    check_outputs(["/dev/null"])


def test_standard_output_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """`--json /dev/stdout > log`: by its name the file would be opened anew, and begin at its start."""
    script = (
        "from trl_dbbench.utils.files import write_atomically\n"
        "print('before')\n"
        "with write_atomically('/dev/stdout') as file: file.write('{}\\n')\n"
        "print('after')\n"
    )
    with (tmp_path / "log").open("w") as log:
        subprocess.run([sys.executable, "-c", script], check=True, stdout=log)
    assert (tmp_path / "log").read_text() == "before\n{}\nafter\n"
