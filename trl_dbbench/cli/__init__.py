"""The `trl-dbbench` command.

A command is a function whose signature is its options: `tasks.py` has those on task files, `audit.py`
examines them, `own_tables.py` makes some of tables that are there, `models.py` has those that let a model
play, `compare.py` compares them, `serve.py` lets agents connect and play, `runs.py` has those on what a run
has left, `adapters.py` those on what it has trained, `train.py` those on recipes.
"""

from __future__ import annotations

import logging
import os
import warnings
from importlib.metadata import version
from typing import Annotated

import typer

from trl_dbbench.cli import adapters, audit, compare, models, own_tables, runs, serve, tasks, train
from trl_dbbench.console import NOT_OURS, on_terminal
from trl_dbbench.errors import user_errors

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(tasks.validate)
app.command()(audit.audit)
app.command()(tasks.scores)
app.command(name="eval")(models.evaluate)
app.command()(compare.compare)
app.command()(models.sample)
app.command()(serve.serve)
app.command()(runs.report)
app.command()(tasks.convert)
app.command()(tasks.generate)
app.command(name="import")(own_tables.import_tables)
app.command()(tasks.skills)
app.command()(tasks.split)
app.command()(runs.replay)
app.command()(runs.export)
app.command(context_settings=train.MORE_OPTIONS)(train.train)
app.command(context_settings=train.MORE_OPTIONS)(train.doctor)
app.command()(train.recipes)
app.command()(adapters.merge)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trl-dbbench {version('trl-dbbench')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Prints the version.")
    ] = False,
) -> None:
    """Train language-model agents to work a MySQL database: checks, evaluation and reports."""


def main() -> None:
    if not on_terminal():
        os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported, by the command
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    for chatty in ("httpx", "httpx2"):  # a line for each request
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for message in NOT_OURS:
        warnings.filterwarnings("ignore", message, FutureWarning)
    with user_errors():
        app()
