"""What other dialects of SQL have and MySQL refuses, although sqlglot parses it and SQLite executes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from trl_dbbench.database.sqlite.kinds import words
from trl_dbbench.database.sqlite.parse import syntax_error, unsupported

_T = TokenType
_CAST_TYPES = words(
    """
    SIGNED UNSIGNED CHAR CHARACTER NCHAR BINARY DATE DATETIME TIME YEAR DECIMAL DEC FLOAT DOUBLE REAL JSON
    """
)
_ONLY_OVER = (
    *(exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile),
    *(exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue),
)


def check_foreign(tokens: Sequence[Token], tree: exp.Expr) -> None:
    """Raises StatementError for words and clauses that MySQL does not know."""
    for token in _foreign_words(tokens):
        raise syntax_error(token.text)
    if isinstance(tree, exp.Update) and tree.args.get("from_") is not None:
        raise syntax_error(tree.args["from_"].sql(dialect="mysql").strip())
    if isinstance(tree, exp.DML) and tree.args.get("returning") is not None:
        raise syntax_error(tree.args["returning"].sql(dialect="mysql").strip())
    for node in tree.walk():
        rule = _RULES.get(type(node))
        if rule is not None and rule(node):
            raise syntax_error(node.sql(dialect="mysql"))
        if isinstance(node, _ONLY_OVER) and not isinstance(node.parent, exp.Window | exp.IgnoreNulls):
            raise syntax_error(node.sql(dialect="mysql"))


def _foreign_words(tokens: Sequence[Token]) -> Iterator[Token]:
    calls: list[str] = []
    padded = [Token(_T.SEMICOLON, ""), *tokens, Token(_T.SEMICOLON, "")]
    for earlier, before, token in zip(padded, padded[1:], padded[2:], strict=False):
        word = token.text.upper()
        if before.token_type == _T.L_PAREN:
            calls.append(earlier.text.upper())
        elif before.token_type == _T.R_PAREN and calls:
            calls.pop()
        casts = calls[-1:] == ["CAST"] and before.token_type == _T.ALIAS
        casts = casts or (calls[-1:] == ["CONVERT"] and before.token_type == _T.COMMA)
        nulls = before.text.upper() == "NULLS" and word in ("FIRST", "LAST")
        interval = earlier.token_type == _T.INTERVAL and before.token_type == _T.STRING
        if (
            (casts and word not in _CAST_TYPES)
            or (nulls and earlier.token_type != _T.DOT)
            or (interval and not word.isidentifier())
            or (interval and token.token_type in (_T.FROM, _T.WHERE, _T.AND, _T.OR))
            or (before.token_type == _T.FULL and token.token_type == _T.OUTER)
            or token.token_type == _T.DCOLON
            or (token.token_type == _T.EQ and token.text == "==")
        ):
            yield token


def _select(node: exp.Expr) -> bool:
    limit, offset, distinct = (node.args.get(name) for name in ("limit", "offset", "distinct"))
    if node.args.get("qualify") is not None:
        raise unsupported("QUALIFY")
    alone = offset is not None and limit is None
    written = offset is not None and not isinstance(offset.expression, exp.Literal)
    on = distinct is not None and distinct.args.get("on") is not None
    return isinstance(limit, exp.Fetch) or alone or written or on


def _join(node: exp.Expr) -> bool:
    assert isinstance(node, exp.Join)
    if node.side.upper() == "FULL":
        raise unsupported("FULL JOIN")
    bound = node.args.get("on") or node.args.get("using") or node.method
    return node.kind.upper() in ("SEMI", "ANTI") or bool(node.side and not bound)


def _frame(node: exp.Expr) -> bool:
    if str(node.args.get("kind")).upper() == "GROUPS" or node.args.get("exclude") is not None:
        raise unsupported("GROUPS and EXCLUDE in a frame")
    return False


def _always(node: exp.Expr) -> bool:
    return True


_RULES: dict[type[exp.Expr], Callable[[exp.Expr], bool]] = {
    **dict.fromkeys((exp.ILike, exp.Glob, exp.Filter, exp.TableSample, exp.Array, exp.Bracket), _always),
    **dict.fromkeys((exp.Max, exp.Min), lambda node: bool(node.expressions)),
    **dict.fromkeys((exp.Lag, exp.Lead), lambda node: isinstance(node.args.get("offset"), exp.Neg)),
    exp.In: lambda node: not (node.expressions or any(map(node.args.get, ("query", "unnest", "field")))),
    exp.OnConflict: lambda node: not node.args.get("duplicate"),
    exp.Select: _select,
    exp.Join: _join,
    exp.WindowSpec: _frame,
}
"""Whether a node of a kind is foreign."""
