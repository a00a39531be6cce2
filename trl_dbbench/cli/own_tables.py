"""The command `import`: tasks of tables that are there already, in CSV files or on a server."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trl_dbbench.cli.options import names
from trl_dbbench.cli.tasks import said_of, write_tasks
from trl_dbbench.database.server.tables import DEFAULT_SAMPLE, read_tables
from trl_dbbench.errors import ConfigError
from trl_dbbench.files import check_writable
from trl_dbbench.selection import skill_counts, split_tasks
from trl_dbbench.tasks import Table
from trl_dbbench.tasks.csv_tables import read_csv_tables


def import_tables(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="URL|CSV...",
            help="A server, mysql+pymysql://user:password@host:port/, or CSV files, each a table.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The JSONL file of tasks to write.")],
    database: Annotated[
        str | None, typer.Option(help="The database of the server, if the URL does not name it.")
    ] = None,
    tables: Annotated[
        str | None, typer.Option(help="Only these tables, joined by commas; all by default.")
    ] = None,
    sample: Annotated[
        int, typer.Option(help="Most rows of a table, drawn at random; and those that they refer to.")
    ] = DEFAULT_SAMPLE,
    num_tasks: Annotated[int, typer.Option(min=1, help="How many questions and changes.")] = 500,
    seed: Annotated[int, typer.Option(help="The same seed and rows give the same tasks.")] = 0,
    test_out: Annotated[
        Path | None, typer.Option(help="Holds tasks out and writes them to this file, as `split` does.")
    ] = None,
    test_size: Annotated[float, typer.Option(help="The share of the tasks that is held out.")] = 0.1,
) -> None:
    """Drafts tasks over tables of your own, with gold SQL that has been executed.

    A server is only read.
    """
    from tqdm.auto import tqdm

    from trl_dbbench.generate.own import Drafts

    for path in filter(None, (out, test_out)):
        check_writable(path)
    drafts = Drafts(_tables(sources, database, names(tables), sample, seed), num_tasks, seed)
    tasks = list(tqdm(drafts, total=num_tasks, desc="import", unit="task"))
    if drafts.missing:
        typer.echo(f"note: these tables give no (more) tasks of {', '.join(drafts.missing)}", err=True)
    if test_out is None:
        write_tasks(out, tasks)
        typer.echo(f"{out}: {_counted(tasks)}")
        return
    halves = split_tasks(tasks, test_size, seed)
    for path, half in ((out, halves.train), (test_out, halves.test)):
        write_tasks(path, half)
        typer.echo(f"{path}: {_counted(half)}")
    typer.echo(said_of(halves))


def _tables(
    sources: list[str], database: str | None, wanted: list[str] | None, sample: int, seed: int
) -> list[Table]:
    """The tables that the sources hold; what of them is lost is said."""
    servers = [source for source in sources if "://" in source]
    if servers and len(sources) > 1:
        raise ConfigError("give the URL of one server, or CSV files, not both.")
    if servers:
        read = read_tables(servers[0], database, wanted, sample, seed)
        from trl_dbbench.generate.usable import usable

        tables, notes = usable(read.tables)
        for note in [*read.notes, *notes]:
            typer.echo(f"note: {note}", err=True)
        return tables
    if database is not None or wanted is not None:
        raise ConfigError("--database and --tables are for a server; of CSV files each is a table.")
    return [_sampled(table, sample, seed) for table in read_csv_tables(sources).values()]


def _sampled(table: Table, sample: int, seed: int) -> Table:
    if sample < 1:
        raise ConfigError(f"the sample is {sample} rows; it must be at least 1.")
    if len(table.rows) <= sample:
        return table
    typer.echo(f"note: {table.name}: {sample} of its {len(table.rows):,} rows are taken (--sample)", err=True)
    chosen = sorted(random.Random(seed).sample(range(len(table.rows)), sample))
    return replace(table, rows=tuple(table.rows[row] for row in chosen))


def _counted(tasks: list) -> str:
    operations = skill_counts(tasks)["operation"]
    return f"{len(tasks)} tasks ({', '.join(f'{count} {name}' for name, count in operations.most_common())})"
