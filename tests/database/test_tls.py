"""Connections with TLS that are hung up from another thread, on servers with real certificates."""

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

from trl_dbbench.database import Database
from trl_dbbench.database.server import local
from trl_dbbench.database.server.connections import BoundedConnection
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
def local_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """MariaDB, which has no TLS without a certificate."""
    options = make_certificate(tmp_path_factory.mktemp("tls"))
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
