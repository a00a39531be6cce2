"""A server whose disk is full for a while, in the middle of a batch: every episode reads what it would have read."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from databases import DOCKER_IMAGE, table, task
from fakes import RULES, ScriptedEngine
from required import LONG, lacking

from trl_dbbench.database import Database, open_database
from trl_dbbench.database.server.start import BOUNDED, BOUNDED_MYSQL, FAST
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Completion, Request, Status
from trl_dbbench.errors import DatabaseError
from trl_dbbench.rewards.outcome import OutcomeReward
from trl_dbbench.tasks import Gold

EPISODES = 64
THINK_SECONDS = 1.0
"""Between two turns, so that the batch is in all its stages when the disk fills up."""

ROWS = [(n, "x" * 200) for n in range(50)]
GOLD = "UPDATE notes SET note = 'short' WHERE id < 3"
CHANGE = dataclasses.replace(
    task(table("notes", "id INT, note TEXT", *ROWS)), operation="UPDATE", gold=Gold(sql=GOLD)
)
STATEMENTS = [
    "SELECT COUNT(*) FROM notes",
    "CREATE TABLE copies AS SELECT id, REPEAT(note, 5) AS note FROM notes",  # a larger one takes 10 MB of a server
    # not FROM copies: MySQL aborts (signal 6) where the temporary table that this needs has no room on the disk
    "INSERT INTO copies SELECT id, REPEAT(note, 5) FROM notes",
    "SELECT COUNT(*), SUM(LENGTH(note)) FROM copies",
    "DROP TABLE copies",
    GOLD,
]
READ = ["[(50,)]", "[]", "[]", "[(100, Decimal('100000'))]", "[]", "[]"]
TURNS = [
    *(f"Action: Operation\n```sql\n{sql}\n```" for sql in STATEMENTS),
    "Action: Answer\nFinal Answer: done",
]

Fill = Callable[[float], None]
"""Keeps the disk full for a number of seconds, then empties it."""


class ThinkingEngine(ScriptedEngine):
    async def generate(self, request: Request) -> Completion:
        await asyncio.sleep(THINK_SECONDS * (0.5 + (request.row % 7) / 7))
        return await super().generate(request)


@contextmanager
def mariadb(megabytes: int, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Database, Fill]]:
    """A private server with its data on a small file system."""
    place = Path(tempfile.mkdtemp(prefix="disk", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")

    def fill(seconds: float) -> None:
        end = time.monotonic() + seconds
        with (place / "ballast").open("ab", buffering=0) as file:
            while time.monotonic() < end:
                for block in (1 << 24, 1 << 16, 1 << 12, 1):  # large ones first: it must be full soon
                    try:
                        while file.write(b"x" * block):
                            pass
                    except OSError:
                        continue
                time.sleep(0.02)
        (place / "ballast").unlink()

    patch.setattr(tempfile, "tempdir", str(place))
    try:
        with open_database("local") as database:
            patch.undo()
            yield database, fill
    except DatabaseError as error:
        lacking("local", f"no 'local' database here: {error}")
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()


@contextmanager
def mysql(megabytes: int, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Database, Fill]]:
    """A server in a container with its data on a small file system, with the options of our own ones."""
    try:
        import docker

        client = docker.from_env()
        client.ping()
    except Exception as error:
        lacking("docker", f"no 'docker' database here: {error}")
    password = secrets.token_hex(8)
    container = client.containers.run(
        DOCKER_IMAGE,
        [*FAST, *BOUNDED, *BOUNDED_MYSQL],
        environment={"MYSQL_ROOT_PASSWORD": password},
        tmpfs={"/var/lib/mysql": f"rw,size={megabytes}m"},
        detach=True,
        remove=True,
    )

    def fill(seconds: float) -> None:
        container.exec_run(
            [
                "bash",
                "-c",
                f"end=$(($(date +%s) + {seconds:.0f})); cd /var/lib/mysql;"
                "while [ $(date +%s) -lt $end ]; do"
                "  for block in 16M 64k 4k 1; do dd if=/dev/zero bs=$block count=9999 >>ballast 2>/dev/null; done;"
                "  sleep 0.02;"
                "done; rm ballast",
            ]
        )

    try:
        container.reload()
        (network,) = container.attrs["NetworkSettings"]["Networks"].values()
        url = f"mysql+pymysql://root:{password}@{network['IPAddress']}:3306/"
        with open_when_up(url) as database:
            yield database, fill
    finally:
        container.kill()


@contextmanager
def open_when_up(url: str) -> Iterator[Database]:
    for _ in range(120):
        with ExitStack() as stack:
            try:
                database = stack.enter_context(open_database(url))
            except DatabaseError:
                time.sleep(0.5)
                continue
            yield database
            return
    raise AssertionError("the server does not come up")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [6, pytest.param(20, marks=LONG)])
@pytest.mark.parametrize(("server", "megabytes"), [(mariadb, 300), (mysql, 400)])
def test_a_disk_that_is_full_for_a_while(server, megabytes, seconds, tokenizer, tmp_path, monkeypatch):
    rules = dataclasses.replace(RULES, max_turns=len(TURNS))
    # MariaDB keeps a statement waiting for a minute: with more connections more of them meet the full disk
    monkeypatch.setattr("trl_dbbench.database.server.tenancy.ADMIN_CONNECTIONS", 32)
    with server(megabytes, tmp_path, monkeypatch) as (database, fill):
        player = Player.of(tokenizer, database, rules=rules)
        starts = [player.start(CHANGE) for _ in range(EPISODES)]
        filling = threading.Timer(1.5 * THINK_SECONDS, fill, [seconds])
        filling.start()
        episodes = player.play_all(starts, ThinkingEngine(tokenizer, dict.fromkeys(range(EPISODES), TURNS)))
        filling.join()

    assert [episode.fault for episode in episodes if episode.fault] == []
    for episode in episodes:
        assert [turn.observation for turn in episode.turns[:-1]] == READ
    assert {(episode.status, episode.right) for episode in episodes} == {(Status.ANSWERED, True)}
    assert OutcomeReward()(episodes) == [1.0] * EPISODES
    print("RETRIES", sum(episode.retries for episode in episodes))
    assert sum(episode.retries for episode in episodes) > 10, "the disk was full for many of them"
