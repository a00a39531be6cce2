"""Does a served task file keep anything of clients that come, and go when they like?

    python benchmarks/soak.py [--minutes 10] [--clients 64] [--json FILE]

Clients of the official SDK, in both versions of the protocol, play episodes over HTTP on a private MariaDB or
MySQL server. Each is a process; every other one is killed at a random moment, and some leave an episode open.
Prints the server's memory and descriptors after a quarter of the time and at the end, when all episodes have
ended, and what is left on the database server. Of the descriptors, connections to the database are kept for
the next episodes, as many as were needed at once. Exits with 1 if memory grew by more than 5 %, if there are
more of the other descriptors, if anything is left, or if any call failed in a way that it should not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import pymysql
from mcp import Client

from trl_dbbench.database.server.local import start_local
from trl_dbbench.tasks import load_tasks

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from databases import connect_arguments, owned, processes
from mcp_agents import DEMO, NEWEST, Agent, figures, http_server

IDLE_SECONDS = 5
LOOK_SECONDS = 15
REST_SECONDS = 45
"""Until the sessions of clients that are gone are forgotten, and free memory is given back."""
GROWTH = 0.05
TASKS = load_tasks(DEMO)
WAIT = "episodes are open, and no more are played at once"


async def visit(address: str, moments: random.Random, seen: Counter[str]) -> None:
    """One connection, and a few episodes over it."""
    async with Client(address, mode=moments.choice(["legacy", NEWEST])) as client:
        agent = Agent(client)
        for _ in range(moments.randint(1, 5)):
            task = moments.choice(TASKS)
            fine, said = await agent.call("start_task", task_id=task.id)
            if not fine:
                seen["told to wait" if WAIT in said else f"refused: {said}"] += 1
                await asyncio.sleep(moments.uniform(0.1, 0.5))
                continue
            episode = json.loads(said)["episode"]
            sql = moments.choice([task.gold.sql or "SELECT 1", "SELECT SLEEP(0.5)", "SELEC"])
            await agent.sql(episode, sql)
            if moments.random() < 0.1:
                seen["left an episode open"] += 1
                return
            seen[await agent.submit(episode, "no idea")] += 1


def visitor(address: str, seed: int, tell: Connection) -> None:
    """A process that makes one visit, and tells what it met."""
    seen: Counter[str] = Counter()
    try:
        asyncio.run(visit(address, random.Random(seed), seen))
    except BaseException as error:
        seen[f"failed: {error!r}"] += 1
    tell.send(seen)


def clients(address: str, number: int, seconds: float, seeds: Iterator[int]) -> Counter[str]:
    """What all of them met, and how often."""
    fork = multiprocessing.get_context("fork")
    seen: Counter[str] = Counter()
    there: list[tuple[multiprocessing.process.BaseProcess, Connection, float]] = []
    end, next_look = time.monotonic() + seconds, time.monotonic() + LOOK_SECONDS
    while there or time.monotonic() < end:
        for each in list(there):
            process, told, until = each
            if process.is_alive() and time.monotonic() < until:
                continue
            if process.is_alive():
                process.kill()
                seen["killed"] += 1
            elif told.poll():
                seen += told.recv()
            process.join()
            told.close()
            there.remove(each)
        while len(there) < number and time.monotonic() < end:
            seed = next(seeds)
            moments = random.Random(-seed)
            stays = moments.uniform(0.0, 3.0) if moments.random() < 0.5 else 600.0
            told, tell = fork.Pipe(duplex=False)
            process = fork.Process(target=visitor, args=(address, seed, tell), daemon=True)
            process.start()
            tell.close()
            there.append((process, told, time.monotonic() + stays))
        if time.monotonic() > next_look:
            next_look += LOOK_SECONDS
            print(reading(address), flush=True)
        time.sleep(0.02)
    return seen


def reading(address: str) -> dict[str, float]:
    """The server's memory in MB and its descriptors, after so many episodes."""
    read = figures(address)
    return {
        "megabytes": round(read["process_resident_memory_bytes",] / 2**20, 1),
        "descriptors": read["process_open_fds",],
        "episodes": sum(value for key, value in read.items() if key[0] == "dbbench_episodes_total"),
    }


def at_rest(address: str, database: str) -> dict[str, float]:
    """A reading when all episodes have ended, and the server's connections to the database at this URL."""
    while figures(address)["dbbench_episodes_open",]:
        time.sleep(0.5)
    time.sleep(REST_SECONDS)
    with pymysql.connect(**connect_arguments(database)) as looks, looks.cursor() as cursor:
        return reading(address) | {"connections": len(processes(cursor)) - 1}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    seconds, seeds = 60 * arguments.minutes, count(1)
    database = start_local()
    try:
        with tempfile.TemporaryDirectory() as folder:
            before = owned(database.url)
            options = (
                "--database",
                database.url,
                "--idle-seconds",
                IDLE_SECONDS,
                "--save",
                f"{folder}/s",
            )
            with http_server(*options) as (_, address):
                seen = clients(address, arguments.clients, seconds / 4, seeds)
                first = at_rest(address, database.url)
                print(f"after a quarter: {first}", flush=True)
                seen += clients(address, arguments.clients, 3 * seconds / 4, seeds)
                last = at_rest(address, database.url)
                print(f"at the end:      {last}")
            left = sorted(owned(database.url) - before)
    finally:
        database.stop()
    growth = last["megabytes"] / first["megabytes"] - 1
    others = [each["descriptors"] - each["connections"] for each in (first, last)]
    wrong = [said for said in seen if said.startswith(("refused", "failed"))]
    print(
        f"memory {100 * growth:+.1f} %; descriptors but for the database's {others[0]:g}, then {others[1]:g}"
    )
    print(f"left on the database server: {left or 'nothing'}; met:")
    for said, times in seen.most_common():
        print(f"  {times:>7} {said}")
    if arguments.json:
        found = {"first": first, "last": last, "growth": growth, "left": left, "met": seen}
        arguments.json.write_text(json.dumps(found) + "\n")
    sys.exit(growth > GROWTH or others[1] > others[0] or bool(left or wrong))


if __name__ == "__main__":
    main()
