"""Write trl_dbbench/mysqlite/letters.json: the order of letters, as MySQL in Docker tells it.

    python benchmarks/make_letters.py

Asks for the weight of each character of `RANGES` in utf8mb4_0900_ai_ci, and for its upper and lower case.
What Unicode's own tables give in Python is left out.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from trl_dbbench.database import Database, open_database
from trl_dbbench.mysqlite.collation import decomposed
from trl_dbbench.tasks import Column, Gold, Table, Task

TARGET = Path(__file__).parents[1] / "trl_dbbench/mysqlite/letters.json"
RANGES = (
    *((0x0, 0x52F), (0x531, 0x58F), (0x5D0, 0x5EA), (0x621, 0x6D3), (0x10A0, 0x10FF), (0x1100, 0x11FF)),
    *((0x1E00, 0x1FFF), (0x2000, 0x27BF), (0x2C60, 0x2C7F), (0x3000, 0x30FF)),
    *(
        (0xAC00, 0xD7A3),
        (0xFB00, 0xFB06),
        (0xFE00, 0xFE0F),
        (0xFEFF, 0xFEFF),
        (0xFFFC, 0xFFFD),
        (0xFF01, 0xFF9F),
        (0x1D400, 0x1D7FF),
        (0x1F300, 0x1F64F),
    ),
    *((0x1F680, 0x1F6C5), (0x1F910, 0x1F91E), (0x1F920, 0x1F927), (0x1F980, 0x1F991)),
)
"""Letters of Europe and its neighbours, kana, hangul, punctuation and symbols."""
A_STATEMENT = 500


def characters() -> Iterator[str]:
    """Characters of `RANGES`."""
    for first, last in RANGES:
        yield from map(chr, range(first, last + 1))


def asked(mysql: Database, texts: list[str]) -> list[tuple[str, str, str]]:
    """The weights, upper case and lower case of each text, as MySQL tells them."""
    columns = (Column("n", "INT"), Column("c", "VARCHAR(9)"))
    found = []
    for start in range(0, len(texts), A_STATEMENT):
        rows = tuple(enumerate(texts[start : start + A_STATEMENT]))
        with mysql.sandbox(Task("letters", "?", (Table("t", columns, rows),), "SELECT", Gold())) as sandbox:
            sql = "SELECT HEX(WEIGHT_STRING(c)), HEX(UPPER(c)), HEX(LOWER(c)) FROM t ORDER BY n"
            for weights, upper, lower in sandbox.execute(sql).rows or ():
                cases = [bytes.fromhex(each).decode() for each in (upper, lower)]
                found.append((weights, *cases))
    return found


def main() -> None:
    chars = list(characters())
    with open_database(sys.argv[1] if len(sys.argv) > 1 else "docker") as mysql:
        told = dict(zip(chars, asked(mysql, chars), strict=True))
    weights = {char: each[0] for char, each in told.items()}
    known = {each for each in weights.values() if 0 < len(each) <= 4}
    classes: dict[str, list[str]] = defaultdict(list)
    expansions: dict[str, str] = {}
    ignored = ""
    for char, weight in weights.items():
        parts = decomposed(char)
        if parts != char and "".join(weights.get(part, "?") for part in parts) == weight:
            continue
        if not weight:
            ignored += char
        elif len(weight) == 4 and weight < "FB00":
            classes[weight].append(char)
        elif all(weight[at : at + 4] in known for at in range(0, len(weight), 4)) and weight < "FB00":
            expansions[char] = weight
    order = "".join(classes[each][0] for each in sorted(classes))
    first = {weight: each[0] for weight, each in classes.items()}
    alike = {char: first[weight] for weight, each in classes.items() for char in each[1:]}
    for char, weight in expansions.items():
        alike[char] = "".join(first[weight[at : at + 4]] for at in range(0, len(weight), 4))
    growing = [char for char in chars if len(told[char][1]) != 1 or len(told[char][2]) != 1]
    sure = [char for char in chars if char not in growing]
    upper = {char: told[char][1] for char in sure if plain(char, char.upper()) != told[char][1]}
    lower = {char: told[char][2] for char in sure if plain(char, char.lower()) != told[char][2]}
    written = {
        "order": order,
        "ignored": ignored,
        "alike": alike,
        "upper": upper,
        "lower": lower,
        "growing": "".join(growing),
        "ranges": RANGES,
    }
    lines = ",\n".join(f'"{name}": {json.dumps(each)}' for name, each in written.items())
    TARGET.write_text(f"{{\n{lines}\n}}\n")


def plain(char: str, changed: str) -> str:
    """A case of a character that is one character, too."""
    return changed if len(changed) == 1 else char


if __name__ == "__main__":
    main()
