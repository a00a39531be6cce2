"""Split the text of a dump into statements.

The file is read in pieces. At most one statement is in memory, and of an INSERT only some rows at a time.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

from trl_dbbench.errors import TaskError
from trl_dbbench.utils.sql import lexemes

PIECE = 1 << 20
"""Characters read at a time."""

MAX_BEGINNING_CHARACTERS = 1 << 16
"""Most characters of a comment between statements, and of an INSERT up to VALUES."""

MAX_TEXT_CHARACTERS = 1 << 26
"""Most characters of a row, a text or a comment; more than any server accepts."""

MAX_INSERT_CHARACTERS = 100_000
"""Characters of rows after which a statement is sent: our servers accept 320 KiB, and a character takes up to
four bytes."""

# Groups with a lookahead are repeated with + and *, not ++ and *+, which are broken before Python 3.11.5.
_GAP = re.compile(
    # the last: warnings of the program about passwords, from `mysqldump ... > dump.sql 2>&1`
    r"(?:\s++|--(?=[\s]|\Z)[^\n]*+\n?|\#[^\n]*+\n?|/\*(?!M?!(?!999999)).*?\*/"
    r"|(?:mysqldump|mysqlpump|mariadb-dump|Warning):[^\n]*+\n?)+",
    re.DOTALL,
)
_DELIMITER = re.compile(r"DELIMITER[ \t]+(\S+)[^\n]*\n?", re.IGNORECASE)
_QUOTED = r"""'(?:[^'\\]++|\\.|'')*+'|"(?:[^"\\]++|\\.|"")*+"|`[^`]*+`"""
_COMMENT = (
    r"--(?=\s)[^\n]*+(?:\n|\Z)|\#[^\n]*+(?:\n|\Z)|/\*(?!M?!).*?\*/"
    rf"|/\*M?!(?:{_QUOTED}|[^'\"`*]++|\*(?!/))*\*/"
)
_KINDS_OF_ROUTINES = "TRIGGER|PROCEDURE|FUNCTION|EVENT"
_PERHAPS_A_ROUTINE = re.compile(_KINDS_OF_ROUTINES, re.IGNORECASE)
_ROUTINE = re.compile(
    r"CREATE (?:OR REPLACE )?(?:DEFINER = \S+ (?:\( \) )?(?:@ \S+ (?:[.-] \S+ )*)?)?(?:AGGREGATE )?"
    rf"(?:{_KINDS_OF_ROUTINES}) "
)
"""Beginning of a routine, for tokens in upper case with a blank between them."""

_BEGINNING_CHARACTERS = 4096
"""Characters of a statement in which `_ROUTINE` is searched."""

_BLOCKS = ("CASE", "FOR", "IF", "LOOP", "REPEAT", "WHILE")
_BEFORE_STATEMENTS = (";", ":", "BEGIN", "THEN", "ELSE", "DO", "LOOP", "REPEAT", "ROW")
"""Words after which `_BLOCKS` begin a block. Elsewhere IF and REPEAT are functions; CASE is an expression."""

_NAME = r"(?:`(?:[^`]|``)+`|[A-Za-z0-9_$\x80-\U0010ffff]+)"
_VALUE = r"""(?:
      0x[0-9A-Fa-f]++ | 0b[01]++ | [+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+
    | NULL | TRUE | FALSE | DEFAULT
    | (?:_[a-z0-9]+[ ]?|[xXbBnN])?(?:'(?:[^'\\]++|\\.|'')*+'|"(?:[^"\\]++|\\.|"")*+")
    | _binary[ ]0x[0-9A-Fa-f]++ | UNHEX\('[0-9A-Fa-f]*+'\) | CONV\('[01]*+',[ ]2,[ ]10\)[ ]\+[ ]0
    | (?:ST_)?Geom(?:etry)?FromText\('[^'\\]*+'(?:,[ ]?\d++)?+\)
    )"""
_INSERT = re.compile(
    rf"(?P<verb>INSERT|REPLACE)(?:\s+(?:(?P<ignore>IGNORE)|DELAYED|LOW_PRIORITY))*\s+(?:INTO\s+)?"
    rf"(?P<table>{_NAME}(?:\s*\.\s*{_NAME})?)\s*(?P<columns>\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?\s*VALUES?\b",
    re.IGNORECASE,
)
_ROW_GAP = r"(?:\s++|--(?=\s)[^\n]*+\n?|\#[^\n]*+\n?|/\*(?!M?!)(?s:.*?)\*/|/\*M?!\d*+|\*/)"
"""White space, comments, and the marks around the executed part of a comment."""

_ROW = re.compile(
    rf"{_ROW_GAP}*\({_ROW_GAP}*(?P<cells>{_VALUE}(?:{_ROW_GAP}*,{_ROW_GAP}*{_VALUE})*){_ROW_GAP}*\)"
    rf"{_ROW_GAP}*(?P<end>[,;]|\Z)",
    re.IGNORECASE | re.VERBOSE,
)
_CELL = re.compile(rf"{_ROW_GAP}|(?P<cell>{_VALUE})", re.IGNORECASE | re.VERBOSE)
_COMMENT_SIGNS = ("/*", "--", "#", "*/")
_SURROGATE = re.compile("[\udc80-\udcff]")
_TEXT = re.compile(r"(?:_[a-z0-9]+ ?)?'((?:[^'\\]++|\\.|'')*+)'", re.DOTALL | re.IGNORECASE)
_DIGITS = re.compile(
    r"(?:_\w+ ?)?(?:0x(?P<hex>[0-9a-f]+)|0b(?P<bits>[01]+)|(?:x|unhex\()'(?P<more>[0-9a-f]*)'\)?"
    r"|(?:b|conv\()'(?P<other>[01]*)'(?:, 2, 10\) \+ 0)?)",
    re.IGNORECASE,
)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of an INSERT, each as the text between its parentheses.

    `ignores`: rows with an existing key are skipped. `unread`: the reason why the rows after these are not
    read.
    """

    verb: str
    table: str
    columns: str
    rows: list[str]
    ignores: bool = False
    unread: str | None = None


class Word(NamedTuple):
    """A token of a statement: its kind (as in `sql.lexemes`), its text, and whether a space precedes it."""

    kind: str
    text: str
    spaced: bool

    @property
    def upper(self) -> str:
        """The text, in upper case if it is not quoted, so that only unquoted words equal keywords."""
        return self.text.upper() if self.kind == "word" else self.text


def read_dump(
    file: IO[str], first_rows: int | None = None, only: Collection[str] = (), strict: bool = True
) -> Iterator[str | Rows]:
    """Yield the statements of a dump, including the parts of comments that servers execute.

    Args:
        file: opened as UTF-8 with `errors="surrogateescape"` and `newline=""`.
        first_rows: rows to read of each INSERT; the others are skipped. Default: all.
        only: tables whose INSERTs are read. Default: all.
        strict: raise an error for an INSERT with anything but values. Otherwise its `Rows` have `unread` set.

    Raises:
        TaskError: an INSERT has anything but values in its rows, or the file ends within a statement.
    """
    text = _Text(file)
    delimiter = ";"
    while True:
        text.take(_GAP)
        if text.at_end():
            return
        if found := text.take(_DELIMITER):
            delimiter = found[1]
        elif delimiter == ";" and (found := text.take(_INSERT)):
            if not only or shown_name(found["table"]) in only:
                yield from _rows(text, found, first_rows, strict)
            else:
                _skip(text)
        elif statement := "".join(_parts(text, delimiter)).strip():
            if delimiter == ";" and _begins_routine(statement[:_BEGINNING_CHARACTERS]):
                statement += _rest_of_body(text, statement)
            yield statement


def _begins_routine(statement: str) -> bool:
    """Return whether a statement makes a routine. Most name none, and are not split into words for this."""
    return bool(_PERHAPS_A_ROUTINE.search(statement) and _ROUTINE.match(bare_text(statement)))


def _rest_of_body(text: _Text, begun: str) -> str:
    """Read the rest of a routine whose body contains semicolons; raise TaskError if its END is missing."""
    depth = _blocks_opened(begun)
    rest = ""
    while depth > 0:
        if text.at_end():
            raise TaskError(f"the body of {begun[:60]!r} has no END: the dump is cut off.")
        part = "".join(_parts(text, ";"))
        depth += _blocks_opened(part)
        rest += f";{part}"
    return rest


def _blocks_opened(part: str) -> int:
    """Return the number of blocks that a part of a routine begins, minus those that it ends."""
    depth = in_case = 0
    for before, word in pairwise([";", *(word.upper for word in words_of(part))]):
        begins = before in _BEFORE_STATEMENTS
        if before in (".", "@"):  # a name, such as NEW.end
            continue
        if in_case or (word == "CASE" and not begins and before != "END"):
            in_case += (word == "CASE") - (word == "END")
        elif word in ("END", "UNTIL"):  # elsewhere END is a name, or stands behind UNTIL
            depth -= before in (";", "BEGIN")
        elif (word == "BEGIN" and before not in ("END", "(", ",")) or (word in _BLOCKS and begins):
            depth += 1
    return depth + in_case  # an expression ends before the semicolon, so these are statements


def cells(row: str) -> list[str]:
    """Return the cells of a row of `Rows`, as written."""
    return [match["cell"] for match in _CELL.finditer(row) if match["cell"]]


def shown_name(written: str) -> str:
    """Return a name without its quotes."""
    return written[1:-1].replace("``", "`") if written.startswith("`") else written


def unescaped(written: str) -> str:
    """Return the value of a quoted text or of hexadecimal or binary digits; other cells unchanged.

    Raises UnicodeDecodeError if the bytes are not UTF-8.
    """
    if (held := bytes_of(written)) is not None:
        return held.decode()
    body = re.sub(r"^(?:_[a-z0-9]+ ?|n(?='))", "", written, flags=re.IGNORECASE)
    if body[:1] not in ("'", '"'):
        return body
    return _between_quotes(body[1:-1], body[0])


def _between_quotes(text: str, quote: str) -> str:
    """Return the value of a text between quotes. MySQL keeps both characters of `\\%` and `\\_`."""

    def meant(found: re.Match[str]) -> str:
        letter = found[1]
        if letter is None:
            return quote
        return found[0] if letter in "%_" else _ESCAPED.get(letter, letter)

    return re.sub(rf"\\(.)|{quote * 2}", meant, text, flags=re.DOTALL)


def bytes_of(written: str) -> bytes | None:
    """Return the bytes of a cell in hexadecimal or binary digits; `None` for another cell."""
    found = _DIGITS.fullmatch(written)
    if found is None:
        return None
    if (digits := found["hex"] or found["more"]) is not None:
        return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
    digits = found["bits"] or found["other"] or "0"
    return int(digits, 2).to_bytes((len(digits) + 7) // 8, "big")


def words_of(statement: str) -> list[Word]:
    """Return the tokens of a statement, without comments and the marks around executed parts of comments."""
    words = []
    spaced = False
    for kind, text in lexemes(statement):
        if kind in ("gap", "executed"):
            spaced = True
        else:
            words.append(Word(kind, text, spaced))
            spaced = False
    return words


def bare_text(statement: str) -> str:
    """Return the tokens of a statement in upper case with a blank between them, and `'` for quoted ones."""
    return " ".join(word.upper if word.kind in ("word", "sign") else "'" for word in words_of(statement))


def joined(words: Sequence[Word]) -> str:
    """Return the text of these tokens."""
    return "".join(f" {word.text}" if word.spaced else word.text for word in words).strip()


@contextmanager
def open_dump(path: Path) -> Iterator[IO[str]]:
    """Open a dump as text: UTF-8, or UTF-16 with a byte-order mark as by PowerShell. `.gz` is unpacked."""
    unpack: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with unpack(path, "rb") as file:
            mark = file.read(2)
        wide = mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding, errors = ("utf-16", "strict") if wide else ("utf-8", "surrogateescape")
        with unpack(path, "rt", encoding=encoding, errors=errors, newline="") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TaskError(f"it cannot be unpacked: {error}") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"it is not text in {encoding}: {error}") from None


class _Text:
    """The unread rest of a file. Only as much is in memory as the last pattern needed."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._kept = file.read(PIECE)
        self._place = 0
        self._ended = False
        if self._kept.startswith("\ufeff"):
            self._place = 1

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match the pattern at the current position and, if it matches, move behind the match."""
        while True:
            match = pattern.match(self._kept, self._place)
            if self._ended or (match is not None and match.end() < len(self._kept)):
                break
            begins = pattern in (_GAP, _DELIMITER, _INSERT)
            longest = MAX_BEGINNING_CHARACTERS if begins else MAX_TEXT_CHARACTERS
            if match is None and len(self._kept) - self._place >= longest:
                break
            self._read_more()
        if match is not None:
            self._place = match.end()
        return match

    def at_end(self) -> bool:
        while self._place == len(self._kept) and not self._ended:
            self._read_more()
        return self._place == len(self._kept)

    def here(self) -> str:
        return self._kept[self._place : self._place + 80].partition("\n")[0]

    def _read_more(self) -> None:
        more = self._file.read(max(PIECE, len(self._kept) - self._place))
        self._ended = not more
        self._kept = self._kept[self._place :] + more
        self._place = 0


def _rows(text: _Text, insert: re.Match[str], wanted: int | None, strict: bool) -> Iterator[Rows]:
    verb, table, columns = insert["verb"].upper(), insert["table"], insert["columns"] or ""
    ignores = insert["ignore"] is not None
    rows: list[str] = []
    size = 0
    while True:
        row = text.take(_ROW)
        if row is None:
            text.take(_GAP)
            what = f"something else than values at {text.here()!r}"
            unread = f"an INSERT into {table} has {'no end: the dump is cut off' if text.at_end() else what}"
            if strict:
                raise TaskError(
                    f"{unread}. Rows of a dump are numbers, texts and NULL, as mysqldump writes them, and a "
                    "semicolon ends each statement."
                )
            yield Rows(verb, table, columns, rows, ignores, unread)
            _skip(text)
            return
        written = row["cells"]
        if any(sign in written for sign in _COMMENT_SIGNS):
            written = ", ".join(cells(written))
        if not written.isascii() and _SURROGATE.search(written):
            written = _TEXT.sub(_in_digits, written)
        rows.append(written)
        size += len(written)
        enough = len(rows) == wanted
        last = row["end"] != ","  # the end of the file also ends a statement
        if size > MAX_INSERT_CHARACTERS or enough or last:
            yield Rows(verb, table, columns, rows, ignores)
            rows, size = [], 0
        if last:
            return
        if enough:
            _skip(text)
            return


def _skip(text: _Text) -> None:
    for _ in _parts(text, ";"):
        pass


def _parts(text: _Text, delimiter: str) -> Iterator[str]:
    """Yield the text of a statement in parts, without the delimiter that ends it."""
    end = re.escape(delimiter)
    first = re.escape(delimiter[0])
    plain = rf"[^'\"`#/\-{first}]++|(?!{end})(?:/(?!\*)|-(?!-\s)|(?![#'\"`/-]){first})"
    part = re.compile(rf"(?P<end>{end})|(?:(?!{end})(?:{_QUOTED}|{_COMMENT}|{plain}))+", re.DOTALL)
    while not text.at_end():
        match = text.take(part)
        if match is None:
            raise TaskError(f"what begins at {text.here()!r} has no end: the dump is cut off.")
        if match["end"]:
            return
        yield match[0]


def _in_digits(match: re.Match[str]) -> str:
    """Return a text that is not UTF-8 as hexadecimal digits: only columns of bytes accept them."""
    if not _SURROGATE.search(match[1]):
        return match[0]
    plain = _between_quotes(match[1], quote="'")
    return f"0x{plain.encode('utf-8', 'surrogateescape').hex()}"
