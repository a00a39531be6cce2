"""Character sets and bytes in statements. Texts are UTF-8 here, and other sets are refused."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from trl_dbbench.mysqlite.coercions import call
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.kinds import kind_of, words

_WHOLE, _NARROW = words("utf8mb4"), words("utf8 utf8mb3")
_OTHERS = words(
    """
    armscii8 ascii big5 binary cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 cp932 dec8 eucjpms euckr gb18030
    gb2312 gbk geostd8 greek hebrew hp8 keybcs2 koi8r koi8u latin1 latin2 latin5 latin7 macce macroman sjis
    swe7 tis620 ucs2 ujis utf16 utf16le utf32
    """
)


def check_charsets(tree: exp.Expr) -> None:
    """Raises StatementError for a character set that does not exist, or in which texts are not held here."""
    for node in tree.find_all(exp.Chr, exp.DataType, exp.Introducer):
        named = node.args.get("charset" if isinstance(node, exp.Chr) else "kind")
        name = named.name if isinstance(named, exp.Var) else ""
        if isinstance(node, exp.Introducer):
            name = str(node.this).removeprefix("_")
        if name.lower() in _OTHERS:
            raise unsupported(f"the character set {name}")
        if name and name.lower() not in _WHOLE | _NARROW:
            raise StatementError(1115, f"Unknown character set: '{name}'")


def in_charset(node: exp.Expr, charset: str) -> exp.Expr:
    """A text of this character set, which is one of those for UTF-8."""
    return call("NARROW", node) if charset.lower() in _NARROW else node


def _introduced(node: exp.Expr) -> exp.Expr:
    """A text behind the name of a character set, such as `_latin1'a'`."""
    if not isinstance(node.expression, exp.Literal):
        raise unsupported("bytes behind the name of a character set")
    return node.expression


def _bytes(node: exp.Expr) -> exp.Expr:
    """Bytes such as 0x41, where they are shown. In other places they may be a number or a text to MySQL."""
    above = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    if isinstance(above, exp.Chr):
        return exp.Literal.number(int(node.name, 16))
    shown = isinstance(above, exp.Select) and not isinstance(above.parent, exp.SetOperation)
    separates = isinstance(above, exp.GroupConcat) and node.arg_key == "separator"
    if shown or separates or (isinstance(above, exp.Anonymous) and above.name.upper() == "HEX"):
        return node
    raise unsupported("bytes in an expression")


def _bits(node: exp.Expr) -> exp.Expr:
    raise unsupported("bits as bytes")


CHARSETS: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    exp.Introducer: _introduced,
    exp.HexString: _bytes,
    exp.BitString: _bits,
}
"""The rules of `rules` for them."""


def is_of_null(node: exp.Expr) -> bool:
    """Whether it is a function of texts whose text is NULL. In MySQL it has no character set."""
    if kind_of(node).name != "text" or not isinstance(node, exp.Func):
        return False
    texts = [node.this]
    if not isinstance(node.this, exp.Expr) and node.expressions:
        texts = node.expressions[1:] if str(node.this).upper() in ("ELT", "MY_ELT") else node.expressions[:1]
    return all(
        isinstance(each, exp.Null) or (isinstance(each, exp.Func) and is_of_null(each)) for each in texts
    )
