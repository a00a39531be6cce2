"""Mistakes of MySQL's grammar, dates that are none, and LIMIT of a name, seen by the words of a statement.

Queries and changes of rows are read word by word (`syntax`). Of other statements, some words are known that
never stand side by side.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from itertools import pairwise

from sqlglot.tokens import Token, TokenType

from trl_dbbench.mysqlite.dates import is_date
from trl_dbbench.mysqlite.errors import StatementError, syntax_error, unsupported
from trl_dbbench.mysqlite.names import check_spaces
from trl_dbbench.mysqlite.syntax import check_syntax

_T = TokenType
_BEFORE_AN_ITEM = frozenset({_T.L_PAREN, _T.COMMA})
_AFTER_AN_ITEM = frozenset({_T.R_PAREN, _T.COMMA, _T.SEMICOLON})


_TYPES = {"DATE": "DATE", "TIMESTAMP": "DATETIME"}
"""Words before a constant, and what it must be."""


def check_grammar(sql: str, tokens: Sequence[Token]) -> bool:
    """Raises StatementError for a text that is no statement of MySQL's.

    Returns:
        Whether it is certain that it is one.
    """
    if tokens and tokens[0].token_type in (_T.COMMA, _T.FROM):
        raise syntax_error(sql)
    check_spaces(sql, tokens)
    if sum({_T.L_PAREN: 1, _T.R_PAREN: -1}.get(each.token_type, 0) for each in tokens):
        raise syntax_error("")
    certain = check_syntax(sql, tokens)
    if not certain:
        _check_lists(sql, tokens)
    _check_dates(tokens)
    for token in _limits(tokens):
        if token.token_type == _T.VAR:
            raise StatementError(1327, f"Undeclared variable: {token.text}")
        if token.token_type != _T.NUMBER or not token.text.isdecimal():
            raise syntax_error(sql[token.start :])
    return certain


def _check_dates(tokens: Sequence[Token]) -> None:
    """Raises StatementError for a constant such as DATE 'x' that is none."""
    for before, token in pairwise(tokens):
        word, written = before.text.upper(), token.text
        if token.token_type != _T.STRING or word not in _TYPES:
            continue
        if is_date(written) and (":" in written) == (word == "TIMESTAMP"):
            continue
        if written[-1:] in string.punctuation and is_date(written.rstrip(string.punctuation)):
            raise unsupported("a date with a sign behind it")
        raise StatementError(1525, f"Incorrect {_TYPES[word]} value: '{written}'")


def _limits(tokens: Sequence[Token]) -> Iterator[Token]:
    """What stands behind LIMIT and OFFSET."""
    for place, token in enumerate(tokens[:-1]):
        if token.token_type == _T.LIMIT:
            yield tokens[place + 1]
            if len(tokens) > place + 3 and tokens[place + 2].token_type in (_T.COMMA, _T.OFFSET):
                yield tokens[place + 3]


def _check_lists(sql: str, tokens: Sequence[Token]) -> None:
    """Raises StatementError for a comma with nothing beside it."""
    for before, token in pairwise([*tokens, Token(_T.SEMICOLON, "")]):
        first, second = before.token_type, token.token_type
        if (second == _T.COMMA and first in _BEFORE_AN_ITEM) or (
            first == _T.COMMA and second in _AFTER_AN_ITEM
        ):
            raise syntax_error(sql[before.start :])
