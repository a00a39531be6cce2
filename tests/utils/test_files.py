"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trl_dbbench.utils.files import write_atomically


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """Such as that of `--json >(jq .)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        with write_atomically(pipe) as file:
            file.write("{}")
    assert read.result() == "{}" and pipe.is_fifo()
