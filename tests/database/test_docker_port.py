"""A started container's port is bound to where only this machine reaches it."""

from __future__ import annotations

import socket
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any

import pytest
from databases import opened, table, task
from sqlalchemy import make_url

from trl_dbbench.database.server.docker import _gateways

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
    gateway = str(next(ip_network(network.attrs["IPAM"]["Config"][0]["Subnet"]).hosts()))
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
    monkeypatch.setattr(testcontainers_config, "tc_host_override", gateway if inside else "localhost")
    bound, elsewhere = (gateway, "127.0.0.1") if inside else ("127.0.0.1", gateway)
    with opened("docker") as database, database.sandbox(QUESTION) as sandbox:
        assert len(sandbox.execute("SELECT * FROM medals").rows or []) == 2
        assert make_url(database.url).host == bound
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((elsewhere, make_url(database.url).port), timeout=5)


@pytest.mark.parametrize(
    "configs, addresses",
    [
        ([{"Subnet": "172.17.0.0/16", "Gateway": "172.17.0.1"}], ["172.17.0.1"]),
        ([{"Subnet": "10.9.0.0/24", "Gateway": "10.9.0.254"}], ["10.9.0.254"]),
        ([{"Subnet": "172.17.0.0/16"}], ["172.17.0.1"]),
        (None, []),
    ],
    ids=["usual", "chosen", "an engine's first bridge", "host"],
)
def test_this_machines_addresses_in_dockers_networks(configs: Any, addresses: list[str]) -> None:
    network = SimpleNamespace(attrs={"IPAM": {"Config": configs}})
    client = SimpleNamespace(client=SimpleNamespace(networks=SimpleNamespace(list=lambda names: [network])))
    assert _gateways(client, "bridge") == addresses
