"""Command that serves tasks to agents and trainers: `serve`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trl_dbbench.cli import options as opt
from trl_dbbench.database import Database, database_for, open_database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.settings import RunSettings, versions
from trl_dbbench.tasks import load_tasks

if TYPE_CHECKING:
    from trl_dbbench.integrations.serving.desk import Desk
    from trl_dbbench.integrations.serving.http import Address
    from trl_dbbench.integrations.serving.stopping import Stop

TOKEN_VARIABLE = "TRL_DBBENCH_MCP_TOKEN"


def serve(
    tasks: opt.Tasks,
    mcp: Annotated[bool, typer.Option("--mcp", help="Serves tools of the Model Context Protocol.")] = False,
    openenv: Annotated[bool, typer.Option("--openenv", help="Serves an OpenEnv environment.")] = False,
    tasks_format: opt.TaskFormatName = None,
    database: opt.TasksDatabase = "auto",
    docker_image: opt.DockerImage = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serves over HTTP; a port alone means 127.0.0.1. By default MCP uses standard input and "
            "output, and OpenEnv port 8000.",
        ),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            help="The environment variable with the token that HTTP clients send as bearer (default: "
            f"{TOKEN_VARIABLE}, if set)."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="The folder that episodes are added to.")] = None,
    tell: Annotated[
        bool, typer.Option("--tell", help="With --mcp: submit says whether the answer was right.")
    ] = False,
    reward: Annotated[
        str | None,
        typer.Option(help="With --openenv: the reward, by name or dotted path (default: outcome)."),
    ] = None,
    protocol: Annotated[str, typer.Option(help="tools, or tools_sql for answers that are SQL.")] = "tools",
    grader: opt.RunsGrader = None,
    max_turns: Annotated[
        int, typer.Option(min=1, help="Maximum calls of an episode, its answer included.")
    ] = 3,
    observation_characters: Annotated[
        int, typer.Option(min=0, help="Longer observations are cut; 0 cuts nothing.")
    ] = 800,
    idle_seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a call after which an episode ends as not right.")
    ] = 900,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that open episodes may continue after SIGTERM or Ctrl-C.")
    ] = 0,
) -> None:
    """Serves tasks to MCP clients, or to trainers as an OpenEnv environment.

    Each episode has its own database and is judged as in training; --save keeps it in the form that report,
    replay and export read. The server ends with the client, or at SIGTERM and Ctrl-C, and leaves no database
    behind.
    """
    if mcp is openenv:
        raise ConfigError("say how to serve: --mcp or --openenv.")
    if (tell and openenv) or (reward is not None and mcp):
        raise ConfigError("--tell is for --mcp, and --reward for --openenv.")
    _check_installed("mcp" if mcp else "openenv")
    from trl_dbbench.integrations.serving.desk import ENDINGS, Desk
    from trl_dbbench.integrations.serving.folder import Folder
    from trl_dbbench.integrations.serving.http import Address
    from trl_dbbench.integrations.serving.stopping import Stop

    if protocol not in ENDINGS:
        raise ConfigError(f"--protocol {protocol} cannot be served; allowed: {', '.join(ENDINGS)}.")
    http = http or ("8000" if openenv else None)
    if token_env is not None and not (http and os.environ.get(token_env)):
        reason = "is for --http" if not http else "names no environment variable that has a value"
        raise ConfigError(f"--token-env {token_env} {reason}. Clients would need no token.")
    token = os.environ.get(token_env or TOKEN_VARIABLE) or None
    address = None if http is None else Address.of(http, token)
    loaded = load_tasks(tasks, format=tasks_format)
    spec = database_for(loaded, database)
    with Stop().taken() as stop, open_database(spec, docker_image=docker_image) as opened:
        settings = RunSettings(
            *(protocol, observation_characters, max_turns),
            database=opened.describe(),
            dialect=opened.dialect.name,
            limits=opened.limits,
            grader=grader,
            versions=versions(),
        )
        desk = Desk(
            loaded,
            opened,
            Judge(opened, grader),
            get_protocol(protocol, observation_characters),
            settings.rules,
            idle_seconds,
            None if save is None else Folder(save, settings),
            _reward(reward, settings, opened) if openenv else None,
        )
        asyncio.run(_serve(desk, stop, drain_seconds, address, openenv=openenv, tell=tell))


async def _serve(
    desk: Desk, stop: Stop, drain_seconds: float, address: Address | None, *, openenv: bool, tell: bool
) -> None:
    if openenv:
        from trl_dbbench.integrations.serving.http import serve_http
        from trl_dbbench.integrations.serving.openenv.environment import application

        assert address is not None
        await serve_http(application(desk), desk, stop, drain_seconds, address, name="OpenEnv")
        return
    from trl_dbbench.integrations.serving.mcp import Tools, serve_stdio, serve_streamable_http

    logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs a line for each request
    server = Tools(desk, tell=tell).server()
    if address is None:
        await serve_stdio(server, desk, stop, drain_seconds)
    else:
        await serve_streamable_http(server, desk, stop, drain_seconds, address)


def _check_installed(extra: str) -> None:
    """Raise ConfigError if a package is missing, or if `mcp` has the version of the other extra: OpenEnv
    needs version 1, our own server version 2."""
    install, ours = f"pip install 'trl-dbbench[{extra}]'", extra == "mcp"
    module, wanted = ("mcp", "2.3 or later") if ours else ("openenv.environment", "1")
    with suppress(PackageNotFoundError):
        found = version("mcp")
        if (int(found.split(".")[0]) >= 2) is not ours:
            raise ConfigError(
                f"serve --{extra} needs mcp {wanted}, and mcp {found} is installed: the extras mcp and "
                f"openenv exclude each other. In a virtual environment of its own: {install}"
            )
    try:
        import_module(f"trl_dbbench.integrations.serving.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(f"serve --{extra} needs {error.name}: {install}") from None


def _reward(name: str | None, settings: RunSettings, database: Database) -> Callable[[Episode], None]:
    """Return a function that adds an episode's reward to its `rewards`."""
    if name is None:
        from trl_dbbench.rewards.outcome import OutcomeReward

        outcome = OutcomeReward()
        return lambda episode: episode.rewards.update(outcome=outcome([episode])[0])

    # these import PyTorch, which takes seconds
    from trl_dbbench.rewards.registry import with_step_rewards
    from trl_dbbench.runs.conversations import protocol_of
    from trl_dbbench.runs.rescore import loaded_rewards, outcome_of, values_of

    protocol = protocol_of(settings)
    (function,) = map(with_step_rewards, loaded_rewards([name], settings, database, outcome_of(settings)))

    def reward(episode: Episode) -> None:
        prompts = [protocol.messages(episode.task, settings.system_prompt)]
        (episode.rewards[function.__name__],) = values_of(function, [episode], prompts)

    return reward
