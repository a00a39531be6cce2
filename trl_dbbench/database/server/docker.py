"""MySQL in a Docker container, on a port that only this machine can reach."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any, cast

from trl_dbbench.database.server.start import (
    BOUNDED,
    BOUNDED_MYSQL,
    ENVIRONMENT,
    FAST,
    LOG_CHARACTERS,
    SHOWN_CHARACTERS,
    Server,
    wait_for,
)
from trl_dbbench.errors import DatabaseError

logger = logging.getLogger("trl_dbbench.database")

DOCKER_PING_SECONDS = 5
DOCKER_SECONDS = 600
"""Seconds that a request to the Docker daemon may take, including the pull of an image."""

PORT_TRIES = 5

_PORT_TAKEN = re.compile("port is already allocated|address already in use", re.IGNORECASE)
_LABEL = "trl-dbbench.owner"
_REAPER = "ryuk"
"""Image of the container that cleans up for testcontainers. Not every machine can pull it."""

_ADVICE = 'or open "local", "sqlite" or the URL of a running server'


def connect_to_docker() -> Any:
    """Return a client of the Docker daemon after checking that it answers.

    Raises:
        DatabaseError: the daemon does not answer.
    """
    # these take a second to import and are needed only for Docker
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=DOCKER_PING_SECONDS)
        client.ping()
    except DockerException as error:
        raise DatabaseError(
            f"Docker does not answer ({_first_line(error)}). Start it and make sure that this user may use "
            f"it (`docker info`), {_ADVICE}."
        ) from None
    return client


def start_docker(image: str) -> Server:
    """Start MySQL in a container on a free port, which only this machine can reach if Docker runs on it.

    Raises:
        DatabaseError: Docker does not answer, the image cannot be pulled, or the server does not come up.
    """
    from docker.errors import DockerException, NotFound

    client = connect_to_docker()
    with contextlib.suppress(DockerException, OSError):
        _remove_orphans(client)
    client.close()
    password = secrets.token_urlsafe(18)
    container, host, port = _start_on_a_free_port(image, password)

    def restart() -> None:
        nonlocal container
        _stop_container(container)
        container, _, _ = _start_mysql_container(image, password, port)

    def alive() -> bool:
        try:
            wrapped = container.get_wrapped_container()
            wrapped.reload()
            return bool(wrapped.status == "running")
        except NotFound:
            return False
        except (DockerException, OSError):  # Docker itself does not answer, so a restart would not help
            return True

    url = f"mysql+pymysql://root:{password}@{host}:{port}/"
    return Server(
        url,
        f"in Docker ({image})",
        stop=cache(lambda: _stop_container(container)),
        kill=lambda: _stop_container(container),
        alive=alive,
        restart=restart,
        log=lambda: _log(container),
    )


def _start_on_a_free_port(image: str, password: str) -> tuple[Any, str, int]:
    """Start a container on a port that we choose; Docker would choose a new one at each `docker restart`."""
    for _ in range(PORT_TRIES):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            return _start_mysql_container(image, password, port)
        except DatabaseError as error:  # another program may have taken the port meanwhile
            if not _PORT_TAKEN.search(str(error)):
                raise
    raise DatabaseError(f"Docker found each of {PORT_TRIES} ports taken that had been free. Try again.")


def _start_mysql_container(image: str, password: str, port: int) -> tuple[Any, str, int]:
    """Start a container and wait until its MySQL accepts our login; return it with its host and port."""
    container = None
    try:
        container = _start_container(image, password, port)
        host = container.get_container_host_ip()
        host = "127.0.0.1" if host == "localhost" else host  # localhost may mean IPv6, where nothing is bound
        port = int(container.get_exposed_port(3306))
        wait_for(lambda: None, host=host, port=port, user="root", password=password)
        return container, host, port
    except Exception as error:
        if container is not None:
            _stop_container(container)
        if isinstance(error, DatabaseError):
            raise
        raise DatabaseError(
            f"Docker cannot run the image {image!r}: {_first_line(error)}. Check its name and that it can be "
            f"pulled (`docker pull {image}`), give another as docker_image, {_ADVICE}."
        ) from None


def _start_container(image: str, password: str, port: int) -> Any:
    """Start a container, without testcontainers' reaper if the reaper's image cannot be pulled."""
    from testcontainers.community.mysql import MySqlContainer
    from testcontainers.core.config import testcontainers_config

    container = MySqlContainer(
        image,
        username="root",
        password=password,
        dbname="dbbench",
        docker_client_kw={"timeout": DOCKER_SECONDS},
        labels={_LABEL: _owner(os.getpid())},
    ).with_command(" ".join((*FAST, *BOUNDED, *BOUNDED_MYSQL)))
    container.env |= ENVIRONMENT
    container.ports = cast(dict, _published(container.get_docker_client(), port))
    try:
        return container.start()
    except Exception as error:
        _stop_container(container)
        if testcontainers_config.ryuk_disabled or _REAPER not in str(error):
            raise
    logger.info(
        "The reaper of testcontainers cannot be pulled; the next run removes what a killed one leaves."
    )
    testcontainers_config.ryuk_disabled = True
    return _start_container(image, password, port)


def _published(client: Any, port: int) -> dict[str, Any]:
    """Return Docker's port mapping for MySQL, bound to an address that other machines cannot reach.

    A trainer that itself runs in a container does not share the machine's loopback address. It reaches ports
    that Docker publishes at the machine's address in a Docker network, and containers of its own network
    directly.
    """
    from testcontainers.core.config import ConnectionMode

    mode = client.get_connection_mode()
    if mode == ConnectionMode.bridge_ip:
        return {}
    host = client.host() if mode == ConnectionMode.docker_host else _gateways(client, "bridge")[0]
    if host in ("localhost", "127.0.0.1"):
        return {"3306/tcp": ("127.0.0.1", port)}
    if host in _gateways(client):
        return {"3306/tcp": (host, port)}
    return {"3306/tcp": port}  # Docker runs on another machine


def _gateways(client: Any, *names: str) -> list[str]:
    """Return this machine's addresses in all Docker networks, or in the named ones."""
    networks = client.client.networks.list(names=list(names) or None)
    parts = [part for network in networks for part in network.attrs["IPAM"]["Config"] or ()]
    # an engine that has just made its first bridge does not report the gateway, which is the first address
    return [part.get("Gateway") or str(next(ip_network(part["Subnet"]).hosts())) for part in parts]


def _log(container: Any) -> str:
    from docker.errors import DockerException

    try:
        lines = container.get_wrapped_container().logs(tail=1000)
    except (DockerException, OSError):
        return ""
    return lines.decode(errors="replace")[-LOG_CHARACTERS:]


def _stop_container(container: Any) -> None:
    with contextlib.suppress(Exception):
        container.stop()


def _owner(pid: int) -> str:
    """Return a label with this machine, a process id and the process's start time, as ids are reused."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{socket.gethostname()}/{pid}/{started}"


def _remove_orphans(client: Any) -> None:
    """Remove containers of killed processes on this machine; needed if the reaper is disabled."""
    for container in client.containers.list(all=True, filters={"label": _LABEL}):
        owner = container.labels[_LABEL]
        host, pid, _ = owner.split("/")
        if host == socket.gethostname() and _owner(int(pid)) != owner:
            logger.info("Removing the container %s, which a killed run left behind.", container.short_id)
            container.remove(force=True, v=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:SHOWN_CHARACTERS]
