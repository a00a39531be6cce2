"""Entries of Spider, BIRD and BIRD-CRITIC as they are published, and the files they stand in."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from spider2_layout import entry_of

from trl_dbbench.tasks import Column, Table

KIT = Path(__file__).parents[2] / "shared" / "data" / "scorers"

PETS = """
CREATE TABLE owners (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE pets (name TEXT, owner INTEGER REFERENCES owners (id), weight REAL);
INSERT INTO owners VALUES (1, 'Ann'), (2, 'Bo');
INSERT INTO pets VALUES ('Rex', 1, 20.5), ('Tom', 2, 4), ('Ada', 1, NULL);
"""
PETS_TABLES = (
    Table("owners", (Column("id", "INTEGER"), Column("name", "TEXT"))),
    Table("pets", (Column("name", "TEXT"), Column("owner", "INTEGER"), Column("weight", "REAL"))),
)

SPIDER = {
    "db_id": "pets",
    "question": "How many pets are there?",
    "query": "SELECT count(*) FROM pets",
    "query_toks": ["SELECT", "count", "(", "*", ")", "FROM", "pets"],
    "question_toks": ["How", "many", "pets", "are", "there", "?"],
    "sql": {"from": {"table_units": [["table_unit", 1]]}},
}
BIRD = {
    "question_id": 7,
    "db_id": "pets",
    "question": "Who owns heavy pets?",
    "evidence": "heavy means weight > 10",
    "SQL": "SELECT T2.name FROM pets AS T1 JOIN owners AS T2 ON T1.owner = T2.id WHERE T1.weight > 10",
    "difficulty": "simple",
}
CRITIC = {
    "instance_id": "pets_1",
    "selected_database": "pets",
    "query": "List the pets by weight.",
    "preprocess_sql": [],
    "clean_up_sql": [],
    "sol_sql": ["SELECT name FROM pets ORDER BY weight;"],
    "external_knowledge": [],
    "test_cases": [],
    "category": "Query",
    "high_level": False,
    "conditions": {"decimal": -1, "distinct": False, "order": True},
    "difficulty_tier": "Simple",
}

CRITIC_MYSQL = CRITIC | {"dialect": "MySQL", "conditions": None, "efficiency": False}
SPIDER2 = entry_of("local001")

OWN = {
    "id": "count",
    "question": "How many pets?",
    "sql": "SELECT count(*) FROM pets",
    "grader": "bird_ex",
    "database": {"path": "data/pets.sqlite"},
}


def database(path: Path, script: str = PETS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"BEGIN;\n{script};\nCOMMIT;")
    return path


def as_list(path: Path, *entries: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    return path


def as_lines(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    return path


def without(entry: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != key}
