"""Fourteen themes of generated tables, each with names, columns and sources of values.

The values are chosen so that MySQL, MariaDB and SQLite agree on them: floats have an exact binary value, and
dates lie within four years. `tables.py` makes the texts of one column differ in more than accents.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trl_dbbench.tasks import Cell

Values = Callable[[random.Random], Cell]


def words(text: str) -> list[str]:
    """Split a text at its commas."""
    return [each.strip() for each in text.split(",") if each.strip()]


FIRST = words(
    """
    Amara, Bruno, Chiara, Dmitri, Elif, Farid, Greta, Hiro, Inês, José, Klára, Liam, Mónica, Nadia, Oscar,
    Priya, Quentin, Rosa, Siobhán, Tomás, Ursula, Viktor, Wanda, Yusuf, Zoë, André, Björn, Celia, Dario,
    Elena, Frida, Gustav, Hannah, Ivan, Jonas, Karin, Lucía, Malik, Noor, Olga
    """
)
LAST = words(
    """
    Osei, Keller, Rossi, Volkov, Demir, Haddad, Lindqvist, Tanaka, Costa, Muñoz, Novák, O'Neill, Pérez,
    Sharma, Wilde, Dubois, Santos, Murphy, Silva, Weber, Petrov, Nowak, Yildiz, Okafor, D'Angelo,
    Strömberg, Jensen, Marino, Adeyemi, Kaya, Larsen, Moreau, Bianchi, Fischer, Horváth, Castro, Mbeki,
    Suzuki, Hughes, Brandt
    """
)
CITIES = words(
    """
    Oslo, Lisbon, Kraków, Nairobi, Quito, Osaka, Leeds, Porto, Zürich, Lagos, Turin, Malmö, Boston, Lima,
    Hanoi, Seville, Ghent, Tampere, Cardiff, Bogotá
    """
)
NOTES = words(
    """
    deliver after 5 pm, gift wrap, same as last time, marked "fragile", can't be reached by phone,
    paid in cash, waiting for approval, see Zoë's letter, first visit, déjà vu, label reads "urgent",
    don't bend, keep cool, returned once
    """
)
_LISTS = {"FIRST": FIRST, "LAST": LAST, "CITIES": CITIES, "NOTES": NOTES}

_STEPS = {"count": 1, "money": 20, "rate": 4}
"""Role -> number of steps in a unit: its values are multiples of 1 / steps."""


@dataclass(frozen=True)
class Field:
    """A column of a theme. `role` says what a question may do with it.

    - `key`: a text that tells the rows apart, or nearly so; `category`: a text that many rows share;
      `note`: a text that many rows lack;
    - `id`, `count` (INT), `money` (DECIMAL), `rate` (FLOAT), `day` (DATE).
    """

    names: tuple[str, ...]
    role: str
    values: Values
    nullable: bool = False


@dataclass(frozen=True)
class Theme:
    """A theme of tables: possible names, the noun for its rows, possible columns."""

    tables: tuple[str, ...]
    rows: str
    fields: tuple[Field, ...]


def random_day(rng: random.Random) -> str:
    return str(datetime.date(2021, 1, 1) + datetime.timedelta(rng.randrange(1400)))


def _read(text: str) -> Iterator[Theme]:
    """Yield the themes in a text, separated by empty lines.

    The first line has the names of the table and the noun for its rows. A line for each column follows: its
    names, its role, with a `?` if it may be NULL, and its values. These are bounds, or a list of words; with
    two lists, a value joins a word of each. A `code` is a key with three digits after the word.
    """
    for entry in text.strip().split("\n\n"):
        head, *columns = entry.splitlines()
        tables, _, rows = head.partition(": ")
        yield Theme(tuple(words(tables)), rows, tuple(map(_field, columns)))


def _field(line: str) -> Field:
    names, _, rest = line.partition(": ")
    role, _, values = rest.partition(" ")
    kind = role.removesuffix("?")
    return Field(tuple(words(names)), "key" if kind == "code" else kind, _values(kind, values), kind != role)


def _values(kind: str, text: str) -> Values:
    if kind == "day":
        return random_day
    if step := _STEPS.get(kind):
        low, high = (int(bound) * step for bound in text.split(" to "))
        return lambda rng: rng.randint(low, high) if kind == "count" else rng.randint(low, high) / step
    lists = [_LISTS.get(part) or words(part) for part in text.split(" / ")]
    if kind == "code":
        return lambda rng: f"{rng.choice(lists[0])}{rng.randint(100, 999)}"
    return lambda rng: " ".join(map(rng.choice, lists))


THEMES = tuple(_read(Path(__file__).with_name("themes.txt").read_text(encoding="utf-8")))
