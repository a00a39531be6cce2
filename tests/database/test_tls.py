"""TLS on servers with real certificates: what a URL asks for, and connections that another thread hangs up."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from databases import connect_arguments
from pymysql.cursors import SSCursor
from pymysql.err import OperationalError
from required import lacking
from sqlalchemy.exc import OperationalError as Refused

from trl_dbbench.database import Database
from trl_dbbench.database.server import local
from trl_dbbench.database.server.connections import BoundedConnection, make_engine, parse_url
from trl_dbbench.errors import DatabaseError


def make_certificate(folder: Path) -> list[str]:
    """The options of a server that proves itself with a certificate of its own."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, secret = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    folder.chmod(0o755)
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, secret))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    return [f"--ssl-key={folder}/key.pem", f"--ssl-cert={folder}/certificate.pem"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def local_server(folder: Path) -> Iterator[dict[str, Any]]:
    """MariaDB, which has no TLS without a certificate."""
    options = make_certificate(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "BOUNDED_MARIADB", (*local.BOUNDED_MARIADB, *options))
            server = local.start_local()
    except DatabaseError as error:
        lacking("local", f"no 'local' database here: {error}")
    try:
        yield connect_arguments(server.url)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def docker_server(docker_database: Database) -> dict[str, Any]:
    return connect_arguments(docker_database.url)


@pytest.fixture(scope="module", params=["local", "docker"])
def server(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue(f"{request.param}_server")


ROW = ("a" * 1000,)
MANY = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) {} FROM n a, n b"


def test_what_is_read_after_the_hang_up_are_rows_or_nothing(server: dict[str, Any]) -> None:
    """The rest of what had come, then a lost connection: never the bytes that TLS had made of rows."""
    connection = BoundedConnection(**server)
    with connection.cursor(SSCursor) as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        assert cursor.fetchall()[0][1].startswith("TLS_")
        cursor.execute(MANY.format(f"SELECT '{ROW[0]}'"))
        assert cursor.fetchone() == ROW
        connection.hang_up()
        with pytest.raises(OperationalError, match="Lost connection") as lost:
            while row := cursor.fetchone():
                assert row == ROW
        assert lost.value.args[0] == 2013
    connection.hang_up()  # closed already


CA = "ssl_ca={}/certificate.pem"


def cipher(server: dict[str, Any], host: str, options: str) -> str:
    """The cipher of a connection to the server, which is asked for under the name `host`; empty without TLS."""
    url = f"mysql://{server['user']}@{host}/?unix_socket={server['unix_socket']}&{options}"
    engine = make_engine(parse_url(url), 10)
    with engine.connect() as connection:
        return str(connection.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").one()[1])


@pytest.mark.parametrize(
    ("host", "options"),
    [
        ("localhost", ""),
        ("localhost", CA),
        ("localhost", f"{CA}&ssl_verify_identity=true"),
        ("localhost", f"{CA}&ssl_verify_cert=true"),
        ("elsewhere", f"{CA}&ssl_verify_identity=false"),
        ("elsewhere", f"{CA}&ssl_check_hostname=false"),
        ("elsewhere", "ssl_verify_cert=false"),
        ("localhost", "ssl_disabled=false"),
    ],
)
def test_a_server_whose_certificate_is_as_the_url_wants_it(
    local_server: dict[str, Any], folder: Path, host: str, options: str
) -> None:
    assert cipher(local_server, host, options.format(folder)).startswith("TLS_")


@pytest.mark.parametrize(
    ("host", "options"),
    [
        ("elsewhere", CA),
        ("elsewhere", f"{CA}&ssl_verify_identity=true"),
        ("elsewhere", f"{CA}&ssl_verify_cert=true"),
        ("localhost", "ssl_verify_identity=true"),  # the system's authorities have not signed it
        ("localhost", "ssl_verify_cert=true"),
    ],
)
def test_a_server_whose_certificate_is_not(
    local_server: dict[str, Any], folder: Path, host: str, options: str
) -> None:
    with pytest.raises(Refused, match="certificate verify failed"):
        cipher(local_server, host, options.format(folder))


def test_no_tls(local_server: dict[str, Any], folder: Path) -> None:
    assert cipher(local_server, "localhost", f"{CA.format(folder)}&ssl_disabled=true") == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("ssl_ca=missing.pem", "URL's ssl_ca: there is no file 'missing.pem'"),
        ("ssl_verify_identity=perhaps", "URL's ssl_verify_identity is 'perhaps'; it is true or false"),
        (f"ssl_ca={__file__}", "URL's options of TLS cannot be used: "),
        ("ssl_cipher=none-such", "URL's options of TLS cannot be used: "),
        ("ssl_ca=a.pem&ssl_ca=b.pem", "the option 'ssl_ca' twice"),
    ],
)
def test_options_that_cannot_be_are_one_line(options: str, says: str) -> None:
    with pytest.raises(DatabaseError, match=says):
        parse_url(f"mysql://me:secret@db1/?{options}")


def test_a_key_with_a_password(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    key = serialization.load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.TraditionalOpenSSL
    (tmp_path / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    options = f"ssl_cert={tmp_path}/certificate.pem&ssl_key={tmp_path}/key.pem"
    parse_url(f"mysql://me@db1/?{options}&ssl_key_password=secret")
    with pytest.raises(DatabaseError, match="options of TLS cannot be used"):
        parse_url(f"mysql://me@db1/?{options}")  # and nobody is asked at a terminal
