"""Statements out of the text of a dump, which is read in pieces.

No more than one statement is in memory, and of an INSERT no more than some of its rows.
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
"""Characters that are read at a time."""

MAX_BEGINNING_CHARACTERS = 1 << 16
"""Characters of a comment between statements, and of an INSERT up to VALUES."""

MAX_TEXT_CHARACTERS = 1 << 26
"""Characters of a row, a text or a comment; more than any server takes at once."""

MAX_INSERT_CHARACTERS = 100_000
"""Characters of rows sent together: our servers take 320 KiB, and a character has up to four bytes."""

# Groups with a lookahead are repeated by + and *, never by ++ and *+: Python before 3.11.5 gets those wrong.
_GAP = re.compile(
    # the last: what the program says of a password, by `mysqldump ... > dump.sql 2>&1`
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
_ROUTINE = re.compile(
    r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:DEFINER\s*=\s*\S+\s+)?(?:AGGREGATE\s+)?(?:TRIGGER|PROCEDURE|FUNCTION|EVENT)\b",
    re.IGNORECASE,
)
_BLOCKS = ("IF", "LOOP", "WHILE", "REPEAT")
_BEFORE_STATEMENTS = (";", ":", "BEGIN", "THEN", "ELSE", "DO", "LOOP", "REPEAT", "ROW")
"""Words behind which IF and REPEAT begin a block; elsewhere they are functions."""

_NAME = r"(?:`(?:[^`]|``)+`|[A-Za-z0-9_$\x80-\U0010ffff]+)"
_VALUE = r"""(?:
      0x[0-9A-Fa-f]++ | 0b[01]++ | [+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+
    | NULL | TRUE | FALSE | DEFAULT
    | (?:_[a-z0-9]+[ ]?|[xXbBnN])?(?:'(?:[^'\\]++|\\.|'')*+'|"(?:[^"\\]++|\\.|"")*+")
    | _binary[ ]0x[0-9A-Fa-f]++ | UNHEX\('[0-9A-Fa-f]*+'\) | CONV\('[01]*+',[ ]2,[ ]10\)[ ]\+[ ]0
    )"""
_INSERT = re.compile(
    rf"(?P<verb>INSERT|REPLACE)(?:\s+(?:(?P<ignore>IGNORE)|DELAYED|LOW_PRIORITY))*\s+(?:INTO\s+)?"
    rf"(?P<table>{_NAME}(?:\s*\.\s*{_NAME})?)\s*(?P<columns>\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?\s*VALUES?\b",
    re.IGNORECASE,
)
_ROW_GAP = r"(?:\s++|--(?=\s)[^\n]*+\n?|\#[^\n]*+\n?|/\*(?!M?!)(?s:.*?)\*/|/\*M?!\d*+|\*/)"
"""White space, comments, and the marks around what servers execute of one."""

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
    """Some rows of an INSERT, each as it is written between its parentheses.

    `ignores`: a row whose key is there already is skipped. `unread`: why the rows that follow are not read.
    """

    verb: str
    table: str
    columns: str
    rows: list[str]
    ignores: bool = False
    unread: str | None = None


class Word(NamedTuple):
    """A part of a statement: its kind (as in `sql.lexemes`), its text, and whether a space is before it."""

    kind: str
    text: str
    spaced: bool

    @property
    def upper(self) -> str:
        """The text, in capitals if it is a bare word, so that no quoted one equals a keyword."""
        return self.text.upper() if self.kind == "word" else self.text


def read_dump(
    file: IO[str], first_rows: int | None = None, only: Collection[str] = (), strict: bool = True
) -> Iterator[str | Rows]:
    """The statements of a dump. What a server would execute of a comment is part of its statement.

    Args:
        file: opened as UTF-8 with `errors="surrogateescape"` and `newline=""`.
        first_rows: rows read of each INSERT, the others are skipped; all if left out.
        only: reads no INSERT into other tables than these; into all, if there are none.
        strict: an INSERT with anything but values is an error; else its rows say that they are unread.

    Raises:
        TaskError: an INSERT has anything but values in its rows, or the file ends in a statement.
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
            if delimiter == ";" and _ROUTINE.match(statement):
                statement += _rest_of_body(text, statement)
            yield statement


def _rest_of_body(text: _Text, begun: str) -> str:
    """Return what follows of a routine whose body has semicolons of its own; TaskError if it has no END."""
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
    """Return how many blocks of a routine's body a part of it begins, less those that it ends."""
    depth = 0
    for before, word in pairwise([";", *(word.upper for word in words_of(part))]):
        if word == "END":
            depth -= 1
        elif before not in ("END", ".") and (
            word in ("BEGIN", "CASE") or (word in _BLOCKS and before in _BEFORE_STATEMENTS)
        ):
            depth += 1
    return depth


def cells(row: str) -> list[str]:
    """The cells of a row of `Rows`, as they are written."""
    return [match["cell"] for match in _CELL.finditer(row) if match["cell"]]


def shown_name(written: str) -> str:
    """A name without its quotes."""
    return written[1:-1].replace("``", "`") if written.startswith("`") else written


def unescaped(written: str) -> str:
    """Return the value of a quoted text or of hexadecimal or binary digits; another cell as it is.

    Raises UnicodeDecodeError if bytes are not UTF-8.
    """
    if (held := bytes_of(written)) is not None:
        return held.decode()
    body = re.sub(r"^(?:_[a-z0-9]+ ?|n(?='))", "", written, flags=re.IGNORECASE)
    if body[:1] not in ("'", '"'):
        return body
    return _between_quotes(body[1:-1], body[0])


def _between_quotes(text: str, quote: str) -> str:
    """Return what a text between quotes stands for; MySQL keeps both characters of `\\%` and `\\_`."""

    def meant(found: re.Match[str]) -> str:
        letter = found[1]
        if letter is None:
            return quote
        return found[0] if letter in "%_" else _ESCAPED.get(letter, letter)

    return re.sub(rf"\\(.)|{quote * 2}", meant, text, flags=re.DOTALL)


def bytes_of(written: str) -> bytes | None:
    """The bytes of a cell that is written in hexadecimal or binary digits, `None` for another."""
    found = _DIGITS.fullmatch(written)
    if found is None:
        return None
    if (digits := found["hex"] or found["more"]) is not None:
        return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
    digits = found["bits"] or found["other"] or "0"
    return int(digits, 2).to_bytes((len(digits) + 7) // 8, "big")


def words_of(statement: str) -> list[Word]:
    """The parts of a statement without comments, and without the marks around what servers execute of one."""
    words = []
    spaced = False
    for kind, text in lexemes(statement):
        if kind in ("gap", "executed"):
            spaced = True
        else:
            words.append(Word(kind, text, spaced))
            spaced = False
    return words


def joined(words: Sequence[Word]) -> str:
    """The text of these parts of a statement."""
    return "".join(f" {word.text}" if word.spaced else word.text for word in words).strip()


@contextmanager
def open_dump(path: Path) -> Iterator[IO[str]]:
    """A dump as text: of UTF-8, or of UTF-16 with its mark as PowerShell writes it; `.gz` is unpacked."""
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
    """The rest of a file. In memory is only what the last pattern needed."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._kept = file.read(PIECE)
        self._place = 0
        self._ended = False
        if self._kept.startswith("\ufeff"):
            self._place = 1

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return what stands here, if the pattern matches it."""
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
        last = row["end"] != ","  # the end of the file ends a statement too
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
    """The text of a statement up to its end, without that."""
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
    """A text that is not UTF-8 as hexadecimal digits: a column of bytes takes them, one of text does not."""
    if not _SURROGATE.search(match[1]):
        return match[0]
    plain = _between_quotes(match[1], quote="'")
    return f"0x{plain.encode('utf-8', 'surrogateescape').hex()}"
