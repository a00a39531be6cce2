"""No message that shows a database's URL shows a password, however the URL is written."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import make_url

from trl_dbbench.database import open_database
from trl_dbbench.database.server.connections import parse_url, shown
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


def test_a_password_among_the_options_is_not_shown() -> None:
    assert shown(parse_url("mysql://me:secret@db1/?password=secret&charset=utf8mb4")) == (
        "mysql+pymysql://me:***@db1/?charset=utf8mb4"
    )


def test_a_database_in_the_url_is_left_out() -> None:
    """Agents' accounts have no rights in it, so they could not even connect."""
    assert parse_url("mysql://me:pw@db1:3306/shop") == make_url("mysql+pymysql://me:pw@db1:3306/")
