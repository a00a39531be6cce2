"""A private `mysqld` or `mariadbd` process on a unix socket."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from trl_dbbench.database.server.start import (
    BOUNDED,
    BOUNDED_MARIADB,
    BOUNDED_MYSQL,
    ENVIRONMENT,
    FAST,
    LOG_CHARACTERS,
    SHOWN_CHARACTERS,
    START_SECONDS,
    Server,
    wait_for,
)
from trl_dbbench.errors import DatabaseError

STOP_SECONDS = 10
"""Seconds that a process may take to end before it is killed."""

_USABLE = re.compile(r"[\w./-]{1,59}", re.ASCII)
"""Pattern of usable temporary directories: a socket's path may have at most 107 characters,
mariadb-install-db accepts no blanks, and the server's URL no `+`."""


def start_local() -> Server:
    """Start a private `mysqld` or `mariadbd` on a unix socket, with its data in a temporary folder.

    Raises:
        DatabaseError: neither is on the PATH, or it does not come up.
    """
    program = shutil.which("mysqld") or shutil.which("mariadbd")
    if program is None:
        raise DatabaseError(
            "Neither mysqld nor mariadbd is on the PATH. Install one (Debian: apt install mariadb-server) or "
            'add its folder to the PATH; or open "docker", "sqlite" or the URL of a running server.'
        )
    usable = _USABLE.fullmatch(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="dbb", dir=None if usable else "/tmp"))
    try:
        process = _start_process(program, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    url = f"mysql+pymysql://root@localhost/?unix_socket={folder}/sock"

    def kill() -> None:
        if process.poll() is None:
            # the guardian and its server: killing only the guardian, the server would answer a moment longer
            os.killpg(process.pid, signal.SIGKILL)

    def stop() -> None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill()
        shutil.rmtree(folder, ignore_errors=True)

    def restart() -> None:
        nonlocal process
        kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)  # this data was never meant to be recovered
        try:
            folder.mkdir(mode=0o700)
            process = _start_process(program, folder)
        except OSError as error:  # a full disk, too many open files
            raise DatabaseError(f"{program} cannot be started again: {error}") from None

    return Server(
        url,
        f"private server {program}",
        stop=cache(stop),
        kill=kill,
        alive=lambda: process.poll() is None,
        restart=restart,
        log=lambda: _tail(folder / "log", LOG_CHARACTERS),
    )


def _start_process(program: str, folder: Path) -> subprocess.Popen[bytes]:
    version = _output([program, "--no-defaults", "--version"])
    user = ["--user=root"] if os.geteuid() == 0 else []
    # its own tmpdir: in a shared one, a starting server removes the temporary tables of all servers
    data = [f"--datadir={folder}/data", f"--tmpdir={folder}"]
    if "MariaDB" in version:
        install = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
        if install is None:
            raise DatabaseError(
                f"{program} is MariaDB, but mariadb-install-db is not on the PATH. Install the whole server "
                'package, or open "docker", "sqlite" or the URL of a running server.'
            )
        root_without_password = "--auth-root-authentication-method=normal"
        _output([install, "--no-defaults", *data, *user, "--skip-test-db", root_without_password])
        extra = ["--skip-networking", "--skip-symbolic-links", *BOUNDED_MARIADB]
    else:
        _output([program, "--no-defaults", "--initialize-insecure", *data, *user])
        extra = ["--skip-networking", "--mysqlx=OFF", *BOUNDED_MYSQL]
    command = [program, "--no-defaults", *data, f"--socket={folder}/sock", *user]
    command += [f"--pid-file={folder}/pid", *extra, *FAST, *BOUNDED]
    guardian = Path(__file__).with_name("guardian.py")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guardian), str(os.getpid()), str(folder), *command],
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # an interrupt at the terminal is for the parent to handle
        )

    def check() -> None:
        if process.poll() is not None:
            raise DatabaseError(f"{program} ended at once. Its last words: {_tail(folder / 'log')}")

    try:
        wait_for(check, unix_socket=f"{folder}/sock", user="root")
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process


def _output(command: list[str]) -> str:
    try:
        # in a new session: an interrupt at the terminal is for the parent to handle
        apart: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True}
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, **apart)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatabaseError(f"{command[0]} cannot be run: {error}") from None
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-SHOWN_CHARACTERS:]
        raise DatabaseError(f"{command[0]} failed with status {done.returncode}. Its last words: {words}")
    return done.stdout


def _tail(log: Path, characters: int = SHOWN_CHARACTERS) -> str:
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace").strip()[-characters:]
    return ""
