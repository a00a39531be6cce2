"""Fourteen themes of generated tables, each with names, columns and sources of values.

The values are chosen so that MySQL, MariaDB and SQLite agree on them: floats have an exact binary value, and
dates lie within four years. That the texts of one column differ in more than accents is `tables.py`'s doing.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass

from trl_dbbench.tasks import Cell


def _split(text: str) -> list[str]:
    return text.split()


FIRST = _split(
    """
    Amara Bruno Chiara Dmitri Elif Farid Greta Hiro Inês José Klára Liam Mónica Nadia Oscar Priya
    Quentin Rosa Siobhán Tomás Ursula Viktor Wanda Yusuf Zoë André Björn Celia Dario Elena Frida
    Gustav Hannah Ivan Jonas Karin Lucía Malik Noor Olga
    """
)
LAST = _split(
    """
    Osei Keller Rossi Volkov Demir Haddad Lindqvist Tanaka Costa Muñoz Novák O'Neill Pérez Sharma
    Wilde Dubois Santos Murphy Silva Weber Petrov Nowak Yildiz Okafor D'Angelo Strömberg Jensen
    Marino Adeyemi Kaya Larsen Moreau Bianchi Fischer Horváth Castro Mbeki Suzuki Hughes Brandt
    """
)
CITIES = _split(
    """
    Oslo Lisbon Kraków Nairobi Quito Osaka Leeds Porto Zürich Lagos Turin Malmö Boston Lima Hanoi
    Seville Ghent Tampere Cardiff Bogotá
    """
)
NOTES = [
    "deliver after 5 pm",
    "gift wrap",
    "same as last time",
    'marked "fragile"',
    "can't be reached by phone",
    "paid in cash",
    "waiting for approval",
    "see Zoë's letter",
    "first visit",
    "déjà vu",
    'label reads "urgent"',
    "don't bend",
    "keep cool",
    "returned once",
]


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


@dataclass(frozen=True)
class Field:
    """A column to be. `role` is what a question may do with it.

    - `key`: a text that tells the rows apart, or nearly so; `category`: a text that many rows share;
      `note`: a text that many rows lack;
    - `id`, `count` (INT), `money` (DECIMAL), `rate` (FLOAT), `day` (DATE).
    """

    names: tuple[str, ...]
    role: str
    values: Callable[[random.Random], Cell]
    nullable: bool = False


def people(*names: str) -> Field:
    return Field(names, "key", lambda rng: f"{rng.choice(FIRST)} {rng.choice(LAST)}")


def titles(first: str, second: str, *names: str) -> Field:
    """Things named by two words, such as `Silent River`."""
    left, right = _words(first), _words(second)
    return Field(names, "key", lambda rng: f"{rng.choice(left)} {rng.choice(right)}")


def category(values: str | list[str], *names: str) -> Field:
    words = _words(values) if isinstance(values, str) else values
    return Field(names, "category", lambda rng: rng.choice(words))


def note(*names: str) -> Field:
    return Field(names, "note", lambda rng: rng.choice(NOTES), nullable=True)


def count(low: int, high: int, *names: str, nullable: bool = False) -> Field:
    return Field(names, "count", lambda rng: rng.randint(low, high), nullable)


def money(low: int, high: int, *names: str) -> Field:
    return Field(names, "money", lambda rng: rng.randint(low * 20, high * 20) / 20)


def rate(low: int, high: int, *names: str, nullable: bool = False) -> Field:
    return Field(names, "rate", lambda rng: rng.randint(low * 4, high * 4) / 4, nullable)


def day(*names: str) -> Field:
    start = datetime.date(2021, 1, 1)
    return Field(names, "day", lambda rng: str(start + datetime.timedelta(rng.randrange(1400))))


def names_from(text: str, *names: str) -> Field:
    words = _words(text)
    return Field(names, "key", lambda rng: rng.choice(words))


@dataclass(frozen=True)
class Theme:
    """A theme of tables: possible names, the word for its rows, possible columns."""

    tables: tuple[str, ...]
    rows: str
    fields: tuple[Field, ...]


THEMES = (
    Theme(
        ("orders", "customer_orders", "order_list", "web orders"),
        "orders",
        (
            people("customer", "customer_name", "buyer"),
            category(
                "desk lamp, office chair, notebook, monitor stand, fountain pen, stapler", "item", "product"
            ),
            category(CITIES, "city", "shipping_city"),
            count(1, 40, "quantity", "units"),
            money(3, 260, "price", "unit_price", "total"),
            day("order_date", "order_day"),
            note("note", "remark"),
        ),
    ),
    Theme(
        ("employees", "staff", "team_members", "staff 2024"),
        "employees",
        (
            people("name", "full_name", "employee"),
            category("Sales, Finance, Research, Support, Logistics, Legal", "department", "division"),
            category(CITIES, "office", "location"),
            count(21, 64, "age"),
            count(0, 30, "years_employed", "seniority", nullable=True),
            money(1800, 9000, "salary", "monthly_pay"),
            day("hire_date", "start_date"),
        ),
    ),
    Theme(
        ("books", "library_books", "catalogue", "book list"),
        "books",
        (
            titles(
                "Silent, Broken, Golden, Distant, Hidden, Frozen, Last",
                "River, Garden, Letter, Tower, Café, Harbour, Émigré",
                "title",
            ),
            people("author", "writer"),
            category("novel, poetry, history, travel, biography, science", "genre", "subject"),
            category("English, French, Polish, Korean", "language", "printed_language"),
            count(60, 900, "pages", "page_count"),
            count(0, 25, "copies", "copies_left"),
            rate(1, 5, "rating", "score", nullable=True),
            day("publication_date", "purchase_date"),
        ),
    ),
    Theme(
        ("hotels", "hotel_prices", "stays", "city hotels"),
        "hotels",
        (
            titles(
                "Grand, Royal, Park, Bristol, Blue, Old",
                "Palace, Inn, Plaza, Lodge, Résidence, House",
                "hotel",
                "hotel_name",
            ),
            category(CITIES, "city", "town"),
            category("budget, standard, luxury, family", "class", "category"),
            count(8, 400, "rooms", "room_count"),
            money(35, 480, "price_per_night", "rate"),
            rate(1, 10, "rating", "guest_score"),
            note("remark", "comment"),
        ),
    ),
    Theme(
        ("medals", "medal_table", "games_results", "final medals"),
        "teams",
        (
            names_from(
                "Norway, Kenya, Brazil, Japan, Canada, Italy, Côte d'Ivoire, Ghana, Peru, Türkiye, Fiji, Chile, Nepal, Spain, Poland, Egypt, Cuba, Laos, Iceland, Jordan, Vietnam, Finland, Angola, Estonia",
                "nation",
                "country",
            ),
            category("Europe, Africa, Asia, America, Oceania", "continent", "region"),
            category("summer, winter, youth", "games", "edition"),
            count(0, 20, "gold", "gold_medals"),
            count(0, 20, "silver", "silver_medals"),
            count(0, 20, "bronze", "bronze_medals"),
            count(4, 300, "athletes", "team_size"),
            rate(0, 100, "points", "index_score", nullable=True),
        ),
    ),
    Theme(
        ("visits", "clinic_visits", "appointments", "patient visits"),
        "visits",
        (
            people("patient", "patient_name"),
            category("cardiology, dentistry, surgery, paediatrics, neurology", "ward", "unit"),
            people("doctor", "physician"),
            category("public, private, self paid", "insurance", "cover"),
            count(5, 90, "minutes", "duration"),
            money(20, 600, "fee", "cost"),
            day("visit_date", "visit_day"),
            note("note", "finding"),
        ),
    ),
    Theme(
        ("films", "movies", "film_archive", "film list"),
        "films",
        (
            titles(
                "Red, Endless, Lost, Summer, Midnight, Paper, Winter",
                "Road, Dream, Sonata, Señor, Planet, Bridge, Witness",
                "title",
                "film",
            ),
            people("director", "filmmaker"),
            category("drama, comedy, thriller, western, animation", "genre", "kind"),
            category("Aurora, Studio Nord, Pathfinder, Étoile", "studio", "producer"),
            count(70, 210, "minutes", "running_time"),
            money(1, 300, "budget", "budget_millions"),
            rate(1, 10, "rating", "critics_score", nullable=True),
            day("release_date", "premiere"),
        ),
    ),
    Theme(
        ("parts", "spare_parts", "inventory", "warehouse stock"),
        "parts",
        (
            titles(
                "steel, brass, rubber, copper, nylon, alloy",
                "bolt, valve, 5\" pipe, gasket, washer, cable, O'ring",
                "part",
                "part_name",
            ),
            category("Acme, Borealis, Compagnie Générale, Delta, Eastman", "supplier", "maker"),
            category("north hall, south hall, yard, cellar", "hall", "storage_place"),
            count(0, 500, "stock", "stock_level"),
            money(1, 90, "price", "unit_cost"),
            rate(0, 40, "weight", "weight_kg"),
            day("restock_date", "last_delivery"),
        ),
    ),
    Theme(
        ("concerts", "concert_dates", "season_program", "hall bookings"),
        "concerts",
        (
            names_from(
                "The Larks, Blue Ochre, Señor Coconut, Nine Rivers, Quartet Élan, Marble Arch, The Foxes, Trio D'Arc, Night Ferry, Old Pines, Sigur, Loud Hailers, Mint, Kettle Drum, Polar Bay, Zig Zag",
                "band",
                "artist",
            ),
            category(CITIES, "city", "venue_city"),
            category("jazz, rock, folk, classical, electronic", "style", "genre"),
            count(40, 5000, "tickets", "tickets_sold"),
            money(8, 120, "ticket_price", "entry_price"),
            day("concert_date", "gig_date"),
            note("note", "comment"),
        ),
    ),
    Theme(
        ("pupils", "students", "course_results", "exam results"),
        "students",
        (
            people("student", "student_name"),
            category("maths, physics, music, chemistry, latin, geography", "course", "subject"),
            category("spring, autumn, summer", "term", "semester"),
            count(0, 100, "points", "exam_points", nullable=True),
            count(0, 15, "absences", "missed_days"),
            rate(1, 6, "grade", "mark"),
            day("exam_date", "test_date"),
        ),
    ),
    Theme(
        ("plants", "nursery_plants", "greenhouse", "garden plants"),
        "plants",
        (
            titles(
                "dwarf, climbing, alpine, wild, tall, sweet",
                "rose, fern, sage, açaí, thyme, ivy, iris",
                "plant",
                "plant_name",
            ),
            category("shade, full sun, half shade", "light", "light_need"),
            category("Tropics, Alps, Pampas, Steppe, Coast", "origin", "homeland"),
            count(5, 300, "height_cm", "height"),
            count(0, 90, "pots", "pots_left"),
            money(2, 75, "price", "pot_price"),
            day("sowing_date", "planting_date"),
        ),
    ),
    Theme(
        ("flights", "departures", "flight_log", "day flights"),
        "flights",
        (
            Field(
                ("flight", "flight_code"),
                "key",
                lambda rng: f"{rng.choice(['KX', 'LO', 'BT', 'QR'])}{rng.randint(100, 999)}",
            ),
            category(CITIES, "destination", "target_city"),
            category("Nordwind, Aero Sur, Air Zoë, Transpolar", "airline", "carrier"),
            count(30, 380, "passengers", "seats_sold"),
            count(0, 190, "delay", "delay_minutes", nullable=True),
            money(40, 900, "fare", "mean_fare"),
            day("flight_date", "departure_date"),
        ),
    ),
    Theme(
        ("houses", "property_listings", "rentals", "homes for sale"),
        "houses",
        (
            titles(
                "Elm, Station, Church, Mill, King's, Lake",
                "Street 4, Street 19, Road 7, Lane 2, Square 11, Road 31, Lane 15",
                "address",
                "street",
            ),
            category(CITIES, "city", "town"),
            category("flat, villa, cottage, loft", "type_of_home", "kind"),
            count(1, 9, "bedrooms", "room_count"),
            count(28, 320, "area", "square_metres"),
            money(350, 4800, "rent", "monthly_rent"),
            day("listing_date", "move_in_date"),
        ),
    ),
    Theme(
        ("animals", "shelter_animals", "zoo_animals", "vet patients"),
        "animals",
        (
            names_from(
                "Bello, Mimi, Ziggy, Noodle, Café, Rex, Luna, Pepper, Tofu, Señorita, Biscuit, Mochi, Otto, Nala, Pip, Waffles, Gizmo, Olive, Jack's Boy, Ruby, Simba, Coco, Duke, Hazel",
                "name",
                "animal_name",
            ),
            category("dog, cat, rabbit, parrot, tortoise", "species", "animal_type"),
            people("keeper", "carer"),
            category("small, medium, large", "size", "body_size"),
            count(1, 19, "age", "age_years"),
            rate(1, 45, "weight", "weight_kg", nullable=True),
            money(10, 250, "adoption_fee", "monthly_cost"),
            day("arrival", "arrival_date"),
        ),
    ),
)
