"""Databases as others have them: of a DVD shop (views, triggers, FULLTEXT, geometry, sets), a blog (zero dates), odd types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pymysql
from databases import connect_arguments

DVDS = (
    """CREATE TABLE language (language_id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name CHAR(20) NOT NULL,
       last_update TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)""",
    """CREATE TABLE film (film_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT, title VARCHAR(128) NOT NULL, description TEXT,
       release_year YEAR, language_id TINYINT UNSIGNED NOT NULL, rental_rate DECIMAL(4,2) NOT NULL DEFAULT 4.99,
       rating ENUM('G','PG','PG-13','R','NC-17') DEFAULT 'G',
       special_features SET('Trailers','Commentaries','Deleted Scenes') DEFAULT NULL, PRIMARY KEY (film_id),
       KEY idx_title (title), CONSTRAINT fk_film_language FOREIGN KEY (language_id) REFERENCES language (language_id))""",
    """CREATE TABLE film_text (film_id SMALLINT UNSIGNED NOT NULL PRIMARY KEY, title VARCHAR(255) NOT NULL,
       description TEXT, FULLTEXT KEY idx_title_description (title, description)) ENGINE=InnoDB""",
    """CREATE TABLE address (address_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, address VARCHAR(50) NOT NULL,
       district VARCHAR(20) NOT NULL, location GEOMETRY NOT NULL, SPATIAL KEY idx_location (location))""",
    """CREATE TABLE film_actor (actor_id SMALLINT UNSIGNED NOT NULL, film_id SMALLINT UNSIGNED NOT NULL,
       PRIMARY KEY (actor_id, film_id))""",
    """CREATE TRIGGER ins_film AFTER INSERT ON film FOR EACH ROW
       INSERT INTO film_text (film_id, title, description) VALUES (NEW.film_id, NEW.title, NEW.description)""",
    "INSERT INTO language (name) VALUES ('English'), ('Italian'), ('German')",
    """INSERT INTO film (title, description, release_year, language_id, rental_rate, rating, special_features) VALUES
       ('Academy Dinosaur', 'An epic; drama', 2006, 1, 0.99, 'PG', 'Deleted Scenes,Trailers'),
       ('Ace Goldfinger', 'It''s "odd"', 2006, 1, 4.99, 'G', NULL), ('Alien Center', NULL, 1999, 2, 2.99, 'NC-17', ''),
       ('Baked Cleopatra', 'x', 2001, 3, 2.99, 'G', 'Trailers')""",
    """INSERT INTO address (address, district, location) VALUES ('47 MySakila Drive', 'Alberta', ST_GeomFromText('POINT(1 2)')),
       ('28 MySQL Boulevard', 'QLD', ST_GeomFromText('POINT(3 4)')), ('23 Workhaven Lane', 'Alberta', ST_GeomFromText('POINT(5 6)'))""",
    "INSERT INTO film_actor VALUES (1, 1), (1, 2), (2, 3), (3, 4)",
    """CREATE VIEW film_list AS SELECT f.title AS title, l.name AS language FROM film f
       JOIN language l ON l.language_id = f.language_id""",
)

BLOG = (
    "SET SESSION sql_mode = ''",
    """CREATE TABLE wp_posts (ID BIGINT(20) UNSIGNED NOT NULL AUTO_INCREMENT, post_author BIGINT(20) UNSIGNED NOT NULL DEFAULT '0',
       post_date DATETIME NOT NULL DEFAULT '0000-00-00 00:00:00', post_date_gmt DATETIME NOT NULL DEFAULT '0000-00-00 00:00:00',
       post_title TEXT NOT NULL, post_status VARCHAR(20) NOT NULL DEFAULT 'publish', comment_count BIGINT(20) NOT NULL DEFAULT '0',
       PRIMARY KEY (ID), KEY type_status_date (post_status, post_date, ID))""",
    """CREATE TABLE wp_options (option_id BIGINT(20) UNSIGNED NOT NULL AUTO_INCREMENT, option_name VARCHAR(191) NOT NULL DEFAULT '',
       option_value LONGTEXT NOT NULL, PRIMARY KEY (option_id), UNIQUE KEY option_name (option_name))""",
    """INSERT INTO wp_posts (post_author, post_date, post_date_gmt, post_title, post_status, comment_count) VALUES
       (1, '2024-01-05 10:00:00', '2024-01-05 09:00:00', 'Hello world!', 'publish', 4),
       (2, '2024-02-06 11:30:00', '0000-00-00 00:00:00', 'A draft', 'draft', 0),
       (1, '2024-03-07 12:00:00', '2024-03-07 11:00:00', 'Sample Page', 'publish', 9)""",
    "INSERT INTO wp_options (option_name, option_value) VALUES ('siteurl', 'http://x'), ('blogname', 'B'), ('home', 'http://x')",
)

ODD = (
    "SET SESSION sql_mode = ''",
    """CREATE TABLE bytes (id INT PRIMARY KEY, a VARBINARY(16), b BINARY(4), c TINYBLOB, d BLOB, e MEDIUMBLOB, f LONGBLOB,
       g BIT(3), h POINT, i MULTIPOINT, j GEOMETRYCOLLECTION, k POLYGON, name VARCHAR(9))""",
    "INSERT INTO bytes (id, a, name) VALUES (1, X'80FF', 'x'), (2, X'81FF', 'y')",
    "CREATE TABLE laps (id INT PRIMARY KEY, lap TIME(3) NOT NULL, gap TIME(6), seen DATETIME(2), at DATETIME)",
    """INSERT INTO laps VALUES (1, '00:01:02.345', '-00:00:00.5', '2024-01-02 03:04:05.10', '2024-01-02 00:00:00'),
       (2, '-01:00:00.250', '838:59:58.999999', '2024-01-02 03:04:05', NULL)""",
    "CREATE TABLE numbers (id INT PRIMARY KEY, f FLOAT, d DOUBLE, small DECIMAL(12,10), big BIGINT UNSIGNED)",
    """INSERT INTO numbers VALUES (1, 16777216, 0.1, -0.0000000001, 18446744073709551615),
       (2, 1234567.5, 1e300, 1.5, 9223372036854775808), (3, 0.1, -1e-300, 0, 7), (4, 123456.7, 2.5, 0, 8)""",
    "CREATE TABLE days (id INT PRIMARY KEY, day DATE, at DATETIME NOT NULL DEFAULT '0000-00-00 00:00:00', n INT)",
    "INSERT INTO days VALUES (1, '2024-00-00', '2024-01-01 00:00:00', 5), (2, '2024-01-01', '2024-01-01 00:00:00', 6)",
    """CREATE TABLE pairs (a INT NOT NULL, b INT NOT NULL, amount INT NOT NULL CHECK (amount > 0), note VARCHAR(30),
       UNIQUE KEY ab (a, b), UNIQUE KEY beginning (note(5)))""",
    "CREATE TRIGGER pairs_ins AFTER INSERT ON pairs FOR EACH ROW SET @said = 1",
    "INSERT INTO pairs VALUES (1, 1, 5, 'x'), (1, 2, 6, 'y')",
)


@contextmanager
def database_on(url: str, name: str, statements: Sequence[str]) -> Iterator[str]:
    """A database of these statements on a server, for a block."""
    with pymysql.connect(**connect_arguments(url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {name}")
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        yield name
        cursor.execute(f"DROP DATABASE {name}")
