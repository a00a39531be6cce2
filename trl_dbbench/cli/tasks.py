"""Commands that make, examine, convert and split tasks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trl_dbbench.cli import options as opt
from trl_dbbench.database import database_for, open_database
from trl_dbbench.database.server.tables import DEFAULT_SAMPLE
from trl_dbbench.episode.validation import validate as validate_tasks
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading import SQL_GRADERS, get_grader
from trl_dbbench.grading.statistics import wilson_interval
from trl_dbbench.tasks import Task, load_tasks
from trl_dbbench.tasks.split import Split, check_test_size, select_tasks, skill_counts, split_tasks
from trl_dbbench.utils.files import check_outputs, write_atomically, write_json

if TYPE_CHECKING:
    from trl_dbbench.data.audit import Audited
    from trl_dbbench.data.generate.own import Drafts


def validate(
    tasks: opt.Tasks,
    format: opt.TaskFormatName = None,
    grader: opt.GraderName = None,
    database: opt.TasksDatabase = "auto",
    docker_image: opt.DockerImage = None,
) -> None:
    """Executes every gold solution in the sandboxes and judges it by the graders that training uses.

    Tasks with gold results instead of gold SQL have nothing to execute; their databases must open.

    Exits with 1 if a gold solution is not right.
    """
    if grader is not None:
        get_grader(grader)  # so that an unknown one is an error before a server starts
    loaded = load_tasks(tasks, format=format)
    correct = 0
    with open_database(database_for(loaded, database), docker_image=docker_image) as opened:
        for validation in validate_tasks(loaded, opened, grader=grader):
            if validation.problem:
                typer.echo(f"{validation.task.id}: {validation.problem}")
            else:
                correct += 1
    if of_results := sum(bool(task.gold.results) for task in loaded):
        typer.echo(
            f"{of_results} have gold results and no gold SQL: nothing was executed but a look at their tables"
        )
    typer.echo(f"{correct} of {len(loaded)} gold solutions score as correct")
    raise typer.Exit(int(correct < len(loaded)))


def scores(
    tasks: opt.Tasks,
    predictions: Annotated[
        Path,
        typer.Argument(
            help="SQL: .jsonl with id and sql, a run's episodes.jsonl, .json by id, or a line for each task."
        ),
    ],
    format: opt.TaskFormatName = None,
    database: opt.TasksDatabase = "auto",
    docker_image: opt.DockerImage = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Writes what each grader says of each prediction.")
    ] = None,
) -> None:
    """Executes predicted SQL and scores it by the rules of each evaluator, side by side."""
    from tqdm.auto import tqdm

    from trl_dbbench.data.score_predictions import LIMITS, can_be_scored, read_predictions, score_all

    check_outputs([json_file], tasks, predictions)
    loaded = load_tasks(tasks, format=format)
    predicted = read_predictions(predictions, loaded)
    fitting = [task for task in loaded if can_be_scored(task)]
    if not fitting:
        raise ConfigError(f"'{tasks}' has no question with gold SQL: nothing can be scored.")
    if others := len(loaded) - len(fitting):
        typer.echo(f"{others} of {len(loaded)} tasks are left out: changes, or without gold SQL.")
    spec = database_for(fitting, database)
    with open_database(spec, docker_image=docker_image, limits=LIMITS) as opened:
        scored = list(tqdm(score_all(fitting, predicted, opened), total=len(fitting), unit="task"))
    for each in scored:
        if each.problem:
            typer.echo(f"{each.task.id}: {each.problem}")
    width = max(map(len, SQL_GRADERS))
    for name in SQL_GRADERS:
        values = [value for each in scored if (value := each.values[name]) is not None]
        low, high = wilson_interval(sum(value >= 1 for value in values), len(values))
        typer.echo(
            f"{name:<{width}}  {sum(values) / max(len(values), 1):6.1%} of {len(values)}; "
            f"right [{low:.1%}, {high:.1%}]"
        )
    if json_file is not None:
        entries = [
            {"id": each.task.id, "sql": each.sql, "scores": each.values, "problem": each.problem}
            for each in scored
        ]
        write_json(json_file, entries)


def convert(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Tasks in any format, or with --tables a file of questions.")
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The file to write: .jsonl, .json (lifelong), .parquet (verl)."),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            help="own, agentbench, lifelong, verl or a dotted path; read off OUT's name if left out."
        ),
    ] = None,
    source_format: Annotated[
        str | None,
        typer.Option("--from", help="The format of IN, or its dotted path; recognised if left out."),
    ] = None,
    tables: Annotated[
        list[Path] | None, typer.Option(help="A CSV file that is a table of the questions; once for each.")
    ] = None,
    delimiter: opt.Delimiter = None,
    encoding: opt.Encoding = None,
    type_: opt.ColumnTypes = None,
    split: Annotated[
        str | None, typer.Option(help="The split of IN, if it has several; also extra_info.split for verl.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="text (default), tools or a dotted path; for verl's prompts.")
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leaves out tasks that OUT's format cannot hold.")
    ] = False,
) -> None:
    """Writes tasks in another format, or makes them from CSV files; says what the format cannot hold."""
    from trl_dbbench.data.convert import convert as convert_tasks

    conversion = convert_tasks(
        source,
        target,
        to,
        source_format=source_format,
        tables=tables or (),
        csv=opt.csv_options(delimiter, encoding, type_),
        split=split,
        protocol=protocol,
        skip=skip,
    )
    for note in conversion.notes:
        typer.echo(f"note: {note}", err=True)
    for warning in conversion.warnings():
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{conversion.path}: {conversion.written} tasks in the format {conversion.format}")


def generate(
    num_tasks: Annotated[int, typer.Option(help="Number of tasks.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    skills: Annotated[str | None, typer.Option(help="Only these, joined by commas; all by default.")] = None,
    single_skill: Annotated[
        bool, typer.Option("--single-skill", help="Each task has one skill, and those that it needs.")
    ] = False,
    max_skills: Annotated[int | None, typer.Option(help="Maximum skills of a task.")] = None,
    split: Annotated[str, typer.Option(help="train or test; they share no table and no question.")] = "train",
    level: Annotated[
        str,
        typer.Option(
            help="full; plain (people's words); relational (2 to 5 tables); or the dotted path of your own."
        ),
    ] = "full",
    workers: Annotated[
        int | None, typer.Option(help="Processes; by default one per CPU core, and at most 8.")
    ] = None,
) -> None:
    """Generates tasks: tables, questions, and gold SQL that has been executed."""
    from tqdm.auto import tqdm

    from trl_dbbench.data.generate import Request, iterate_tasks

    workers = workers if workers is not None else min(os.cpu_count() or 1, 8)
    names = opt.names(skills)
    asked = None if names is None else tuple(names)
    request = Request(seed, asked, single_skill, max_skills, split, level)
    tasks = iterate_tasks(num_tasks, request, workers)
    write_tasks(out, tqdm(tasks, total=num_tasks, desc="generate", unit="task"))
    typer.echo(f"{num_tasks} tasks written to {out}")


def skills(
    tasks: opt.Tasks,
    format: opt.TaskFormatName = None,
    single: Annotated[bool, typer.Option("--single", help="Only tasks with one skill.")] = False,
    min_tasks: Annotated[
        int, typer.Option("--min", help="Only tasks of skills with at least this number of tasks.")
    ] = 1,
    out: Annotated[Path | None, typer.Option(help="Writes these tasks in the native format.")] = None,
) -> None:
    """Counts the tasks of each operation and each skill; writes a selection of them."""
    check_outputs([out], tasks)
    chosen = select_tasks(load_tasks(tasks, format=format), single, min_tasks)
    for kind, counts in skill_counts(chosen).items():
        for name, count in counts.items():
            typer.echo(f"{kind:<9}  {name:<46}  {count:>6}")
    typer.echo(f"{'':<9}  {'all':<46}  {len(chosen):>6}")
    if out is not None:
        write_tasks(out, chosen)
        typer.echo(f"{out}: {len(chosen)} tasks")


def split(
    tasks: opt.Tasks,
    out_train: Annotated[Path, typer.Option(help="The JSONL file of the tasks to train on.")],
    out_test: Annotated[Path, typer.Option(help="The JSONL file of the held-out tasks.")],
    test_size: Annotated[float, typer.Option(help="The share of the tasks that is held out.")] = 0.1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same halves.")] = 0,
    format: opt.TaskFormatName = None,
) -> None:
    """Splits tasks into two files with similar shares of operations and skills.

    No question and no gold SQL is in both, and no table either unless too many tasks share one.
    """
    check_outputs([out_train, out_test], tasks)
    halves = split_tasks(load_tasks(tasks, format=format), test_size, seed)
    _write_halves(halves, out_train, out_test)


def _write_halves(halves: Split, train: Path, test: Path) -> None:
    """Write both halves, and print whether they share tables."""
    for path, half in ((train, halves.train), (test, halves.test)):
        _write_counted(path, half)
    if halves.shares_tables:
        typer.echo("The files share tables, but no question and no gold SQL.")
    else:
        typer.echo("No table, no question and no gold SQL is in both files.")


def _write_counted(path: Path, tasks: Sequence[Task]) -> None:
    """Write tasks, and print how many of each operation there are."""
    write_tasks(path, tasks)
    operations = Counter(task.operation for task in tasks).most_common()
    typer.echo(f"{path}: {len(tasks)} tasks ({', '.join(f'{count} {name}' for name, count in operations)})")


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks to a file in our format, completely or not at all."""
    with write_atomically(path) as file:
        file.writelines(task.to_json() + "\n" for task in tasks)


def audit(
    tasks: opt.Tasks,
    format: opt.TaskFormatName = None,
    grader: opt.GraderName = None,
    database: opt.Databases = ["sqlite"],  # noqa: B006 - typer copies it
    docker_image: opt.DockerImage = None,
    fix: Annotated[
        Path | None,
        typer.Option(help="Writes the tasks without faults; changes tables on which wrong SQL passes."),
    ] = None,
    drop_doubtful: Annotated[
        bool,
        typer.Option(
            "--drop-doubtful",
            help="With --fix: also leaves out tasks whose question and gold SQL name different values.",
        ),
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Writes all findings as a page (.html).")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Writes all findings as JSON.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Tasks examined at a time.")] = 4,
) -> None:
    """Finds tasks that teach the wrong thing: gold SQL that fails or is ambiguous, or wrong SQL that passes.

    Exits with 1 if there are faults and no --fix.
    """
    from tqdm.auto import tqdm

    from trl_dbbench.data.audit import audit as audit_tasks
    from trl_dbbench.data.audit.page import write_page

    if drop_doubtful and fix is None:
        raise ConfigError("--drop-doubtful goes with --fix, which is not given.")
    if grader is not None:
        get_grader(grader)  # so that an unknown one is an error before a server starts
    loaded = load_tasks(tasks, format=format)
    check_outputs([fix, report, json_file], tasks)
    with ExitStack() as stack:
        specs = dict.fromkeys(database_for(loaded, each) for each in database)
        opened = [stack.enter_context(open_database(each, docker_image=docker_image)) for each in specs]
        examined = audit_tasks(
            loaded,
            opened,
            repair=fix is not None,
            drop_doubtful=drop_doubtful,
            grader=grader,
            workers=workers,
        )
        audited = list(tqdm(examined, total=len(loaded), desc="audit", unit="task"))
    _say(audited)
    if fix is not None:
        kept = [each.kept for each in audited if each.kept is not None]
        write_tasks(fix, kept)
        typer.echo(f"{fix}: {len(kept)} of {len(loaded)} tasks")
    if report is not None:
        typer.echo(f"{write_page(audited, Path(tasks).name, report)}: the report")
    if json_file is not None:
        write_json(json_file, [each.to_json() for each in audited])
    raise typer.Exit(int(any(each.outcome == "faulty" for each in audited)))


def _say(audited: Sequence[Audited]) -> None:
    from trl_dbbench.data.audit import KINDS, counts

    for each in audited:
        for finding in each.findings if each.outcome != "sound" else ():
            typer.echo(f"{each.task.id}: {finding.kind}: {finding.text}")
        for change in each.changes:
            typer.echo(f"{each.task.id}: repaired: {change}")
    outcomes, kinds = counts(audited)
    for kind in KINDS:
        if kinds[kind]:
            typer.echo(f"{kind:<12} {kinds[kind]:>6}  {KINDS[kind]}")
    typer.echo(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))


def import_tables(
    context: typer.Context,
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
    tables: Annotated[
        str | None, typer.Option(help="Only these tables, joined by commas; all by default.")
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            help="Maximum rows of a table, drawn at random; from a server, also rows they refer to."
        ),
    ] = DEFAULT_SAMPLE,
    num_tasks: Annotated[int, typer.Option(min=1, help="Number of questions and changes.")] = 500,
    difficulty: Annotated[
        int | None, typer.Option(min=1, help="Maximum skills of a task: begin with 1 to 3 for a small model.")
    ] = None,
    delimiter: opt.Delimiter = None,
    encoding: opt.Encoding = None,
    type_: opt.ColumnTypes = None,
    force: Annotated[bool, typer.Option("--force", help="Replaces files that are there already.")] = False,
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

    if test_out is None:
        opt.refuse(context, "it goes with --test-out, which is not given", "--test-size")
    check_test_size(test_size)
    check_outputs([out, test_out], *sources)
    for path in filter(None, (out, test_out)):
        if path.exists() and not force:
            raise ConfigError(f"'{path}' is there already; --force replaces it, or name another file.")
    csv = opt.csv_options(delimiter, encoding, type_)
    found = import_from(sources, database, opt.names(tables), sample, seed, csv)
    for line in (*(f"note: {note}" for note in found.notes), *found.described()):
        typer.echo(line, err=True)
    drafts = Drafts(found.tables, num_tasks, seed, difficulty)
    tasks = list(tqdm(drafts, total=num_tasks, desc="import", unit="task"))
    for note in _missing(drafts, Counter(task.tables[0].name for task in tasks)):
        typer.echo(f"note: {note}", err=True)
    if test_out is None:
        _write_counted(out, tasks)
    else:
        _write_halves(split_tasks(tasks, test_size, seed), out, test_out)


def _missing(drafts: Drafts, counted: Counter[str]) -> Iterator[str]:
    """Yield notes on skills and tables without tasks."""
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
