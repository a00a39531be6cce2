"""The `trl-dbbench` command.

Each command is a function whose parameters are its options. The modules: `tasks` makes, examines and splits
tasks; `models` plays tasks with a model; `compare` compares models; `serve` serves tasks to agents and
trainers; `runs` reads a run's output; `train` starts recipes.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from trl_dbbench.cli import compare, models, runs, serve, tasks, train
from trl_dbbench.errors import user_errors
from trl_dbbench.utils.console import NOT_OURS, on_terminal

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Train": {"recipes": train.recipes, "doctor": train.doctor, "train": train.train, "merge": train.merge},
    "Evaluate": {
        "eval": models.evaluate,
        "compare": compare.compare,
        "report": runs.report,
        "replay": runs.replay,
        "scores": tasks.scores,
    },
    "Tasks": {
        "import": tasks.import_tables,
        "generate": tasks.generate,
        "convert": tasks.convert,
        "validate": tasks.validate,
        "audit": tasks.audit,
        "skills": tasks.skills,
        "split": tasks.split,
    },
    "Data": {"sample": models.sample, "export": runs.export},
    "Serve": {"serve": serve.serve},
}
"""Commands by group, in the order in which they are used; `--help` and docs/reference.md keep this order."""

for _group, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        _settings = train.MORE_OPTIONS if _name in ("train", "doctor") else None
        app.command(_name, rich_help_panel=_group, context_settings=_settings)(_command)


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
        os.environ.setdefault("TQDM_DISABLE", "1")  # read when a command imports tqdm
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be valid Unicode
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    for chatty in ("httpx", "httpx2"):  # they log a line for each request
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for message in NOT_OURS:
        warnings.filterwarnings("ignore", message, FutureWarning)
    with user_errors(OSError):
        app()
