"""The local part of Spider2-lite as its repository lays it out, small."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

SCRIPT = """
CREATE TABLE owners (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE pets (name TEXT, owner INTEGER REFERENCES owners (id), weight REAL);
INSERT INTO owners VALUES (1, 'Ann'), (2, 'Bo');
INSERT INTO pets VALUES ('Rex', 1, 20.5), ('Tom', 2, 4), ('Ada', 1, NULL);
"""


def entry_of(id: str, **fields: Any) -> dict[str, Any]:
    return {
        "instance_id": id,
        "db": "pets",
        "question": f"What is {id}?",
        "external_knowledge": None,
        **fields,
    }


def mark_of(id: str, **fields: Any) -> dict[str, Any]:
    return {"instance_id": id, "condition_cols": [], "ignore_order": True, "toks": "1", **fields}


def lines(path: Path, *entries: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    return path


def spider2(
    folder: Path,
    golds: Mapping[str, Mapping[str, str]],
    entries: Mapping[str, dict[str, Any]] | None = None,
    marks: Mapping[str, dict[str, Any]] | None = None,
) -> Path:
    """Writes `spider2-lite.jsonl` with what belongs to it.

    Args:
        golds: of each task the texts of its CSV files, by what stands between the id and `.csv`.
        entries: more fields of entries, or of entries without a gold.
        marks: what `spider2lite_eval.jsonl` says of a task beside the usual.
    """
    database = folder / "resource/databases/spider2-localdb/pets.sqlite"
    database.parent.mkdir(parents=True, exist_ok=True)
    database.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(f"BEGIN;\n{SCRIPT};\nCOMMIT;")
    results = folder / "evaluation_suite/gold/exec_result"
    results.mkdir(parents=True, exist_ok=True)
    for id, files in golds.items():
        for part, text in files.items():
            (results / f"{id}{part}.csv").write_text(text, encoding="utf-8")
    said = marks or {}
    lines(results.parent / "spider2lite_eval.jsonl", *(mark_of(id, **said.get(id, {})) for id in golds))
    more = entries or {}
    ids = dict.fromkeys([*golds, *more])
    return lines(folder / "spider2-lite.jsonl", *(entry_of(id, **more.get(id, {})) for id in ids))
