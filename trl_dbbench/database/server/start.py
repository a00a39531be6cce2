"""Starts the servers that a run owns: MySQL in Docker, or a private `mysqld` or `mariadbd` process.

Their options are in `options.py`. Both end with the process that started them, however it ends.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pymysql

from trl_dbbench.database.server.options import BOUNDED, BOUNDED_MARIADB, FAST
from trl_dbbench.errors import DatabaseError

logger = logging.getLogger("trl_dbbench.database")

START_SECONDS = 120
"""How long a server may take to let us in, or a command that prepares it to end."""

DOCKER_PING_SECONDS = 5
DOCKER_SECONDS = 600
"""How long a request to the Docker daemon may take; pulling an image is one."""

PORT_TRIES = 5

STOP_SECONDS = 10
"""How long a process may take to end before it is killed."""

MAX_DIRECTORY_CHARACTERS = 60
"""A temporary directory with a longer path is not used: the path of a socket may have 107 characters."""

SHOWN_CHARACTERS = 500
"""How much of a program's output an error quotes."""

_ROOT_WITHOUT_PASSWORD = "--auth-root-authentication-method=normal"
_PORT_TAKEN = re.compile("port is already allocated|address already in use", re.IGNORECASE)
_LABEL = "trl-dbbench.owner"
_REAPER = "ryuk"
"""testcontainers cleans up from a container of this image, which not every machine can pull."""

_ADVICE = 'or open "local", "sqlite" or the URL of a running server'


@dataclass(frozen=True)
class Server:
    """A running server: its URL, and `where` it runs in words.

    `stop` may be called repeatedly. `kill` ends it at once, as a failure would. `restart` replaces a server
    that has ended with an empty one at the same URL, and raises DatabaseError if that fails.
    """

    url: str
    where: str
    stop: Callable[[], None]
    kill: Callable[[], None]
    alive: Callable[[], bool]
    restart: Callable[[], None]


def connect_to_docker() -> Any:
    """A client of the Docker daemon, which answers.

    Raises:
        DatabaseError: it does not.
    """
    # these take a second to import, and only what uses Docker needs them
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
    """Starts MySQL in a container, on a free port that only this machine can reach if Docker runs there, too.

    Raises:
        DatabaseError: Docker does not answer, the image cannot be had, or the server does not come up.
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
        except (DockerException, OSError):  # Docker itself does not answer, and a restart would not help
            return True

    url = f"mysql+pymysql://root:{password}@{host}:{port}/"
    return Server(
        url,
        f"in Docker ({image})",
        stop=_once(lambda: _stop_container(container)),
        kill=lambda: _stop_container(container),
        alive=alive,
        restart=restart,
    )


def _start_on_a_free_port(image: str, password: str) -> tuple[Any, str, int]:
    """A container with a port that it keeps; one that Docker chooses is another after a `docker restart`."""
    for _ in range(PORT_TRIES):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            return _start_mysql_container(image, password, port)
        except DatabaseError as error:  # somebody else has taken it meanwhile
            if not _PORT_TAKEN.search(str(error)):
                raise
    raise DatabaseError(f"Docker found each of {PORT_TRIES} ports taken that had been free. Try again.")


def _start_mysql_container(image: str, password: str, port: int) -> tuple[Any, str, int]:
    """A container whose MySQL lets us in, with its host and port.

    Raises:
        DatabaseError: the image cannot be had, or the server does not come up.
    """
    container = None
    try:
        container = _start_container(image, password, port)
        host = container.get_container_host_ip()
        host = "127.0.0.1" if host == "localhost" else host  # localhost may mean IPv6, where nothing is bound
        port = int(container.get_exposed_port(3306))
        _wait_for(lambda: None, host=host, port=port, user="root", password=password)
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
    """A started container; without testcontainers' reaper, if its image cannot be pulled."""
    from testcontainers.core.config import testcontainers_config

    container = _container(image, password, port)
    try:
        container.start()
    except Exception as error:
        _stop_container(container)
        if testcontainers_config.ryuk_disabled or _REAPER not in str(error):
            raise
        logger.info(
            "The reaper of testcontainers cannot be pulled; the next run removes what a killed one leaves."
        )
        testcontainers_config.ryuk_disabled = True
        container = _container(image, password, port)
        container.start()
    return container


def _container(image: str, password: str, port: int) -> Any:
    from testcontainers.community.mysql import MySqlContainer

    container = MySqlContainer(
        image,
        username="root",
        password=password,
        dbname="dbbench",
        docker_client_kw={"timeout": DOCKER_SECONDS},
        labels={_LABEL: _owner(os.getpid())},
    ).with_command(" ".join((*FAST, *BOUNDED)))
    container.ports = cast(dict, _published(container.get_docker_client(), port))
    return container


def _published(client: Any, port: int) -> dict[str, Any]:
    """Which of this machine's ports leads to MySQL's, as Docker wants to be told; nobody else may reach it.

    A trainer that runs in a container itself does not share the machine's loopback address. It reaches what
    Docker publishes at the machine's address in a Docker network, or a container of its own network directly.
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
    """This machine's addresses in Docker's networks, or in those of these names."""
    networks = client.client.networks.list(names=list(names) or None)
    parts = [part for network in networks for part in network.attrs["IPAM"]["Config"] or ()]
    return [part["Gateway"] for part in parts if "Gateway" in part]


def _stop_container(container: Any) -> None:
    with contextlib.suppress(Exception):
        container.stop()


def _owner(pid: int) -> str:
    """This machine, a process and its start, which tells it from a later process with the same number."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{socket.gethostname()}/{pid}/{started}"


def _remove_orphans(client: Any) -> None:
    """Removes containers whose process on this machine was killed; needed if the reaper is disabled."""
    if not Path("/proc/self/stat").exists():
        return
    for container in client.containers.list(all=True, filters={"label": _LABEL}):
        owner = container.labels[_LABEL]
        host, pid, _ = owner.split("/")
        if host == socket.gethostname() and _owner(int(pid)) != owner:
            logger.info("Removing the container %s, which a killed run left behind.", container.short_id)
            container.remove(force=True, v=True)


def start_local() -> Server:
    """Starts a private `mysqld` or `mariadbd` on a unix socket, with its data in a temporary folder.

    Raises:
        DatabaseError: neither is on the PATH, or it does not come up.
    """
    program = shutil.which("mysqld") or shutil.which("mariadbd")
    if program is None:
        raise DatabaseError(
            "Neither mysqld nor mariadbd is on the PATH. Install one (Debian: apt install mariadb-server) or "
            'add its folder to the PATH; or open "docker", "sqlite" or the URL of a running server.'
        )
    short = len(tempfile.gettempdir()) < MAX_DIRECTORY_CHARACTERS
    folder = Path(tempfile.mkdtemp(prefix="dbb", dir=None if short else "/tmp"))
    try:
        process = _start_process(program, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    url = f"mysql+pymysql://root@localhost/?unix_socket={folder}/sock"

    def stop() -> None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)

    def restart() -> None:
        nonlocal process
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)  # this data was never meant to be recovered
        folder.mkdir(mode=0o700)
        process = _start_process(program, folder)

    return Server(
        url,
        f"private server {program}",
        stop=_once(stop),
        kill=lambda: process.kill(),
        alive=lambda: process.poll() is None,
        restart=restart,
    )


def _start_process(program: str, folder: Path) -> subprocess.Popen[bytes]:
    version = _output([program, "--no-defaults", "--version"])
    user = [f"--user={getpass.getuser()}"] if os.geteuid() == 0 else []
    # in a folder that others share, a server that starts removes the temporary tables of all
    data = [f"--datadir={folder}/data", f"--tmpdir={folder}"]
    if "MariaDB" in version:
        install = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
        if install is None:
            raise DatabaseError(
                f"{program} is MariaDB, but mariadb-install-db is not on the PATH. Install the whole server "
                'package, or open "docker", "sqlite" or the URL of a running server.'
            )
        _output([install, "--no-defaults", *data, *user, "--skip-test-db", _ROOT_WITHOUT_PASSWORD])
        extra = ["--skip-networking", "--skip-symbolic-links", *BOUNDED_MARIADB]
    else:
        _output([program, "--no-defaults", "--initialize-insecure", *data, *user])
        extra = ["--skip-networking", "--mysqlx=OFF"]
    command = [program, "--no-defaults", *data, f"--socket={folder}/sock", *user]
    command += [f"--pid-file={folder}/pid", *extra, *FAST, *BOUNDED]
    guardian = Path(__file__).with_name("guardian.py")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guardian), str(os.getpid()), str(folder), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # an interrupt at the terminal is for the parent to handle
        )

    def check() -> None:
        if process.poll() is not None:
            raise DatabaseError(f"{program} ended at once. Its last words: {_tail(folder / 'log')}")

    try:
        _wait_for(check, unix_socket=f"{folder}/sock", user="root")
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process


def _wait_for(check: Callable[[], None], **where: Any) -> None:
    """Returns when the server lets us in; `check` raises when waiting has become pointless."""
    end = time.monotonic() + START_SECONDS
    while True:
        check()
        try:
            pymysql.connect(**where, connect_timeout=5, read_timeout=5).close()
            return
        except pymysql.MySQLError as error:
            if time.monotonic() > end:
                raise DatabaseError(
                    f"The server was started but lets nobody in after {START_SECONDS} s: {error.args[-1]}."
                ) from None
        time.sleep(0.1)


def _output(command: list[str]) -> str:
    try:
        # in a session of its own: an interrupt at the terminal is for the parent to handle
        apart: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True}
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, **apart)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatabaseError(f"{command[0]} cannot be run: {error}") from None
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-SHOWN_CHARACTERS:]
        raise DatabaseError(f"{command[0]} failed with status {done.returncode}. Its last words: {words}")
    return done.stdout


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace").strip()[-SHOWN_CHARACTERS:]
    return ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:SHOWN_CHARACTERS]


def _once(function: Callable[[], None]) -> Callable[[], None]:
    called = False

    def call() -> None:
        nonlocal called
        if not called:
            called = True
            function()

    return call
