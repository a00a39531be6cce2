"""Translation between the database name that an agent uses and the real one.

On every server, an agent reads and writes `dbbench`. The real name differs between runs and slots: it is put
into the agent's statements and removed from their results. All real names are equally long, so that what
cannot be replaced, such as a name's length, is the same in every run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from trl_dbbench.database.sandbox import SHOWN_DATABASE
from trl_dbbench.utils.sql import lexemes

SHOWN_ACCOUNT = "agent"
"""Account name that the agent reads in place of the real one."""

_USERS = ("USER", "CURRENT_USER", "SESSION_USER", "SYSTEM_USER")
_DATABASES = ("DATABASE", "SCHEMA")
_TO_REWRITE = re.compile(rf"{SHOWN_DATABASE}|\b(?:{'|'.join((*_DATABASES, *_USERS))})\b", re.IGNORECASE)
_CATALOGS = frozenset({"information_schema", "performance_schema", "mysql", "sys"})
_OF_A_TABLE = frozenset({"COLUMNS", "FIELDS", "INDEX", "INDEXES", "KEYS"})
_GAPS = frozenset({"gap", "executed"})
_KEPT = frozenset({"CREATE", "ALTER", "EXPLAIN", "DESCRIBE", "DESC", "ANALYZE"})
"""First words of statements whose text is stored or explained: calls in them stay as written."""

_HASH = re.compile(
    r"(\bIDENTIFIED (?:BY PASSWORD|VIA \w+ USING|WITH '\w+' AS) )'(?:[^'\\]|\\.|'')*'", re.DOTALL
)


class Names:
    """Names of a run's databases and accounts, which begin with `owner`."""

    def __init__(self, owner: str) -> None:
        # SHOW GRANTS escapes `_` as `\_`; a name before @ is an account
        self._shortest = len(owner)
        name = re.sub("_", r"\\\\?_", owner) + r"\\?_[st]\d+"
        self._real = re.compile(rf"{name}(?P<account>['`\"]?@)?", re.IGNORECASE)

    def shown(self, value: Any) -> Any:
        """Return a value or message as the agent may see it, without real names and password hashes."""
        if isinstance(value, bytes):
            text = value.decode("latin-1")
            return self.shown(text).encode("latin-1") if self._real.search(text) else value
        if not isinstance(value, str) or len(value) < self._shortest:
            return value
        if "IDENTIFIED" in value:
            value = _HASH.sub(r"\1'<secret>'", value)
        return self._real.sub(_shown, value)


def sent(sql: str, database: str) -> str:
    """Return the agent's statement as it is sent to the server, with `database` as the real name.

    - `dbbench` becomes the real name where it names a database, also in strings in queries of a catalog.
    - DATABASE(), USER() and similar functions return the shown names, except in queries of a catalog.
    """
    if not _TO_REWRITE.search(sql):
        return sql
    parts = list(lexemes(sql))
    statement = _Statement([part for part in parts if part[0] not in _GAPS])
    replaced, places = dict(statement.rewritten(database)), count()
    return "".join(text if kind in _GAPS else replaced.get(next(places), text) for kind, text in parts)


class _Statement:
    """Parts of a statement without gaps: their kinds and texts, and names or words where they are such."""

    def __init__(self, parts: Sequence[tuple[str, str]]) -> None:
        self._kinds = [kind for kind, _ in parts]
        self._texts = [text for _, text in parts]
        self._words = [text.upper() if kind == "word" else "" for kind, text in parts]
        self._names = [text.strip('`"') if kind in ("word", "quoted") else "" for kind, text in parts]
        self._first = next((word for word in self._words if word), "")
        catalogs = any(name.lower() in _CATALOGS for name in self._names)
        self._asks_catalog = catalogs or self._first == "SHOW"

    def rewritten(self, database: str) -> Iterator[tuple[int, str]]:
        """Yield the indices of parts to replace, with their new texts."""
        named = [place for place, name in enumerate(self._names) if name == SHOWN_DATABASE]
        # if it names anything else, such as a table's alias, it means that before a dot, too
        if all(self._is_database(place) or self._text(place - 1) == "." for place in named):
            for place in filter(self._is_database, named):
                yield place, self._texts[place].replace(SHOWN_DATABASE, database)
        for place, text in enumerate(self._texts):
            if self._asks_catalog and (self._kinds[place] == "string" or "Tables_in_" in text):
                yield place, re.sub(rf"(?:\b|(?<=_in_)){SHOWN_DATABASE}\b", database, text)
            elif not self._asks_catalog and self._first not in _KEPT and self._is_call(place):
                shown = SHOWN_DATABASE if self._words[place] in _DATABASES else SHOWN_ACCOUNT
                yield place, f"REPLACE({text}"
                yield place + 2, f"), '{database}', '{shown}')"

    def _text(self, place: int) -> str:
        return self._texts[place] if 0 <= place < len(self._texts) else ""

    def _is_database(self, place: int) -> bool:
        before = self._words[:place]
        last = before[-1] if before else ""
        if self._text(place - 1) == ".":
            return False
        if self._text(place + 1) == "." or last in ("USE", *_DATABASES):
            return True
        if last == "EXISTS":
            return any(word in _DATABASES for word in before[:3])
        places = sum(word in ("FROM", "IN") for word in before)
        of_a_table = any(word in _OF_A_TABLE for word in before)
        return self._first == "SHOW" and last in ("FROM", "IN") and places > of_a_table

    def _is_call(self, place: int) -> bool:
        empty = self._text(place + 1) == "(" and self._text(place + 2) == ")"
        return empty and self._words[place] in (*_DATABASES, *_USERS) and self._text(place - 1) != "."


def _shown(match: re.Match[str]) -> str:
    account = match["account"]
    shown = SHOWN_DATABASE if account is None else SHOWN_ACCOUNT
    return (shown.upper() if match[0].isupper() else shown) + (account or "")
