"""The forms of questions over several tables: SQL, and several wordings of the question that it answers.

`forms.txt` has them, with an empty line between two:

```
kind, shape, by the column that its rows are in the order of
  SQL
  - a wording
```

The shape says how the tables hang together (`relational.Draft.parts`); `relational.py` draws what else stands
in the blanks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Form:
    """A template; see the module."""

    kind: str
    shape: str
    by: str
    sql: str
    wordings: tuple[str, ...]

    @property
    def skills(self) -> frozenset[str]:
        return frozenset({self.kind})


def _read(text: str) -> Iterator[Form]:
    for entry in text.strip().split("\n\n"):
        head, sql, *wordings = map(str.strip, entry.splitlines())
        kind, shape, by = head.split(", ")
        yield Form(kind, shape, by.removeprefix("by "), sql, tuple(each[2:] for each in wordings))


FORMS = tuple(_read(Path(__file__).with_name("forms.txt").read_text(encoding="utf-8")))
