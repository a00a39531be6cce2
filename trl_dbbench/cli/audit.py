"""The command `audit`, which examines and repairs tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trl_dbbench.cli.options import Databases, DockerImage, GraderName, TaskFormatName, Tasks
from trl_dbbench.cli.tasks import write_tasks
from trl_dbbench.database import database_for, open_database
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading import get_grader
from trl_dbbench.tasks import load_tasks
from trl_dbbench.utils.files import check_writable, write_atomically

if TYPE_CHECKING:
    from trl_dbbench.data.audit import Audited


def audit(
    tasks: Tasks,
    format: TaskFormatName = None,
    grader: GraderName = None,
    database: Databases = ["sqlite"],  # noqa: B006 - typer copies it
    docker_image: DockerImage = None,
    fix: Annotated[
        Path | None,
        typer.Option(help="Writes the tasks without faults. Where only slips pass, the tables are repaired."),
    ] = None,
    drop_doubtful: Annotated[
        bool,
        typer.Option(
            "--drop-doubtful",
            help="With --fix: leaves out tasks as well whose question and gold SQL speak of other values.",
        ),
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Writes a page (.html) of all that was found.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Writes the same as JSON.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Tasks that are examined side by side.")] = 4,
) -> None:
    """Looks for tasks that teach the wrong thing: gold SQL that fails, is open or empty, or that slips match.

    Exits with 1 if there are faults and no --fix.
    """
    from tqdm.auto import tqdm

    from trl_dbbench.data.audit import audit as audit_tasks

    if drop_doubtful and fix is None:
        raise ConfigError("--drop-doubtful goes with --fix, which is not given.")
    if grader is not None:
        get_grader(grader)  # an unknown one is an error before a server starts
    loaded = load_tasks(tasks, format=format)
    for path in (fix, report, json_file):
        if path is not None:
            check_writable(path)
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
    _report(audited, Path(tasks).name, report, json_file)
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


def _report(audited: Sequence[Audited], title: str, page: Path | None, json_file: Path | None) -> None:
    from trl_dbbench.data.audit.page import write_page

    if page is not None:
        typer.echo(f"{write_page(audited, title, page)}: the report")
    if json_file is not None:
        with write_atomically(json_file) as file:
            file.write(json.dumps([each.to_json() for each in audited], ensure_ascii=False, indent=1) + "\n")
