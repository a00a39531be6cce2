"""What MySQL's grammar refuses although sqlglot's parser lets it pass.

Commas and operators with nothing beside them, brackets that are not closed, texts in the place of tables.
"""

from __future__ import annotations

from itertools import pairwise

from sqlglot.dialects.mysql import MySQL
from sqlglot.tokens import Token, TokenType

from trl_dbbench.database.sqlite.dates import UNITS
from trl_dbbench.database.sqlite.parse import as_insert, syntax_error
from trl_dbbench.database.sqlite.values import StatementError

_T = TokenType
_OPERATORS = frozenset({_T.LT, _T.GT, _T.LTE, _T.GTE, _T.EQ, _T.NEQ, _T.NULLSAFE_EQ})
_BEFORE_AN_ITEM = frozenset({_T.L_PAREN, _T.COMMA, _T.SELECT, _T.GROUP_BY, _T.ORDER_BY, _T.DISTINCT})
_AFTER_AN_ITEM = frozenset(
    {
        *(
            _T.R_PAREN,
            _T.COMMA,
            _T.FROM,
            _T.WHERE,
            _T.GROUP_BY,
            _T.HAVING,
            _T.ORDER_BY,
            _T.LIMIT,
            _T.UNION,
            _T.SET,
        ),
        *(_T.EXCEPT, _T.INTERSECT, _T.SEMICOLON),
    }
)
_PAIRS = frozenset(
    {
        *(
            (_T.DOT, _T.STRING),
            (_T.NUMBER, _T.NUMBER),
            (_T.ALIAS, _T.NUMBER),
            (_T.SELECT, _T.FROM),
            (_T.FROM, _T.FROM),
        ),
        *((_T.INTO, _T.L_PAREN), (_T.SELECT, _T.ALIAS), (_T.RLIKE, _T.NOT), (_T.LIKE, _T.NOT)),
        *((_T.WITH, _T.ALIAS), (_T.COMMA, _T.JOIN)),
        *((_T.PARTITION_BY, _T.ORDER_BY), (_T.PARTITION_BY, _T.R_PAREN)),
    }
)
"""Tokens that never stand side by side."""
_CLAUSES = {
    **{_T.FROM: 1, _T.JOIN: 1, _T.WHERE: 2, _T.GROUP_BY: 3, _T.HAVING: 4, _T.ORDER_BY: 5, _T.LIMIT: 6},
    **dict.fromkeys((_T.SELECT, _T.UNION, _T.EXCEPT, _T.INTERSECT, _T.SET, _T.VALUES), 0),
}
"""Clauses in the order in which a query has them, and what begins anew."""
_QUERIES = frozenset({_T.SELECT, _T.WITH, _T.L_PAREN, _T.INSERT, _T.UPDATE, _T.DELETE})
_BEFORE_A_TABLE = frozenset({_T.FROM, _T.JOIN, _T.INTO, _T.UPDATE})
_WITH_FROM = frozenset({"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "MID"})
"""Functions in whose brackets FROM stands before a value."""
_UNITS = UNITS | {"MICROSECOND"}
_WITH_ARGUMENT = frozenset({"COUNT", "SUM", "AVG", "MIN", "MAX", "GROUP_CONCAT", "STD", "STDDEV", "VARIANCE"})


def check_grammar(sql: str) -> None:
    """Raises StatementError for a text that is no statement of MySQL's."""
    sql = as_insert(sql)
    tokens = MySQL().tokenize(sql)
    functions: list[str] = []
    if tokens and tokens[0].token_type in (_T.COMMA, _T.FROM):
        raise syntax_error(sql)
    if tokens and tokens[0].token_type in _QUERIES:
        _check_clauses(sql, tokens)
    for before, token in pairwise([*tokens, Token(_T.SEMICOLON, "")]):
        if before.token_type == _T.R_PAREN and functions:
            functions.pop()
        if _is_wrong(before, token, functions):
            raise syntax_error(sql[before.start :])
        if before.token_type == _T.LIMIT and not (token.token_type == _T.NUMBER and token.text.isdecimal()):
            named = token.token_type == _T.VAR and _T.FROM in [each.token_type for each in tokens]
            if named and not sql[token.end + 1 :].lstrip().startswith("("):
                raise StatementError(1327, f"Undeclared variable: {token.text}")
            raise syntax_error(sql[token.start :])
        if token.token_type == _T.L_PAREN:
            functions.append(before.text.upper())
    kinds = [token.token_type for token in tokens]
    for first, _, bracket, query in zip(kinds, kinds[1:], kinds[2:], kinds[3:], strict=False):
        if (bracket, query) == (_T.L_PAREN, _T.SELECT) and first in (_T.WITH, _T.RECURSIVE):
            raise syntax_error("(")
    if (
        functions
        or kinds.count(_T.WHEN) != kinds.count(_T.THEN)
        or sum({_T.L_PAREN: 1, _T.R_PAREN: -1}.get(each.token_type, 0) for each in tokens)
    ):
        raise syntax_error("")


def _check_clauses(sql: str, tokens: list[Token]) -> None:
    """Raises StatementError for a clause after one that it must come before, and for BETWEEN without AND."""
    last, between = [0], [0]
    for before, token in pairwise([Token(_T.SEMICOLON, ""), *tokens, Token(_T.SEMICOLON, "")]):
        kind = token.token_type
        if between[-1] and (kind in (_T.R_PAREN, _T.SEMICOLON, _T.OR) or kind in _CLAUSES):
            raise syntax_error(sql[token.start :])
        if kind == _T.L_PAREN:
            last.append(0)
            between.append(0)
        elif kind == _T.R_PAREN and len(last) > 1:
            last.pop()
            between.pop()
        elif kind == _T.BETWEEN:
            between[-1] += 1
        elif kind == _T.AND and between[-1]:
            between[-1] -= 1
        place = _CLAUSES.get(kind)
        if place is None or before.token_type == _T.DOT:
            continue
        if place and (place < last[-1] or (place == last[-1] and token.token_type != _T.JOIN)):
            raise syntax_error(sql[token.start :])
        last[-1] = place


def _is_wrong(before: Token, token: Token, functions: list[str]) -> bool:
    """Whether two tokens cannot stand side by side within these functions, the outermost first."""
    first, second = before.token_type, token.token_type
    if (first, second) in _PAIRS or (second == _T.COMMA and first in _BEFORE_AN_ITEM):
        return True
    if first == _T.COMMA and second in _AFTER_AN_ITEM:
        return True
    if first == _T.ALIAS and second in _AFTER_AN_ITEM:
        return True
    if first in _OPERATORS and second in _OPERATORS:
        return True
    inside = functions[-1] if functions else ""
    if first == _T.L_PAREN and inside == "NTILE" and second != _T.NUMBER:
        return True
    if first == _T.L_PAREN and inside == "EXTRACT" and not set(token.text.upper().split("_")) <= _UNITS:
        return True
    if first in (_T.L_PAREN, _T.DISTINCT) and second == _T.R_PAREN and inside in _WITH_ARGUMENT:
        return True
    return second == _T.STRING and first in _BEFORE_A_TABLE and inside not in _WITH_FROM
