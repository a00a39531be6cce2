"""A small shop: as CSV files, and in a database of MySQL as others have set it up."""

from __future__ import annotations

import random
from pathlib import Path

import pymysql
from databases import connect_arguments

CITIES = ["Oslo", "Rome", "Turku, FI", "São Paulo"]

STATEMENTS = (
    "DROP DATABASE IF EXISTS shop",
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    """CREATE TABLE shop.customers (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60) NOT NULL, city VARCHAR(40),
       email VARCHAR(60) NOT NULL UNIQUE, joined DATE, photo BLOB)""",
    """CREATE TABLE shop.`order lines` (`order` INT NOT NULL, line SMALLINT NOT NULL, customer INT NOT NULL,
       quantity TINYINT UNSIGNED NOT NULL DEFAULT 1, price DECIMAL(8,2) NOT NULL, weight DOUBLE, note TEXT,
       state ENUM('open','paid','sent') DEFAULT 'open', lasted TIME, changed TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
       total DECIMAL(12,2) AS (quantity * price) STORED, PRIMARY KEY (`order`, line),
       FOREIGN KEY (customer) REFERENCES shop.customers (id))""",
    "CREATE VIEW shop.paid AS SELECT * FROM shop.`order lines` WHERE state = 'paid'",
)


def customers(random: random.Random, count: int = 40) -> list[tuple]:
    names = [f"{first} {last}" for first in ("Ann", "Bo", "Cy", "Eva", "Ida") for last in FAMILIES]
    return [
        (
            number,
            names[number - 1],
            random.choice([*CITIES, None]),
            f"c{number}@example.org",
            f"2023-{random.randint(1, 12):02}-{random.randint(1, 28):02}",
        )
        for number in range(1, count + 1)
    ]


FAMILIES = ("Berg", "Dahl", "Ek", "Holm", "Lund", "Moe", "Nygaard", "Rask")


def lines(random: random.Random, count: int = 90) -> list[tuple]:
    return [
        (
            *(1 + number // 3, 1 + number % 3, random.randint(1, 40), random.randint(1, 30)),
            *(f"{random.randint(100, 90_000) / 100:.2f}", random.randint(1, 80) / 4),
            random.choice([None, None, "gift wrap", "50 % off", "don't bend"]),
            random.choice(["open", "paid", "sent"]),
            random.choice(["01:30:00", None]),
        )
        for number in range(count)
    ]


def set_up_shop(url: str) -> None:
    """Makes the database `shop` on a server."""
    chance = random.Random(1)
    with pymysql.connect(**connect_arguments(url)) as connection, connection.cursor() as cursor:
        for statement in STATEMENTS:
            cursor.execute(statement)
        for row in customers(chance):
            cursor.execute("INSERT INTO shop.customers VALUES (%s, %s, %s, %s, %s, X'FF00')", row)
        columns = "`order`, line, customer, quantity, price, weight, note, state, lasted"
        for row in lines(chance):
            cursor.execute(
                f"INSERT INTO shop.`order lines` ({columns}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)", row
            )


def remove_shop(url: str) -> None:
    with pymysql.connect(**connect_arguments(url)) as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS shop")


def write_csv(folder: Path) -> list[Path]:
    """customers.csv and orders.csv; the paths."""
    chance = random.Random(1)
    people = ["id,name,city,email,joined"]
    for row in customers(chance):
        people.append(",".join('"' + str(cell if cell is not None else "") + '"' for cell in row))
    orders = ['order_no,customer,quantity,"price:DECIMAL(8,2)",state']
    for row in lines(chance):
        orders.append(f"{row[0]}{row[1]},{row[2]},{row[3]},{row[4]},{row[7]}")
    paths = [folder / "customers.csv", folder / "orders.csv"]
    for path, text in zip(paths, (people, orders), strict=True):
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return paths
