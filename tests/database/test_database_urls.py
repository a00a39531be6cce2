"""No message that shows a database's URL shows a password, however the URL is written; what it says of TLS holds."""

from __future__ import annotations

import logging
from pathlib import Path

import certifi
import pymysql
import pytest
from databases import connect_arguments, table, task
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from trl_dbbench.database import Database, open_database
from trl_dbbench.database.server.connections import make_engine, parse_url, shown
from trl_dbbench.database.server.start import Server
from trl_dbbench.errors import DatabaseError

ONE, TWO = "mysql://me:secret@db1:3306/", "mysql+pymysql://me:secret@db2:3306/"


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (f"{ONE},mysql://me:sec@ret@db2/", "'mysql://***@db2/'"),
        (f"{ONE} postgresql://me:secret@db2/", "'postgresql://***@db2/'"),
        (f"{ONE};{TWO}", "'mysql://***@db2:3306/'"),
        ("mysql://me:secret@db1,me:secret@db2/", "'mysql://***@db2/'"),
        ("mysql://me:secret@db1,db2/", "'mysql://***@db1,db2/'"),
        ("mysql://me:sec@ret@db1/", "'mysql://***@db1/'"),
        ("mysql://me:secret@db1:33o6/", "'mysql://***@db1:33o6/'"),
        ("mysql://me:se\ncret@db1:33o6/", "'mysql://***@db1:33o6/'"),
        ("mysql://me@db1:33o6/?password=secret", "'mysql://***@db1:33o6/?***'"),
        ("postgresql://me:secret@db1/", "'postgresql://***@db1/'"),
        ("mysql//me:secret@db1/", "'***@db1/'"),
        ("me:secret@db1", "'***@db1'"),
    ],
)
def test_a_wrong_url_is_named_without_its_password(
    spec: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(DatabaseError) as caught, open_database(spec):
        pass
    message = str(caught.value)
    assert named in message and "mysql+pymysql://user:password@host" in message
    assert not any(part in f"{message} {caplog.text}" for part in ("secret", "sec@", "ret@", "cret"))


@pytest.mark.parametrize(
    "option",
    [
        "ssl-mode=REQUIRED",
        "sslmode=require",
        "useSSL=false",
        "ssl=true",
        "compress=true",
        "collation=utf8mb4_bin",
    ],
)
def test_options_of_other_clients_are_refused(option: str) -> None:
    """JDBC's, libpq's and the mysql client's, and what PyMySQL does not support. It would take them for arguments."""
    name = option.partition("=")[0]
    with pytest.raises(DatabaseError, match=rf"unknown option '{name}'; allowed: .*unix_socket.*\?ssl_ca="):
        parse_url(f"mysql://me:secret@db1/?{option}")


def test_another_character_set_is_refused() -> None:
    """It would have no effect."""
    with pytest.raises(DatabaseError, match="charset is 'latin1'; connections use utf8mb4"):
        parse_url("mysql://me:secret@db1/?charset=latin1")


def test_a_password_among_the_options_is_not_shown() -> None:
    assert shown(parse_url("mysql://me:secret@db1/?password=secret&charset=utf8mb4")) == (
        "mysql+pymysql://me:***@db1/?charset=utf8mb4"
    )


def test_an_account_among_the_options_is_the_urls() -> None:
    url = parse_url("mysql://db1/?user=root&password=sec%40ret&unix_socket=/s")
    assert (url.username, url.password, dict(url.query)) == ("root", "sec@ret", {"unix_socket": "/s"})
    assert parse_url("mysql://me@db1/?passwd=secret").password == "secret"


def test_agents_do_not_run_under_an_account_among_the_options(server: Server) -> None:
    socket = server.url.partition("unix_socket=")[2]
    with (
        open_database(f"mysql://localhost/?user=root&unix_socket={socket}") as database,
        database.sandbox(task(table("t", "a INT", (1,)))) as sandbox,
    ):
        assert sandbox.execute("SELECT CURRENT_USER()").rows == [("agent@localhost",)]
        assert sandbox.execute("SELECT User FROM mysql.user").error_code == 1142


@pytest.mark.parametrize("word", ["пароль", "Grüße", "a b@/?#%:&=+;'\"\\"])
def test_a_password_may_have_any_characters(docker_database: Database, word: str) -> None:
    with pymysql.connect(**connect_arguments(docker_database.url)) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE USER IF NOT EXISTS odd")
        cursor.execute("ALTER USER odd IDENTIFIED BY %s", (word,))
    url = make_url(docker_database.url).set(username="odd", password=word)
    engine = make_engine(parse_url(url.render_as_string(hide_password=False)), 60)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    engine.dispose()


def test_a_host_or_an_option_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "client.cnf"
    with pytest.raises(DatabaseError, match=r"read_default_file: there is no file '.*client\.cnf'"):
        parse_url(f"mysql://me:secret@db1/?read_default_file={file}")
    file.write_text("password = secret\n")
    for url in (f"mysql://me:secret@db1/?read_default_file={file}", "mysql://me:secret@db..1/"):
        with (
            pytest.raises(DatabaseError, match="the database URL cannot be used") as caught,
            open_database(url),
        ):
            pass
        assert "secret" not in str(caught.value)


def test_a_way_to_log_in_that_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MariaDB's ed25519, for which PyMySQL wants PyNaCl."""

    def lacking(*args: object, **kwargs: object) -> None:
        raise RuntimeError("'pynacl' package is required for ed25519_password auth method")

    monkeypatch.setattr("trl_dbbench.database.server.connections.BoundedConnection", lacking)
    with pytest.raises(DatabaseError, match="the database URL cannot be used: 'pynacl'"), open_database(ONE):
        pass


def test_a_database_in_the_url_is_left_out() -> None:
    """Agents' accounts have no rights in it, so they could not even connect."""
    assert parse_url("mysql://me:pw@db1:3306/shop") == make_url("mysql+pymysql://me:pw@db1:3306/")


def test_connections_are_encrypted_and_read_no_certificates(docker_database: Database) -> None:
    url = parse_url(docker_database.url)
    engine = make_engine(url, 60)
    contexts = set()
    for _ in range(2):
        connection = engine.connect()
        ((_, cipher),) = connection.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").all()
        assert cipher
        contexts.add(connection.connection.driver_connection.ctx)  # type: ignore[union-attr]
    (context,) = contexts  # once for all
    assert context.get_ca_certs() == []
    engine.dispose()


def test_a_certificate_is_looked_at_where_the_url_says_so(docker_database: Database) -> None:
    url = parse_url(docker_database.url).update_query_dict({"ssl_ca": certifi.where()})
    with pytest.raises(OperationalError, match="certificate verify failed"):
        make_engine(url, 60).connect()
