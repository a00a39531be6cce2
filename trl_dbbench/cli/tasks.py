"""Commands on task files: `validate`, `scores`, `convert`, `generate`, `skills`, `split`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from trl_dbbench.cli.options import (
    ColumnTypes,
    Delimiter,
    DockerImage,
    Encoding,
    GraderName,
    TaskFormatName,
    Tasks,
    TasksDatabase,
    csv_options,
    names,
)
from trl_dbbench.database import database_for, open_database
from trl_dbbench.episode.validation import validate as validate_tasks
from trl_dbbench.grading import SQL_GRADERS, get_grader
from trl_dbbench.grading.statistics import wilson_interval
from trl_dbbench.tasks import Task, load_tasks
from trl_dbbench.tasks.split import Split, select_tasks, skill_counts, split_tasks
from trl_dbbench.utils.files import check_writable, write_atomically


def validate(
    tasks: Tasks,
    format: TaskFormatName = None,
    grader: GraderName = None,
    database: TasksDatabase = "auto",
    docker_image: DockerImage = None,
) -> None:
    """Executes every gold solution through the sandboxes and graders that training uses.

    Of tasks whose gold is results there is no SQL to execute: their databases have to open.

    Exits with 1 if one does not score as correct.
    """
    if grader is not None:
        get_grader(grader)  # an unknown one is an error before a server starts
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
    tasks: Tasks,
    predictions: Annotated[
        Path,
        typer.Argument(
            help="SQL: .jsonl of id and sql, a run's episodes.jsonl, .json by id, or a line for each task."
        ),
    ],
    format: TaskFormatName = None,
    database: TasksDatabase = "auto",
    docker_image: DockerImage = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Writes what each grader says of each prediction.")
    ] = None,
) -> None:
    """Executes predicted SQL and scores it by the rules of all evaluators, beside each other."""
    from tqdm.auto import tqdm

    from trl_dbbench.data.score_predictions import can_be_scored, read_predictions, score_all

    loaded = load_tasks(tasks, format=format)
    predicted = read_predictions(predictions, loaded)
    fitting = [task for task in loaded if can_be_scored(task)]
    if others := len(loaded) - len(fitting):
        typer.echo(f"{others} of {len(loaded)} tasks are left out: changes, or without gold SQL.")
    if json_file is not None:
        check_writable(json_file)
    with open_database(database_for(fitting, database), docker_image=docker_image) as opened:
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
        with write_atomically(json_file) as file:
            entries = [
                {"id": each.task.id, "sql": each.sql, "scores": each.values, "problem": each.problem}
                for each in scored
            ]
            file.write(json.dumps(entries, ensure_ascii=False, indent=1) + "\n")


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
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    type_: ColumnTypes = None,
    split: Annotated[
        str | None, typer.Option(help="The split of IN, where it has some; verl's extra_info.split.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="text, tools or a dotted path; for verl's prompts")] = "text",
    skip: Annotated[
        bool, typer.Option("--skip", help="Leaves out tasks that OUT's format cannot hold.")
    ] = False,
) -> None:
    """Writes tasks in another format, or makes them of CSV files; says what the format cannot hold."""
    from trl_dbbench.data.convert import convert as convert_tasks

    conversion = convert_tasks(
        source,
        target,
        to,
        source_format=source_format,
        tables=tables or (),
        csv=csv_options(delimiter, encoding, type_),
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
    num_tasks: Annotated[int, typer.Option(help="How many tasks.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    skills: Annotated[str | None, typer.Option(help="Only these, joined by commas; all by default.")] = None,
    single_skill: Annotated[
        bool, typer.Option("--single-skill", help="Each task has one skill and what that one needs.")
    ] = False,
    max_skills: Annotated[int | None, typer.Option(help="Most skills of a task.")] = None,
    split: Annotated[str, typer.Option(help="train or test; they share no table and no question")] = "train",
    level: Annotated[
        str,
        typer.Option(help="full; relational (2 to 5 tables); or the dotted path of your own."),
    ] = "full",
    workers: Annotated[int | None, typer.Option(help="Processes; one per CPU core by default.")] = None,
) -> None:
    """Makes tasks of tables, questions and gold SQL that has been executed."""
    from tqdm.auto import tqdm

    from trl_dbbench.data.generate import iterate_tasks

    workers = workers if workers is not None else min(os.cpu_count() or 1, 8)
    asked = names(skills)
    with write_atomically(out) as file:
        tasks = iterate_tasks(num_tasks, seed, asked, single_skill, max_skills, split, level, workers)
        for task in tqdm(tasks, total=num_tasks, desc="generate", unit="task"):
            file.write(task.to_json() + "\n")
    typer.echo(f"{num_tasks} tasks written to {out}")


def skills(
    tasks: Tasks,
    format: TaskFormatName = None,
    single: Annotated[bool, typer.Option("--single", help="Only tasks with one skill.")] = False,
    min_tasks: Annotated[int, typer.Option("--min", help="Only tasks of a skill that has so many.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Writes these tasks, in the own format.")] = None,
) -> None:
    """Counts the tasks of each operation and each skill, and writes those that are asked for."""
    chosen = select_tasks(load_tasks(tasks, format=format), single, min_tasks)
    for kind, counts in skill_counts(chosen).items():
        for name, count in counts.items():
            typer.echo(f"{kind:<9}  {name:<46}  {count:>6}")
    typer.echo(f"{'':<9}  {'all':<46}  {len(chosen):>6}")
    if out is not None:
        write_tasks(out, chosen)
        typer.echo(f"{out}: {len(chosen)} tasks")


def split(
    tasks: Tasks,
    out_train: Annotated[Path, typer.Option(help="The JSONL file of the tasks to train on.")],
    out_test: Annotated[Path, typer.Option(help="The JSONL file of those that are held out.")],
    test_size: Annotated[float, typer.Option(help="The share of the tasks that is held out.")] = 0.1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same halves.")] = 0,
    format: TaskFormatName = None,
) -> None:
    """Parts tasks into two files with like shares of operations and skills.

    No question and no gold SQL is in both, and no table either unless too many tasks share one.
    """
    halves = split_tasks(load_tasks(tasks, format=format), test_size, seed)
    for path, half in ((out_train, halves.train), (out_test, halves.test)):
        write_tasks(path, half)
        typer.echo(f"{path}: {len(half)} tasks")
    typer.echo(said_of(halves))


def said_of(halves: Split) -> str:
    """What two halves have in common, for the user."""
    if halves.shares_tables:
        return "Both files ask of the same tables; no question and no gold SQL is in both."
    return "No table, no question and no gold SQL is in both files."


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """A file in the own format, written as a whole or not at all."""
    with write_atomically(path) as file:
        file.writelines(task.to_json() + "\n" for task in tasks)
