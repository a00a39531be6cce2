"""Schemas of several tables that are linked by keys, and rows for them.

A schema is a list of entities, written as text (`read_schemas`). The first column of each table is its key, named
after the entity; a column of the same name in another table refers to it, so a prompt's column names tell how
tables are joined. The rows are made so that joins matter: some rows have no partner, others several.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trl_dbbench.data.generate.themes import random_day, words
from trl_dbbench.tasks import Cell, Column, Table


@dataclass(frozen=True)
class Field:
    """A column that is not a key: `name` tells the rows of its table apart, `kind` is shared by some, `number`
    and `day` can be compared."""

    name: str
    role: str
    words: tuple[str, ...] = ()
    low: int = 0
    high: int = 0

    @property
    def type(self) -> str:
        return {"number": "INT", "money": "DECIMAL(8,2)", "day": "DATE"}.get(self.role, "VARCHAR(60)")

    def cells(self, rng: random.Random, size: int) -> list[Cell]:
        if self.role == "name":
            return list(rng.sample(self.words, size))
        if self.role == "kind":
            few = rng.sample(self.words, min(len(self.words), rng.randint(2, 4)))
            return [rng.choice(few) for _ in range(size)]
        if self.role == "number":
            return list(rng.sample(range(self.low, self.high + 1), size))
        if self.role == "money":
            return [each / 4 for each in rng.sample(range(4 * self.low, 4 * self.high + 1), size)]
        return [random_day(rng) for _ in range(size)]


@dataclass(frozen=True)
class Entity:
    """A table to be.

    Args:
        table: its name, the plural of `noun`.
        parents: nouns of the entities that each row belongs to.
        superior: what the row that a row refers to in its own table is called: `manager`.
    """

    table: str
    noun: str
    fields: tuple[Field, ...]
    parents: tuple[str, ...] = ()
    superior: str = ""

    @property
    def key(self) -> str:
        return f"{self.noun}_id"


@dataclass(frozen=True)
class World:
    """The tables of a task; `table` is the first one, which the split goes by."""

    entities: tuple[Entity, ...]
    tables: tuple[Table, ...]

    @property
    def table(self) -> Table:
        return self.tables[0]


def make_world(
    rng: random.Random,
    schemas: Sequence[Sequence[Entity]],
    most_tables: int,
    rows: tuple[int, int],
    most_id: int,
) -> World:
    """Two to `most_tables` tables of one schema; each table that a column refers to is among them."""
    schema = rng.choice(schemas)
    by_noun = {entity.noun: entity for entity in schema}

    def with_parents(entity: Entity) -> set[str]:
        return {entity.noun}.union(*(with_parents(by_noun[parent]) for parent in entity.parents))

    wanted = rng.randint(2, most_tables)
    chosen: set[str] = set()
    for entity in rng.sample(
        [each for each in schema if each.parents], sum(bool(each.parents) for each in schema)
    ):
        more = chosen | with_parents(entity)
        if not chosen or len(more) <= wanted:
            chosen = more
    entities = [entity for entity in schema if entity.noun in chosen]
    made: dict[str, Table] = {}
    for entity in entities:  # parents come first in a schema
        # children are more numerous than parents
        size = rng.randint((rows[0] + rows[1]) // 2 if entity.parents else rows[0], rows[1])
        made[entity.noun] = _rows(rng, entity, made, size, most_id)
    rng.shuffle(entities)
    return World(tuple(entities), tuple(made[entity.noun] for entity in entities))


def _rows(rng: random.Random, entity: Entity, made: dict[str, Table], size: int, most_id: int) -> Table:
    ids = rng.sample(range(1, most_id + 1), size)
    columns: list[tuple[Column, list[Any]]] = [(Column(entity.key, "INT"), ids)]
    columns += [
        (Column(f"{parent}_id", "INT"), _references(rng, made[parent], size)) for parent in entity.parents
    ]
    columns += [(Column(field.name, field.type), field.cells(rng, size)) for field in entity.fields]
    if entity.superior:  # a hierarchy: each refers to one of those before it, the first to none
        above: list[Any] = [None, *(rng.choice(ids[:place]) for place in range(1, size))]
        columns.append((Column(f"{entity.superior}_id", "INT"), above))
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    rng.shuffle(rows)
    return Table(entity.table, tuple(column for column, _ in columns), tuple(rows))


def _references(rng: random.Random, parent: Table, size: int) -> list[Any]:
    """Keys of a part of the parent's rows, so that some have no partner and others several."""
    ids = [row[0] for row in parent.rows]
    some = rng.sample(ids, rng.randint(2, max(2, len(ids) - 1)))
    return [rng.choice(some) for _ in range(size)]


# --- what the tables are of -----------------------------------------------------------------------

_LISTS = {
    "PEOPLE": """Alma Frank, Bruno Keller, Carla Rossi, Dora Silva, Emil Larsen, Farid Haddad, Greta Weber,
        Hiro Tanaka, Ivan Petrov, Jonas Brandt, Karin Nowak, Liam Murphy, Malik Okafor, Nadia Costa, Oscar Marino,
        Priya Sharma, Rosa Castro, Selma Kaya, Tomas Novak, Wanda Fischer""",
    "CITIES": "Oslo, Lisbon, Nairobi, Quito, Osaka, Porto, Turin, Boston, Lima, Hanoi",
    "NAMES": """ann, ben, carl, dora, emil, finn, gina, hugo, ida, jack, kim, leo, mia, nora, olaf, pia, rosa, sam,
        tina, zoe""",
}


def read_schemas(text: str) -> tuple[tuple[Entity, ...], ...]:
    """Return the schemas in a text, with an empty line between two. An entity comes after its parents.

    `books: book of author below editor` is the table of books; each belongs to an author and may refer to
    another book, its editor. Its columns follow, each with its role and its words or bounds.
    """
    return tuple(tuple(_entities(schema)) for schema in text.strip().split("\n\n"))


def _entities(schema: str) -> Iterator[Entity]:
    for entry in re.split(r"\n(?! )", schema):
        head, *columns = entry.splitlines()
        found = re.fullmatch(r"(\w+): (\w+)(?: of ([\w, ]+?))?(?: below (\w+))?", head)
        assert found is not None, head
        table, noun, parents, superior = found.groups()
        yield Entity(table, noun, tuple(map(_field, columns)), tuple(words(parents or "")), superior or "")


def _field(line: str) -> Field:
    column, _, rest = line.strip().partition(": ")
    role, _, values = rest.partition(" ")
    if role in ("name", "kind"):
        return Field(column, role, tuple(words(_LISTS.get(values, values))))
    low, high = map(int, values.split(" to ")) if values else (0, 0)
    return Field(column, role, low=low, high=high)


SCHEMAS = read_schemas(
    """
customers: customer below referrer
  customer_name: name PEOPLE
  city: kind CITIES
  age: number 18 to 79
suppliers: supplier
  supplier_name: name Acme, Borea, Cirrus, Delta Trade, Elmwood, Fjord, Granit, Helix, Indigo, Juno, Kestrel
  country: kind Norway, Peru, Kenya, Japan, Italy
products: product of supplier
  product_name: name desk lamp, notebook, fountain pen, stapler, kettle, backpack, umbrella, blanket, mirror, teapot, candle
  category: kind office, kitchen, travel, home
  price: money 3 to 90
orders: order of customer, product
  quantity: number 1 to 30
  order_date: day
reviews: review of customer
  stars: number 1 to 30
  likes: number 0 to 60

departments: department
  department_name: name Sales, Research, Finance, Support, Design, Logistics, Legal, Quality, Training, Marketing
  building: kind North, South, East, West
  budget: number 50 to 900
employees: employee of department below manager
  employee_name: name PEOPLE
  job: kind analyst, engineer, clerk, designer, driver
  salary: number 30 to 120
projects: project of department
  project_name: name Atlas, Beacon, Comet, Dune, Ember, Falcon, Glacier, Harbor, Iris, Jasper
  status: kind planned, active, paused, closed
  cost: number 5 to 400
assignments: assignment of employee, project
  hours: number 2 to 90
  start_date: day
trainings: training of employee
  topic: kind safety, budgeting, writing, statistics
  days: number 1 to 20

teachers: teacher below mentor
  teacher_name: name PEOPLE
  subject: kind history, physics, music, biology, art
  experience: number 1 to 40
courses: course of teacher
  course_title: name Rivers, Optics, Harmony, Cells, Empires, Waves, Sketching, Genetics, Rhythm, Maps, Atoms
  level: kind basic, middle, advanced
  lessons: number 4 to 40
students: student
  student_name: name PEOPLE
  home_city: kind CITIES
  birth_year: number 1990 to 2010
enrolments: enrolment of student, course
  grade: number 1 to 100
  enrolment_date: day
loans: loan of student
  item: kind laptop, camera, guitar, microscope
  weeks: number 1 to 25

doctors: doctor below supervisor
  doctor_name: name PEOPLE
  specialty: kind surgery, cardiology, neurology, pediatrics
  salary: number 60 to 220
patients: patient
  patient_name: name PEOPLE
  city: kind CITIES
  age: number 1 to 95
visits: visit of doctor, patient
  fee: money 20 to 200
  minutes: number 5 to 90
  visit_date: day
prescriptions: prescription of visit
  drug: kind aspirin, insulin, codeine, statin
  dose: number 5 to 95
payments: payment of patient
  method: kind cash, card, transfer
  amount: money 10 to 300

artists: artist
  artist_name: name Blue Harbor, Nightjar, The Pines, Velvet Sun, Red Canoe, Polar Choir, Tin Birds, Low Tide, Amber Road, Salt Line
  country: kind Norway, Peru, Kenya, Japan, Italy
  founded: number 1960 to 2015
albums: album of artist
  album_title: name Afterglow, Blizzard, Canyon, Driftwood, Echoes, Fireflies, Gravity, Horizon, Islands, Journey, Lanterns
  genre: kind jazz, rock, folk, soul
  sales: number 1 to 95
songs: song of album
  song_title: name Anchor, Breeze, Candle, Dawn, Feather, Garden, Hollow, Ivory, Juniper, Lighthouse, Meadow, Ribbon
  seconds: number 90 to 480
concerts: concert of artist
  venue_city: kind CITIES
  tickets: number 20 to 900
  ticket_price: money 8 to 90

members: member below sponsor
  member_name: name PEOPLE
  district: kind Center, Harbor, Old Town, Hillside
  age: number 8 to 90
authors: author
  author_name: name PEOPLE
  language: kind French, Hindi, Polish, Swahili
  birth_year: number 1900 to 1990
books: book of author
  book_title: name Silent River, Last Train, Glass City, Iron Moon, Winter Bees, Open Sea, Paper Crown, Lost Keys, Tall Grass, Deep Snow
  genre: kind crime, poetry, travel, fantasy
  pages: number 80 to 900
loans: loan of member, book
  days_kept: number 1 to 60
  loan_date: day
fines: fine of member
  reason: kind late, damaged, lost
  fine_amount: money 1 to 40

airlines: airline
  airline_name: name Nordwind, Aero Sur, Transpolar, Blue Jet, Condor Air, Sky East, Lumen, Pacifica, Orion, Zephyr
  country: kind Norway, Peru, Kenya, Japan, Italy
  fleet_size: number 3 to 150
pilots: pilot of airline below instructor
  pilot_name: name PEOPLE
  rank_title: kind captain, officer, trainee
  flight_hours: number 100 to 9000
flights: flight of pilot
  destination: kind CITIES
  passengers: number 30 to 380
  delay_minutes: number 0 to 190
planes: plane of airline
  plane_name: name Albatross, Bluebird, Crane, Dove, Eagle, Finch, Gull, Heron, Ibis, Kite
  model: kind A320, B737, E190, Q400
  seats: number 40 to 320
repairs: repair of plane
  part: kind engine, wheel, radar, door
  repair_cost: money 5 to 400

teams: team
  team_name: name Falcons, Badgers, Comets, Dragons, Eagles, Foxes, Giants, Hornets, Lions, Mariners
  city: kind CITIES
  founded: number 1880 to 2010
players: player of team below mentor
  player_name: name PEOPLE
  position: kind keeper, defender, midfielder, striker
  goals: number 0 to 60
contracts: contract of player
  weekly_pay: number 5 to 250
  signing_date: day
injuries: injury of player
  body_part: kind knee, ankle, shoulder, back
  weeks_out: number 1 to 40
games: game of team
  weather: kind sunny, rainy, windy, snowy
  spectators: number 200 to 9000
"""
)
"""Eight themes of level relational."""
