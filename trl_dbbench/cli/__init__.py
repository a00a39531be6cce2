"""The `trl-dbbench` command.

A command is a function whose signature is its options: `tasks.py` has those on task files, `own_tables.py`
makes some of tables that are there, `models.py` has those that let a model play, `runs.py` those on what a
run has left.
"""

from __future__ import annotations

import logging

import typer

from trl_dbbench.cli import models, own_tables, runs, tasks
from trl_dbbench.errors import user_errors

app = typer.Typer(
    help="Train language-model agents to work a MySQL database: checks, evaluation and reports.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(tasks.validate)
app.command(name="eval")(models.evaluate)
app.command()(models.sample)
app.command()(runs.report)
app.command()(tasks.convert)
app.command()(tasks.generate)
app.command(name="import")(own_tables.import_tables)
app.command()(tasks.skills)
app.command()(tasks.split)
app.command()(runs.replay)
app.command()(runs.export)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with user_errors():
        app()
