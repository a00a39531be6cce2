"""Whether a statement is one of MySQL's grammar: queries and changes of rows, read over their words.

What the parser lets pass although MySQL refuses it would be answered by SQLite; see `syntax_expressions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokens import Token, TokenType

from trl_dbbench.mysqlite.errors import unsupported
from trl_dbbench.mysqlite.kinds import words
from trl_dbbench.mysqlite.syntax_expressions import Expressions

_T = TokenType
_OPTIONS = words(
    """
    ALL DISTINCT DISTINCTROW HIGH_PRIORITY STRAIGHT_JOIN SQL_SMALL_RESULT SQL_BIG_RESULT SQL_BUFFER_RESULT
    SQL_NO_CACHE SQL_CALC_FOUND_ROWS
    """
)
_LISTED = words("UNION EXCEPT INTERSECT")


def check_syntax(sql: str, tokens: Sequence[Token]) -> bool:
    """Raises StatementError for a query or a change of rows that MySQL's grammar does not have.

    Returns:
        Whether the statement is one of these, or makes a view or a table of a query.
    """
    reader = _Statement(sql, tokens)
    if reader.peek() == "CREATE":
        return reader.creation()
    if reader.peek() not in _STATEMENTS:
        return False
    reader.statement()
    return True


class _Statement(Expressions):
    def statement(self) -> None:
        if self.accept("WITH"):
            self._parts()
        read = _STATEMENTS.get(self.peek())
        if read is None:
            self.fail()
        read(self)
        self.end()

    def creation(self) -> bool:
        """Reads the query of CREATE VIEW and CREATE TABLE, if there is one behind AS; whether there is."""
        while self.peek() != ";":
            if self.accept("AS", ";"):
                self.fail()
            if self.accept("AS") and self.begins_query_in_brackets():
                self.query()
                if self.accept("WITH"):
                    self.accept_any(("CASCADED", "LOCAL"))
                    self.expect("CHECK", "OPTION")
                self.end()
                return True
            self.at += 1
        return False

    # --- queries ------------------------------------------------------------------------------------------

    def query(self) -> None:
        if self.accept("WITH"):
            self._parts()
        self._term()
        self.rest_of_query()

    def rest_of_query(self) -> None:
        while self.accept_any(_LISTED):
            self.accept_any(("DISTINCT", "ALL"))
            self._term()
        if self.accept("ORDER", "BY"):
            self.sort_keys()
        self._limit()
        self._locks()

    def _parts(self) -> None:
        self.accept("RECURSIVE")
        self.listed(self._part)

    def _part(self) -> None:
        self.name()
        if self.peek() == "(":
            self.names()
        self.expect("AS")
        self.expect("(")
        self.query()
        self.expect(")")

    def _term(self) -> None:
        if self.accept("SELECT"):
            self._select()
        elif self.accept("VALUES"):
            self.listed(self._value_row)
        elif self.accept("TABLE"):
            self.dotted(2)
        else:
            self.expect("(")
            self.query()
            self.expect(")")

    def _value_row(self) -> None:
        self.expect("ROW")
        self._cells()

    def _limit(self) -> None:
        if not self.accept("LIMIT"):
            return
        self.number()
        if self.accept_any((",", "OFFSET")):
            self.number()

    def _locks(self) -> None:
        while self.accept("LOCK", "IN"):
            self.expect("SHARE", "MODE")
        while self.accept("FOR"):
            self.expect_any(("UPDATE", "SHARE"))
            if self.accept("OF"):
                self.listed(lambda: self.dotted(2))
            if self.accept("SKIP"):
                self.expect("LOCKED")
            else:
                self.accept("NOWAIT")
        if self.accept("INTO"):
            self._into()

    def _into(self) -> None:
        """Behind INTO, which the emulation refuses: all up to the clause that follows."""
        while self.peek() not in ("FROM", ";", ")"):
            self.at += 1

    def _select(self) -> None:
        while self.accept_any(_OPTIONS):
            pass
        if self.accept("*"):
            while self.accept(","):
                self._column_shown()
        else:
            self.listed(self._column_shown)
        if self.accept("INTO"):
            self._into()
        if self.accept("FROM") and not self.accept("DUAL"):
            self._tables()
        self._where()
        if self.accept("GROUP", "BY"):
            self.listed(self.expression)
            if self.accept("WITH"):
                self.expect("ROLLUP")
        if self.accept("HAVING"):
            self.expression()
        if self.accept("WINDOW"):
            self.listed(self._named_window)

    def _where(self) -> None:
        if self.accept("WHERE"):
            self.expression()

    def _named_window(self) -> None:
        self.name()
        self.expect("AS")
        self.window()

    def _column_shown(self) -> None:
        if self._starred():
            return
        self.expression()
        if self.accept("AS"):
            if not self.accept_kind(_T.STRING):
                self.name()
        elif not self.accept_kind(_T.STRING) and self.peek() != "MEMBER":
            self.accept_name()

    def _starred(self) -> bool:
        """`t.*` or `d.t.*`"""
        dots = 2 if self.peek(3) == "." else 1
        if self.peek(1) != "." or self.peek(2 * dots) != "*":
            return False
        self.dotted(dots)
        self.at += 2
        return True

    # --- tables -------------------------------------------------------------------------------------------

    def _tables(self) -> None:
        self.listed(self._joined)

    def _joined(self) -> int:
        """A table and what is joined to it; how many tables."""
        self._table()
        return self._joins()

    def _joins(self) -> int:
        """What is joined to a table that has been read; how many tables with it."""
        waiting: list[bool] = []  # joins that may have ON or USING, and whether they must
        count = 1
        while True:
            if waiting and self.peek() == "ON" and self.peek(1) != "DUPLICATE":
                self.at += 1
                self.expression()
                waiting.pop()
            elif waiting and self.accept("USING"):
                self.names()
                waiting.pop()
            elif self.accept("NATURAL"):
                if self.accept_any(("LEFT", "RIGHT")):
                    self.accept("OUTER")
                else:
                    self.accept("INNER")
                self.expect("JOIN")
                self._table()
                count += 1
            elif self.accept("JOIN") or self.accept("STRAIGHT_JOIN") or self._inner():
                self._table()
                waiting.append(False)
                count += 1
            elif self.accept_any(("LEFT", "RIGHT")):
                self.accept("OUTER")
                self.expect("JOIN")
                self._table()
                waiting.append(True)
                count += 1
            else:
                break
        if any(waiting):
            self.fail()
        return count

    def _inner(self) -> bool:
        return self.accept("INNER", "JOIN") or self.accept("CROSS", "JOIN")

    def _table(self) -> None:
        if self.peek() == "(":
            if self._source_brackets():
                self._alias()
                if self.peek() == "(":
                    self.names()
            return
        if self.accept("LATERAL"):
            if not self._source_brackets():
                self.fail()
            self._alias()
            return
        if self.accept("JSON_TABLE"):  # which the emulation refuses
            self._brackets_of_any()
        else:
            self.dotted(2)
        self._alias()
        while self.accept_any(("USE", "IGNORE", "FORCE")):
            self._hint()

    def _source_brackets(self) -> bool:
        """What stands in brackets among tables: whether it is a query, and not tables."""
        self.expect("(")
        if self.begins_query():
            self.query()
            self.expect(")")
            return True
        count = 2
        if self.peek() != "(":
            count = self._joined() + 1
        elif self._source_brackets():
            if self.peek() in _LISTED or self.peek() in ("ORDER", "LIMIT", ")"):
                self.rest_of_query()
                self.expect(")")
                return True
            self._alias()
            count = self._joins()
        else:
            count = self._joins() + 1
        if self.accept(","):
            self._tables()
            count += 1
        if count < 2:  # a query with an alias, and nothing else
            self.fail()
        self.expect(")")
        return False

    def _brackets_of_any(self) -> None:
        depth = 0
        while self.peek() != ";":
            depth += {"(": 1, ")": -1}.get(self.peek(), 0)
            self.at += 1
            if not depth:
                return

    def _alias(self) -> None:
        if self.accept("AS"):
            self.name()
        else:
            self.accept_name()

    def _hint(self) -> None:
        self.expect_any(("INDEX", "KEY"))
        if self.accept("FOR") and not self.accept("JOIN"):
            self.expect_any(("ORDER", "GROUP"))
            self.expect("BY")
        self.expect("(")
        if self.peek() != ")":
            self.listed(self._key)
        self.expect(")")

    def _key(self) -> None:
        if not self.accept("PRIMARY"):
            self.name()

    # --- changes ------------------------------------------------------------------------------------------

    def _insert(self) -> None:
        self.at += 1
        self.accept_any(("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY"))
        self.accept("IGNORE")
        self.accept("INTO")
        self.dotted(2)
        if self.peek() == "(" and self.peek(1) not in ("SELECT", "WITH", "(", "VALUES", "TABLE"):
            self.at += 1
            if not self.accept(")"):
                self.listed(lambda: self.dotted(3))
                self.expect(")")
        if self.accept("SET"):
            self.listed(self._assignment)
        elif self.peek() == "VALUE" or (self.peek() == "VALUES" and self.peek(1) != "ROW"):
            self.at += 1
            self.listed(self._cells)
        else:
            self.query()
        if self.accept("AS"):
            self.name()
            if self.peek() == "(":
                self.names()
        if self.accept("ON"):
            self.expect("DUPLICATE", "KEY")
            self.expect("UPDATE")
            self.listed(self._assignment)

    def _cells(self) -> None:
        self.expect("(")
        if not self.accept(")"):
            self.listed(self._cell)
            self.expect(")")

    def _cell(self) -> None:
        if self.peek(1) == "(" or not self.accept("DEFAULT"):
            self.expression()

    def _assignment(self) -> None:
        self.dotted(3)
        if not self.accept("="):
            self.expect(":=")
        self._cell()

    def _update(self) -> None:
        self.at += 1
        self.accept("LOW_PRIORITY")
        self.accept("IGNORE")
        self._tables()
        self.expect("SET")
        self.listed(self._assignment)
        self._rest_of_change()

    def _delete(self) -> None:
        self.at += 1
        while self.accept_any(("LOW_PRIORITY", "QUICK", "IGNORE")):
            if self.peek() == "FROM":  # the parser would take the word for a table
                raise unsupported("DELETE with LOW_PRIORITY, QUICK or IGNORE")
        if self.accept("FROM"):
            self.listed(self._target)
            if self.accept("USING"):
                self._tables()
        else:
            self.listed(self._target)
            self.expect("FROM")
            self._tables()
        self._rest_of_change()

    def _target(self) -> None:
        self.dotted(2)
        if not self.accept(".", "*"):
            self._alias()

    def _rest_of_change(self) -> None:
        self._where()
        if self.accept("ORDER", "BY"):
            self.sort_keys()
        if self.accept("LIMIT"):
            self.number()


_STATEMENTS = {
    **dict.fromkeys(("SELECT", "WITH", "(", "VALUES", "TABLE"), _Statement.query),
    **dict.fromkeys(("INSERT", "REPLACE"), _Statement._insert),
    "UPDATE": _Statement._update,
    "DELETE": _Statement._delete,
}
"""The statements that are read, by their first word."""
