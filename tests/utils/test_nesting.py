"""JSON of 100 levels is read; of one more it is not."""

from __future__ import annotations

import pytest

from trl_dbbench.utils.nesting import MAX_NESTING, not_nested_deeply


def nested(levels: int, innermost: object) -> object:
    """Lists and objects in turn."""
    value = innermost
    for level in range(levels):
        value = {"a": value} if level % 2 else [1, value]
    return value


@pytest.mark.parametrize("innermost", [1, "[[[", [], {}])
def test_as_many_levels_as_it_says(innermost: object) -> None:
    own = isinstance(innermost, list | dict)
    value = nested(MAX_NESTING - own, innermost)
    assert not_nested_deeply(value) is value
    with pytest.raises(RecursionError, match="nested too deep"):
        not_nested_deeply([value])
