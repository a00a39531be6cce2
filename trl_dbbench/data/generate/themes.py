"""Fourteen themes of generated tables, each with names, columns and sources of values.

The values are chosen so that MySQL, MariaDB and SQLite agree on them: floats have an exact binary value, and
dates lie within four years. That the texts of one column differ in more than accents is `tables.py`'s doing.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trl_dbbench.tasks import Cell

Values = Callable[[random.Random], Cell]


def words(text: str) -> list[str]:
    """Split a list at its commas."""
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
"""Parts of a unit that numbers of a role are whole multiples of."""


@dataclass(frozen=True)
class Field:
    """A column to be. `role` is what a question may do with it.

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
    """A theme of tables: possible names, the word for its rows, possible columns."""

    tables: tuple[str, ...]
    rows: str
    fields: tuple[Field, ...]


def random_day(rng: random.Random) -> str:
    return str(datetime.date(2021, 1, 1) + datetime.timedelta(rng.randrange(1400)))


def _read(text: str) -> Iterator[Theme]:
    """Yield the themes in a text, with an empty line between two.

    The first line has the names of the table and the word for its rows. A line for each column follows: its
    names, its role, with a `?` if it may be NULL, and its values. These are bounds, or a list of words; of
    two lists, each value has a word of either. A `code` is a key with three digits behind the word.
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


THEMES = tuple(
    _read(
        """
orders, customer_orders, order_list, web orders: orders
  customer, customer_name, buyer: key FIRST / LAST
  item, product: category desk lamp, office chair, notebook, monitor stand, fountain pen, stapler
  city, shipping_city: category CITIES
  quantity, units: count 1 to 40
  price, unit_price, total: money 3 to 260
  order_date, order_day: day
  note, remark: note? NOTES

employees, staff, team_members, staff 2024: employees
  name, full_name, employee: key FIRST / LAST
  department, division: category Sales, Finance, Research, Support, Logistics, Legal
  office, location: category CITIES
  age: count 21 to 64
  years_employed, seniority: count? 0 to 30
  salary, monthly_pay: money 1800 to 9000
  hire_date, start_date: day

books, library_books, catalogue, book list: books
  title: key Silent, Broken, Golden, Distant, Hidden, Frozen, Last / River, Garden, Letter, Tower, Café, Harbour, Émigré
  author, writer: key FIRST / LAST
  genre, subject: category novel, poetry, history, travel, biography, science
  language, printed_language: category English, French, Polish, Korean
  pages, page_count: count 60 to 900
  copies, copies_left: count 0 to 25
  rating, score: rate? 1 to 5
  publication_date, purchase_date: day

hotels, hotel_prices, stays, city hotels: hotels
  hotel, hotel_name: key Grand, Royal, Park, Bristol, Blue, Old / Palace, Inn, Plaza, Lodge, Résidence, House
  city, town: category CITIES
  class, category: category budget, standard, luxury, family
  rooms, room_count: count 8 to 400
  price_per_night, rate: money 35 to 480
  rating, guest_score: rate 1 to 10
  remark, comment: note? NOTES

medals, medal_table, games_results, final medals: teams
  nation, country: key Norway, Kenya, Brazil, Japan, Canada, Italy, Côte d'Ivoire, Ghana, Peru, Türkiye, Fiji, Chile, Nepal, Spain, Poland, Egypt, Cuba, Laos, Iceland, Jordan, Vietnam, Finland, Angola, Estonia
  continent, region: category Europe, Africa, Asia, America, Oceania
  games, edition: category summer, winter, youth
  gold, gold_medals: count 0 to 20
  silver, silver_medals: count 0 to 20
  bronze, bronze_medals: count 0 to 20
  athletes, team_size: count 4 to 300
  points, index_score: rate? 0 to 100

visits, clinic_visits, appointments, patient visits: visits
  patient, patient_name: key FIRST / LAST
  ward, unit: category cardiology, dentistry, surgery, paediatrics, neurology
  doctor, physician: key FIRST / LAST
  insurance, cover: category public, private, self paid
  minutes, duration: count 5 to 90
  fee, cost: money 20 to 600
  visit_date, visit_day: day
  note, finding: note? NOTES

films, movies, film_archive, film list: films
  title, film: key Red, Endless, Lost, Summer, Midnight, Paper, Winter / Road, Dream, Sonata, Señor, Planet, Bridge, Witness
  director, filmmaker: key FIRST / LAST
  genre, kind: category drama, comedy, thriller, western, animation
  studio, producer: category Aurora, Studio Nord, Pathfinder, Étoile
  minutes, running_time: count 70 to 210
  budget, budget_millions: money 1 to 300
  rating, critics_score: rate? 1 to 10
  release_date, premiere: day

parts, spare_parts, inventory, warehouse stock: parts
  part, part_name: key steel, brass, rubber, copper, nylon, alloy / bolt, valve, 5" pipe, gasket, washer, cable, O'ring
  supplier, maker: category Acme, Borealis, Compagnie Générale, Delta, Eastman
  hall, storage_place: category north hall, south hall, yard, cellar
  stock, stock_level: count 0 to 500
  price, unit_cost: money 1 to 90
  weight, weight_kg: rate 0 to 40
  restock_date, last_delivery: day

concerts, concert_dates, season_program, hall bookings: concerts
  band, artist: key The Larks, Blue Ochre, Señor Coconut, Nine Rivers, Quartet Élan, Marble Arch, The Foxes, Trio D'Arc, Night Ferry, Old Pines, Sigur, Loud Hailers, Mint, Kettle Drum, Polar Bay, Zig Zag
  city, venue_city: category CITIES
  style, genre: category jazz, rock, folk, classical, electronic
  tickets, tickets_sold: count 40 to 5000
  ticket_price, entry_price: money 8 to 120
  concert_date, gig_date: day
  note, comment: note? NOTES

pupils, students, course_results, exam results: students
  student, student_name: key FIRST / LAST
  course, subject: category maths, physics, music, chemistry, latin, geography
  term, semester: category spring, autumn, summer
  points, exam_points: count? 0 to 100
  absences, missed_days: count 0 to 15
  grade, mark: rate 1 to 6
  exam_date, test_date: day

plants, nursery_plants, greenhouse, garden plants: plants
  plant, plant_name: key dwarf, climbing, alpine, wild, tall, sweet / rose, fern, sage, açaí, thyme, ivy, iris
  light, light_need: category shade, full sun, half shade
  origin, homeland: category Tropics, Alps, Pampas, Steppe, Coast
  height_cm, height: count 5 to 300
  pots, pots_left: count 0 to 90
  price, pot_price: money 2 to 75
  sowing_date, planting_date: day

flights, departures, flight_log, day flights: flights
  flight, flight_code: code KX, LO, BT, QR
  destination, target_city: category CITIES
  airline, carrier: category Nordwind, Aero Sur, Air Zoë, Transpolar
  passengers, seats_sold: count 30 to 380
  delay, delay_minutes: count? 0 to 190
  fare, mean_fare: money 40 to 900
  flight_date, departure_date: day

houses, property_listings, rentals, homes for sale: houses
  address, street: key Elm, Station, Church, Mill, King's, Lake / Street 4, Street 19, Road 7, Lane 2, Square 11, Road 31, Lane 15
  city, town: category CITIES
  type_of_home, kind: category flat, villa, cottage, loft
  bedrooms, room_count: count 1 to 9
  area, square_metres: count 28 to 320
  rent, monthly_rent: money 350 to 4800
  listing_date, move_in_date: day

animals, shelter_animals, zoo_animals, vet patients: animals
  name, animal_name: key Bello, Mimi, Ziggy, Noodle, Café, Rex, Luna, Pepper, Tofu, Señorita, Biscuit, Mochi, Otto, Nala, Pip, Waffles, Gizmo, Olive, Jack's Boy, Ruby, Simba, Coco, Duke, Hazel
  species, animal_type: category dog, cat, rabbit, parrot, tortoise
  keeper, carer: key FIRST / LAST
  size, body_size: category small, medium, large
  age, age_years: count 1 to 19
  weight, weight_kg: rate? 1 to 45
  adoption_fee, monthly_cost: money 10 to 250
  arrival, arrival_date: day
"""
    )
)
