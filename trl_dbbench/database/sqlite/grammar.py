"""What MySQL's grammar refuses although sqlglot's parser lets it pass.

Commas and operators with nothing beside them, brackets that are not closed, texts in the place of tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.tokens import Token, TokenType

from trl_dbbench.database.sqlite.dates import UNITS, is_date
from trl_dbbench.database.sqlite.names import RESERVED
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
        *(
            (_T.WITH, _T.ALIAS),
            (_T.COMMA, _T.JOIN),
            (_T.COMMA, _T.CROSS),
            (_T.COMMA, _T.INNER),
            (_T.DISTINCT, _T.ALIAS),
            (_T.DISTINCT, _T.ORDER_BY),
        ),
        (_T.DISTINCT, _T.FROM),
        *((_T.VALUES, _T.NUMBER), (_T.VALUES, _T.STRING), (_T.VALUES, _T.NULL)),
        *((_T.RECURSIVE, _T.ALIAS), (_T.SET, _T.STRING)),
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
_INTRODUCERS = re.compile(
    r"_\w+|[NXB]|MOD|DIV|XOR|ESCAPE|SEPARATOR|LEADING|TRAILING|BOTH|MEMBER|LIKE|REGEXP|INTERVAL",
    re.IGNORECASE,
)
"""Words that may stand before a text."""
_UNITS = UNITS | {"MICROSECOND"}
_SIGNS = frozenset({_T.PLUS, _T.DASH})
_NO_VALUES = _BEFORE_AN_ITEM | _OPERATORS | _SIGNS | {_T.SEMICOLON, _T.WHERE, _T.AND, _T.OR}
_VALUES = frozenset({_T.VAR, _T.IDENTIFIER, _T.NUMBER, _T.STRING, _T.R_PAREN})
_OF_DATE = frozenset({"DATE", "TIME", "TIMESTAMP", "YEAR"})
_AFTER_A_VALUE = _UNITS | {"END", "ESCAPE", "PRECEDING", "FOLLOWING", "ROW"}
_WITH_ARGUMENT = frozenset({"COUNT", "SUM", "AVG", "MIN", "MAX", "GROUP_CONCAT", "STD", "STDDEV", "VARIANCE"})


_OF_GRAMMAR = (exp.Query, exp.Order, exp.Ordered, exp.Interval, exp.Distinct)
"""What only MySQL's own functions take in their brackets."""


def check_shape(tree: exp.Expr) -> None:
    """Raises StatementError for nodes of a tree that cannot stand where they do."""
    if isinstance(tree, exp.Insert) and isinstance(tree.this, exp.Schema):
        for column in tree.this.expressions:
            if not isinstance(column, exp.Identifier):
                raise syntax_error(column.sql(dialect="mysql"))
    for node in tree.find_all(exp.Alias, exp.Star, exp.DataTypeParam, exp.Is, exp.In, exp.Dot):
        parent = node.parent
        match node:
            case exp.Alias():
                wrong = parent is not None and not isinstance(parent, exp.Select | exp.Returning)
            case exp.Star():
                later = isinstance(parent, exp.Select) and parent.expressions[0] is not node
                wrong = later or not isinstance(parent, exp.Select | exp.Count | exp.Column)
            case exp.DataTypeParam():
                wrong = not isinstance(node.this, exp.Literal)
            case exp.Is():
                wrong = isinstance(node.expression.unnest(), exp.Not)
            case exp.In():
                wrong = node.args.get("field") is not None or node.args.get("unnest") is not None
            case _:  # a function of a database
                plain = not any(isinstance(each, _OF_GRAMMAR) for each in node.expression.iter_expressions())
                wrong = isinstance(parent, exp.Window) or not plain
        if wrong:
            raise syntax_error(node.sql(dialect="mysql"))


def check_grammar(sql: str) -> list[Token]:
    """The words of a statement.

    Raises:
        StatementError: the text is no statement of MySQL's.
    """
    sql = as_insert(sql)
    tokens = MySQL().tokenize(sql)
    functions: list[str] = []
    if tokens and tokens[0].token_type in (_T.COMMA, _T.FROM):
        raise syntax_error(sql)
    queries = bool(tokens) and tokens[0].token_type in _QUERIES
    if queries:
        _check_clauses(sql, tokens)
    padded = [Token(_T.SEMICOLON, ""), *tokens, Token(_T.SEMICOLON, "")]
    for place, (earlier, before, token) in enumerate(zip(padded, tokens, padded[2:], strict=False)):
        if before.token_type == _T.R_PAREN and functions:
            functions.pop()
        signed = token.token_type == _T.INTERVAL and before.token_type in _SIGNS
        empty = (before.token_type, token.token_type) == (_T.L_PAREN, _T.R_PAREN)
        dotted = place > 1 and tokens[place - 2].token_type == _T.DOT
        of_date = earlier.text.upper() in _OF_DATE and not dotted
        without = (signed and earlier.token_type in _NO_VALUES) or (empty and of_date)
        is_null = (before.token_type, token.token_type) == (_T.NOT, _T.NULL) and queries
        without |= is_null and (earlier.token_type in _VALUES or _is_name(earlier))
        if _is_wrong(before, token, functions) or without:
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
    return tokens


@dataclass
class _Level:
    """How far a query, or what stands in brackets, has come."""

    clause: int = 0
    lists: bool = False
    """Between SELECT and FROM, where a text may be an alias."""
    between: int = 0
    """How many BETWEEN wait for their AND."""


def _check_clauses(sql: str, tokens: list[Token]) -> None:
    """Raises StatementError for a clause after one that it must come before, for BETWEEN without AND or the
    other way around in a frame, and for a text in the place of an alias of a table."""
    levels = [_Level()]
    for before, token in pairwise([Token(_T.SEMICOLON, ""), *tokens, Token(_T.SEMICOLON, "")]):
        kind, level = token.token_type, levels[-1]
        if _is_misplaced(before, token, level):
            raise syntax_error(sql[token.start :])
        if kind == _T.L_PAREN:
            levels.append(_Level())
        elif kind == _T.R_PAREN and len(levels) > 1:
            levels.pop()
        elif kind == _T.BETWEEN:
            level.between += 1
        elif kind == _T.AND and level.between:
            level.between -= 1
        place = _CLAUSES.get(kind)
        if place is None or before.token_type == _T.DOT:
            continue
        if place and (place < level.clause or (place == level.clause and token.token_type != _T.JOIN)):
            raise syntax_error(sql[token.start :])
        level.clause, level.lists = place, kind == _T.SELECT


def _is_name(token: Token) -> bool:
    """Whether a token is a name, and not a word that may stand behind a value."""
    word = token.text.upper()
    known = word in _AFTER_A_VALUE or token.text.lower() in RESERVED
    return token.token_type == _T.IDENTIFIER or (word.isidentifier() and not known)


def _is_misplaced(before: Token, token: Token, level: _Level) -> bool:
    """Whether a token cannot stand behind another in this part of a query."""
    kind = token.token_type
    if level.between and (kind in (_T.R_PAREN, _T.SEMICOLON, _T.OR) or kind in _CLAUSES):
        return True
    ends_value = before.token_type in _VALUES or _is_name(before)
    if level.between and ends_value and (kind == _T.NUMBER or _is_name(token)):
        return True
    if token.text.upper() == "MEMBER" and kind == _T.VAR and ends_value and level.lists:
        return True
    if kind == _T.AND and not level.between and before.text.upper() in ("PRECEDING", "FOLLOWING"):
        return True
    if kind in (_T.UNION, _T.EXCEPT, _T.INTERSECT) and level.clause >= _CLAUSES[_T.ORDER_BY]:
        return True
    if kind == _T.COMMA and level.clause in (_CLAUSES[_T.WHERE], _CLAUSES[_T.HAVING]):
        return True
    if kind != _T.STRING or level.lists:
        return False
    named = before.token_type == _T.VAR and not _INTRODUCERS.fullmatch(before.text)
    return named or (before.token_type == _T.ALIAS and level.clause > 0)


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
    dated = second == _T.STRING and first in (_T.DATE, _T.TIMESTAMP)
    if dated and (not is_date(token.text) or (first == _T.DATE and ":" in token.text)):
        raise StatementError(1525, f"Incorrect {before.text.upper()} value: '{token.text}'")
    if before.text.upper() == "SEPARATOR" and inside == "GROUP_CONCAT" and second != _T.STRING:
        return True
    if second == _T.STRING and first == _T.YEAR:
        return True
    if second == _T.ORDER_BY and first == _T.L_PAREN and inside == "GROUP_CONCAT":
        return True
    if first == _T.L_PAREN and inside == "NTILE" and second != _T.NUMBER:
        return True
    if first == _T.L_PAREN and inside == "EXTRACT" and not set(token.text.upper().split("_")) <= _UNITS:
        return True
    if first in (_T.L_PAREN, _T.DISTINCT) and second == _T.R_PAREN and inside in _WITH_ARGUMENT:
        return True
    return second == _T.STRING and first in _BEFORE_A_TABLE and inside not in _WITH_FROM
