"""How often the embedded database answers as MySQL does.

    python benchmarks/parity.py [--statements 100000] [--processes 2] [--corpus FILE] [--slips 10] [--seed 0]
        [--json FILE] [--wrong N] [--odd N]

Executes statements on MySQL in Docker and on the embedded database, and compares rows (in their order where
the statement determines it), the tables after a change, and the kinds of errors. Statements are drawn at
random over random tables, one in four with a slip in it; with --corpus, those of a file with `db_id` and
`sql` in each line are added, over tables made to fit them, as they are and with slips. With --odd N, N are
added in rarer forms (`tests/random_odd_sql.py`). Prints the share of
each verdict by source and by construct; a statement counts for each construct that it has. --wrong N prints
the first N that were answered otherwise, as they are found. Ctrl+C ends it with the figures so far.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from multiprocessing.util import Finalize
from pathlib import Path

from tqdm import tqdm

from trl_dbbench.database import Database, open_database
from trl_dbbench.tasks import Table

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from fitted import fitted
from mysql_parity import WRONG, play
from random_odd_sql import OddWriter
from random_sql import Writer, slip, tables

A_WORLD = 100
"""Statements over the same tables."""

Part = tuple[str, int, str]
"""A source, a seed, and the database of the corpus."""

CONSTRUCTS = {
    "WHERE": r"\bWHERE\b",
    "joins": r"\bJOIN\b",
    "outer joins": r"\b(LEFT|RIGHT)\s+(OUTER\s+)?JOIN\b",
    "GROUP BY": r"\bGROUP\s+BY\b",
    "HAVING": r"\bHAVING\b",
    "aggregates": r"\b(COUNT|SUM|AVG|MIN|MAX|GROUP_CONCAT|STDDEV)\s*\(",
    "ORDER BY": r"\bORDER\s+BY\b",
    "LIMIT": r"\bLIMIT\b",
    "DISTINCT": r"\bDISTINCT\b",
    "windows": r"\bOVER\s*\(",
    "set operations": r"\b(UNION|INTERSECT|EXCEPT)\b",
    "WITH": r"\bWITH\b",
    "subqueries": r"\(\s*SELECT\b",
    "CASE, IF": r"\b(CASE|IF|IFNULL|COALESCE|NULLIF)\b",
    "LIKE, REGEXP": r"\b(LIKE|REGEXP)\b",
    "arithmetic": r"[\w)]\s*([+*/%]|DIV|MOD)\s*[\w(']|\b(ROUND|FLOOR|CEIL|ABS|POWER|TRUNCATE)\s*\(",
    "CAST": r"\bCAST\s*\(",
    "functions of texts": r"\b(CONCAT|SUBSTR|UPPER|LOWER|TRIM|REPLACE|LEFT|RIGHT|LENGTH|LOCATE)\w*\s*\(",
    "dates": r"\b(DATE|YEAR|MONTH|DAY|INTERVAL|STR_TO_DATE|TIMESTAMPDIFF|EXTRACT|LAST_DAY)\w*\b",
    "INSERT, REPLACE": r"^\s*(INSERT|REPLACE)\b",
    "UPDATE": r"^\s*UPDATE\b",
    "DELETE": r"^\s*DELETE\b",
}


def corpus(path: Path) -> dict[str, list[str]]:
    found = defaultdict(list)
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        found[entry["db_id"]].append(entry["sql"])
    return found


def statements(part: Part, path: Path | None) -> tuple[tuple[Table, ...], list[str]]:
    """The tables and the statements of a part."""
    source, seed, name = part
    rng = random.Random(f"{source} {seed} {name}")
    if source.startswith("corpus"):
        assert path is not None
        written = corpus(path)[name]
        world = fitted(written, random.Random(name))
        return world, [slip(rng, sql) for sql in written] if "slip" in source else written
    world = tables(rng)
    if source == "rarer forms":
        odd = OddWriter(rng, world)
        return world, [odd.odd() for _ in range(A_WORLD)]
    writer = Writer(rng, world)
    drawn = [writer.query() if rng.random() < 0.8 else writer.change() for _ in range(A_WORLD)]
    return world, [slip(rng, sql) for sql in drawn] if "slip" in source else drawn


_databases: list[Database] = []
"""Of this process: MySQL and the embedded one."""
_opened = ExitStack()


def start() -> None:
    Finalize(None, _opened.close, exitpriority=1)
    _databases.extend(_opened.enter_context(open_database(name)) for name in ("docker", "sqlite"))


def run(part: Part, path: Path | None) -> list[tuple[str, str, str]]:
    """(statement, verdict, what was said) of each."""
    world, written = statements(part, path)
    return list(play(*_databases, world, written))


def parts(count: int, path: Path | None, first: int, slips: int, odd: int) -> Iterator[Part]:
    named = corpus(path) if path else {}
    for name in named:
        yield "corpus", 0, name
        for seed in range(first, first + slips):
            yield "corpus with a slip", seed, name
    left = count - (1 + slips) * sum(map(len, named.values()))
    worlds = max(-(-left // A_WORLD), 0)
    for seed in range(first, first + worlds):
        yield "generated" if seed % 4 else "generated with a slip", seed, ""
    for seed in range(first, first + -(-odd // A_WORLD)):
        yield "rarer forms", seed, ""


def shares(counts: dict[str, Counter]) -> Iterator[str]:
    yield "| | statements | same | open | not supported | answered otherwise | other errors | undecided |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, count in counts.items():
        total = sum(count.values())
        otherwise = sum(count[each] for each in WRONG if each != "other error")
        kinds = (count["same"], count["open"], count["not supported"], otherwise)
        figures = [100 * each / total for each in (*kinds, count["other error"], count["undecided"])]
        yield f"| {name} | {total:,} | " + " | ".join(f"{figure:.2f} %" for figure in figures) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--statements", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--slips", type=int, default=10, help="for each statement of the corpus")
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds that are drawn from")
    parser.add_argument("--wrong", type=int, default=0)
    parser.add_argument("--odd", type=int, default=0, help="statements in rarer forms, besides")
    parser.add_argument("--json", type=Path, help="add a line with the figures to this file")
    arguments = parser.parse_args()
    by_source, by_construct = defaultdict(Counter), {name: Counter() for name in CONSTRUCTS}
    shown, began = 0, time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
    wanted = (arguments.statements, arguments.corpus, arguments.seed, arguments.slips, arguments.odd)
    todo = list(parts(*wanted))
    with ProcessPoolExecutor(arguments.processes, initializer=start) as pool:
        running = {pool.submit(run, part, arguments.corpus): part for part in todo}
        try:
            for done in tqdm(as_completed(running), total=len(running), unit="world", mininterval=10):
                for sql, verdict, said in done.result():
                    by_source["all"][verdict] += 1
                    by_source[running[done][0]][verdict] += 1
                    for name, pattern in CONSTRUCTS.items():
                        if re.search(pattern, sql, re.IGNORECASE):
                            by_construct[name][verdict] += 1
                    if verdict in WRONG and shown < arguments.wrong:
                        shown += 1
                        print(f"[{verdict}] {running[done]} {sql}\n  ours: {said[:400]}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
    for counts in (by_source, by_construct):
        print(*shares({name: count for name, count in counts.items() if count}), sep="\n", end="\n\n")
    seconds = round(time.monotonic() - began)
    print(f"{sum(by_source['all'].values()):,} statements in {seconds:,} s")
    if arguments.json:
        with arguments.json.open("a") as file:
            figures = {"sources": by_source, "constructs": by_construct, "seconds": seconds}
            print(json.dumps(figures), file=file)


if __name__ == "__main__":
    main()
