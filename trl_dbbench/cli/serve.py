"""`serve`: tasks for agents that connect to us."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trl_dbbench.cli.options import DatabaseSpec, DockerImage, RunsGrader, TaskFormatName, Tasks
from trl_dbbench.database import Database, open_database
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.settings import RunSettings, versions
from trl_dbbench.tasks import Task, load_tasks

if TYPE_CHECKING:
    from trl_dbbench.serving.desk import Desk

TOKEN_VARIABLE = "TRL_DBBENCH_MCP_TOKEN"


def serve(
    tasks: Tasks,
    mcp: Annotated[bool, typer.Option("--mcp", help="As tools of the Model Context Protocol.")] = False,
    tasks_format: TaskFormatName = None,
    database: DatabaseSpec = "auto",
    docker_image: DockerImage = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Streamable HTTP; a port alone is one of 127.0.0.1. By default: standard input and output.",
        ),
    ] = None,
    token_env: Annotated[
        str,
        typer.Option(help="The environment variable with the token that HTTP clients send as bearer."),
    ] = TOKEN_VARIABLE,
    save: Annotated[Path | None, typer.Option(help="The folder that episodes are added to.")] = None,
    tell: Annotated[bool, typer.Option("--tell", help="submit says whether the answer was right.")] = False,
    protocol: Annotated[str, typer.Option(help="tools, or tools_sql for answers that are SQL.")] = "tools",
    grader: RunsGrader = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Calls of an episode, its answer included.")] = 3,
    observation_characters: Annotated[
        int, typer.Option(min=0, help="Longer observations are cut; 0 cuts nothing.")
    ] = 800,
    idle_seconds: Annotated[
        float, typer.Option(min=0.1, help="An episode without a call for so long is ended, as not right.")
    ] = 900,
    drain_seconds: Annotated[
        float,
        typer.Option(min=0, help="After SIGTERM or Ctrl-C, open episodes may go on for so long."),
    ] = 0,
) -> None:
    """Serves tasks to any MCP client: an agent starts one, works on a database of its own, and submits.

    Ends with the client, or at SIGTERM and Ctrl-C, and leaves no database behind. Episodes are judged as in a
    training, and kept in the form that report, replay and export read.
    """
    try:
        from trl_dbbench.serving.tools import ENDINGS, Tools
        from trl_dbbench.serving.transports import Address, Stop, serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise ConfigError(f"serve needs {error.name}: pip install 'trl-dbbench[mcp]'") from None

    if not mcp:
        raise ConfigError("say how to serve: --mcp is what there is.")
    if protocol not in ENDINGS:
        raise ConfigError(f"--protocol {protocol} cannot be served; allowed: {', '.join(ENDINGS)}.")
    logging.getLogger("mcp").setLevel(logging.WARNING)  # it has a line for each request
    address = None if http is None else Address.of(http, os.environ.get(token_env) or None)
    loaded = load_tasks(tasks, format=tasks_format)
    settings = RunSettings(protocol, observation_characters, max_turns, grader=grader)
    with Stop().taken() as stop, open_database(database, docker_image=docker_image) as opened:
        desk = _desk(loaded, opened, settings, idle_seconds, save)
        server = Tools(desk, tell=tell).server()
        if address is None:
            asyncio.run(serve_stdio(server, desk, stop, drain_seconds))
        else:
            asyncio.run(serve_http(server, desk, stop, drain_seconds, address))


def _desk(
    tasks: list[Task], database: Database, settings: RunSettings, idle_seconds: float, save: Path | None
) -> Desk:
    from trl_dbbench.judge import Judge
    from trl_dbbench.protocol import get_protocol
    from trl_dbbench.serving.desk import Desk
    from trl_dbbench.serving.folder import Folder

    settings = replace(
        settings,
        database=database.describe(),
        dialect=database.dialect.name,
        limits=database.limits,
        versions=versions(),
    )
    return Desk(
        tasks,
        database,
        Judge(database, settings.grader),
        get_protocol(settings.protocol, settings.observation_characters or None),
        settings.rules,
        idle_seconds,
        None if save is None else Folder(save, settings),
    )
