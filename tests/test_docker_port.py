"""A started container's port is bound to where only this machine reaches it."""

from __future__ import annotations

import socket

import pytest
from databases import opened, table, task
from sqlalchemy import make_url

QUESTION = task(table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22)))


@pytest.mark.parametrize("inside", [False, True])
def test_the_port_is_bound_to_one_address(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    """127.0.0.1; where the trainer runs in a container, this machine's address in Docker's network."""
    docker = pytest.importorskip("docker")
    from testcontainers.core.config import ConnectionMode, testcontainers_config

    try:
        (network,) = docker.from_env().networks.list(names=["bridge"])
    except docker.errors.DockerException as error:
        pytest.skip(f"no Docker here: {error}")
    gateway = network.attrs["IPAM"]["Config"][0]["Gateway"]
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
    monkeypatch.setattr(testcontainers_config, "tc_host_override", gateway if inside else "localhost")
    bound, elsewhere = (gateway, "127.0.0.1") if inside else ("127.0.0.1", gateway)
    with opened("docker") as database, database.sandbox(QUESTION) as sandbox:
        assert len(sandbox.execute("SELECT * FROM medals").rows or []) == 2
        assert make_url(database.url).host == bound
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((elsewhere, make_url(database.url).port), timeout=5)
