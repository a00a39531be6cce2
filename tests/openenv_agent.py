"""An agent with OpenEnv's own client, for the Python of an environment that has OpenEnv.

Reads what to do from standard input, `{"do": name, ...arguments}` a line, and writes what came of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openenv import GenericEnvClient
from openenv.cli._validation import validate_running_environment
from openenv.validation import Level, run_validation
from openenv.validation.graders.runtime.basic import (
    ObservationSchemaGrader,
    RewardWellFormedGrader,
    StateContractGrader,
)
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser
from openenv.validation.runtime.collector import collect_runtime_evidence
from openenv.validation.runtime.contracts import RuntimePlan, RuntimeReset

from trl_dbbench.integrations.serving.openenv.client import DatabaseEnv, ValuesAction

Did = Callable[..., Awaitable[Any]]
DOES: dict[str, Did] = {}


def does(function: Did) -> Did:
    DOES[function.__name__] = function
    return function


@does
async def play(url: str, tasks: list[list[Any]], clients: int) -> list[dict[str, Any]]:
    """Plays tasks, each an id, a statement and the values of an answer, with the typed client.

    Each of the clients keeps its session, and they play side by side.
    """

    async def one(share: list[list[Any]]) -> list[dict[str, Any]]:
        played = []
        async with DatabaseEnv(base_url=url) as env:
            for task_id, sql, answer in share:
                begin = await env.reset(task_id=task_id)
                look = await env.step(ValuesAction(sql=sql))
                end = await env.step(ValuesAction(answer=answer))
                told = [[each.reward, each.done, each.observation.calls_left] for each in (begin, look, end)]
                state = (await env.state()).model_dump()
                del state["episode_id"]
                texts = [each.observation.text for each in (begin, look, end)]
                played.append({"told": told, "texts": texts, "state": state, "metadata": end.metadata})
        return played

    shares = await asyncio.gather(*(one(tasks[first::clients]) for first in range(clients)))
    return [played for share in shares for played in share]


@does
async def act(url: str, sessions: list[list[Any]], headers: dict[str, str] | None = None) -> list[list[Any]]:
    """What several sessions, open at once, get for `["reset", {...}]`, `["step", {...}]` and `["state"]`.

    They act in turns: the first step of each, the second of each. An error is its text.
    """
    envs = [GenericEnvClient(base_url=url, headers=headers) for _ in sessions]
    came: list[list[Any]] = [[] for _ in sessions]
    for turn in range(max(map(len, sessions))):
        for number, (env, session) in enumerate(zip(envs, sessions, strict=True)):
            if turn < len(session):
                came[number].append(await _acted(env, *session[turn]))
    for env in envs:
        await env.close()
    return came


async def _acted(env: GenericEnvClient, what: str, arguments: Any = None) -> Any:
    try:
        if what == "reset":
            result = await env.reset(**arguments)
        elif what == "step":
            result = await env.step(arguments)
        else:
            return await env.state()
    except (RuntimeError, ConnectionError) as error:
        return str(error)
    return result.observation | {"reward": result.reward, "done": result.done}


@does
async def ends_in_a_statement(url: str, seconds: float) -> Any:
    """Leaves an episode, and is in the statement of the next one when it is killed, or the server is stopped."""
    env = GenericEnvClient(base_url=url)
    await env.reset(task_id="orders-insert")
    await env.step({"sql": "DELETE FROM orders"})
    await env.reset(task_id="orders-insert")
    print("calls", flush=True)
    return await _acted(env, "step", {"sql": f"SELECT SLEEP({seconds})"})


@does
async def run(code: str) -> str:
    """What the code prints."""
    with redirect_stdout(StringIO()) as printed:
        await asyncio.to_thread(exec, code, {})
    return printed.getvalue()


@does
async def validate(url: str, package: str) -> list[Any]:
    """What `openenv validate URL` and `openenv validate --level static PACKAGE` say; and what the graders of its level
    `runtime`, which otherwise begin with the build of an image, say of an episode on the server."""
    running = await asyncio.to_thread(validate_running_environment, url)
    report = run_validation(Path(package), max_level=Level.STATIC, skip_build=True)
    actions = [{"sql": "SELECT 1"}, {"sql": "SELEC"}, {"answer": ["no idea"]}]
    reset = RuntimeReset(episode_id="mine", seed=7)
    plan = RuntimePlan(plan_schema_version="1", reset=reset, actions=actions)
    evidence = await asyncio.to_thread(collect_runtime_evidence, url, plan, episode_timeout_s=60)
    subject = SimpleNamespace(manifest=OpenEnvYamlParser().parse(Path(package)), runtime_evidence=evidence)
    graders = RewardWellFormedGrader, ObservationSchemaGrader, StateContractGrader
    graded = [(result.check_id, result.status.value) for result in (each().run(subject) for each in graders)]
    return [running, report.verdict.value, dict(graded)]


async def main() -> None:
    for line in sys.stdin:
        arguments = json.loads(line)
        print(json.dumps(await DOES[arguments.pop("do")](**arguments)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
