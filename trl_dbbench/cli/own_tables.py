"""The command `import`: tasks of tables that are there already, on a server or in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trl_dbbench.cli.options import ColumnTypes, Delimiter, Encoding, csv_options, names
from trl_dbbench.cli.tasks import said_of, write_tasks
from trl_dbbench.database.server.tables import DEFAULT_SAMPLE
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks.split import skill_counts, split_tasks
from trl_dbbench.utils.files import check_writable

if TYPE_CHECKING:
    from trl_dbbench.data.generate.own import Drafts


TableNames = Annotated[str | None, typer.Option(help="Only these tables, joined by commas; all by default.")]
Difficulty = Annotated[
    int | None, typer.Option(min=1, help="Most skills of a task: 1 to 3 for a small model to begin with.")
]
Force = Annotated[bool, typer.Option("--force", help="Replaces files that are there already.")]


def import_tables(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="URL|FILE...",
            help="A server, mysql+pymysql://user:password@host:port/, or files: CSV files, each a table, "
            "parquet files, SQLite files, dumps (.sql, .sql.gz); or a folder of CSV and parquet files.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The JSONL file of tasks to write.")],
    database: Annotated[
        str | None, typer.Option(help="The database of a server or a dump, if it has several.")
    ] = None,
    tables: TableNames = None,
    sample: Annotated[
        int,
        typer.Option(help="Most rows of a table, drawn at random; of a server those too that they refer to."),
    ] = DEFAULT_SAMPLE,
    num_tasks: Annotated[int, typer.Option(min=1, help="How many questions and changes.")] = 500,
    difficulty: Difficulty = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    type_: ColumnTypes = None,
    force: Force = False,
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

    from trl_dbbench.data.generate.imported import import_from
    from trl_dbbench.data.generate.own import Drafts

    for path in filter(None, (out, test_out)):
        check_writable(path)
        if path.exists() and not force:
            raise ConfigError(f"'{path}' is there already; --force replaces it, or name another file.")
    csv = csv_options(delimiter, encoding, type_)
    found = import_from(sources, database, names(tables), sample, seed, csv)
    for line in (*(f"note: {note}" for note in found.notes), *found.described()):
        typer.echo(line, err=True)
    drafts = Drafts(found.tables, num_tasks, seed, difficulty)
    tasks = list(tqdm(drafts, total=num_tasks, desc="import", unit="task"))
    for note in _missing(drafts, Counter(task.tables[0].name for task in tasks)):
        typer.echo(f"note: {note}", err=True)
    if test_out is None:
        write_tasks(out, tasks)
        typer.echo(f"{out}: {_counted(tasks)}")
        return
    halves = split_tasks(tasks, test_size, seed)
    for path, half in ((out, halves.train), (test_out, halves.test)):
        write_tasks(path, half)
        typer.echo(f"{path}: {_counted(half)}")
    typer.echo(said_of(halves))


def _missing(drafts: Drafts, counted: Counter[str]) -> Iterator[str]:
    """What there are no tasks of."""
    if drafts.missing:
        yield f"these tables give no (more) tasks of {', '.join(drafts.missing)}"
    for table in drafts.tables:
        if not counted[table.name]:
            why = (
                "a table needs two rows and two columns of numbers, dates or short texts"
                if table.name in drafts.silent
                else "no question of it was drawn; raise --num-tasks"
            )
            yield f"{table.name} gives no tasks: {why}"


def _counted(tasks: list) -> str:
    operations = skill_counts(tasks)["operation"]
    return f"{len(tasks)} tasks ({', '.join(f'{count} {name}' for name, count in operations.most_common())})"
