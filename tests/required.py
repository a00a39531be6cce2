"""What a machine may lack, and CI may not."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

LONG = pytest.mark.skipif(
    "TRL_DBBENCH_LONG" not in os.environ, reason="takes minutes; TRL_DBBENCH_LONG=1 runs it"
)
"""For what repeats a test of every run much more often, or for much longer."""


def lacking(part: str, why: str) -> NoReturn:
    """Ends a test as a skip, or as a failure where `TRL_DBBENCH_REQUIRE` (such as `docker,local`) names the part."""
    if part in os.environ.get("TRL_DBBENCH_REQUIRE", "").split(","):
        pytest.fail(f"TRL_DBBENCH_REQUIRE asks for {part}: {why}")
    pytest.skip(why)
