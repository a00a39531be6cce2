"""OpenEnv environment: the episodes of one session. All sessions share a desk.

```
reset(task_id=... | index=... | seed=...)   begins an episode, with a sandbox of its own
step(sql=...)                               a statement; reward 0
step(answer=...)                            done; the episode's reward
the connection ends                         the episode ends, and its sandbox is closed
```

An episode whose database failed has no reward. The call fails, so that no trainer takes it for a 0.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openenv.core.env_server import ConcurrencyConfig, Environment, create_fastapi_app
from openenv.core.env_server.types import EnvironmentMetadata

from trl_dbbench.episode.protocol import PRODUCTS
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.integrations.calls import Refused, written
from trl_dbbench.integrations.serving.desk import ENDINGS, Counted, Desk, counted
from trl_dbbench.integrations.serving.http import MAX_CONNECTIONS, monitoring_routes
from trl_dbbench.integrations.serving.openenv.client import (
    QueryAction,
    SQLAction,
    SQLObservation,
    SQLState,
    ValuesAction,
)
from trl_dbbench.tasks import Task
from trl_dbbench.utils.lookup import nearest

NAME = "trl_dbbench"
SPLIT = "train"
"""Name of the split that OpenEnv clients see."""

ACTIONS: dict[str, type[SQLAction]] = {"tools": ValuesAction, "tools_sql": QueryAction}
_TAKEN = "task_id, index (with or without split), seed and episode_id"


class DatabaseEnvironment(Environment[SQLAction, SQLObservation, SQLState]):
    """One session; OpenEnv's server creates one for each connection, and for each request without a
    connection."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, desk: Desk, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._desk, self._loop = desk, loop
        self._playing: tuple[str, Task] | None = None  # the episode's name, and its task
        self._state = SQLState()

    # --- tasks ------------------------------------------------------------------------------------------

    def list_splits(self) -> list[str]:
        return [SPLIT]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def num_tasks(self, split: str) -> int:
        return len(self._tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return _shown(index, self._tasks(split)[index])

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        numbered = list(enumerate(self._tasks(split)))
        return [_shown(index, task) for index, task in numbered[start:stop]]

    def _tasks(self, split: str) -> Sequence[Task]:
        if split != SPLIT:
            raise Refused(f"There is no split {split!r}; all tasks are in {SPLIT!r}.")
        return self._desk.tasks

    # --- an episode -------------------------------------------------------------------------------------

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        task_id: str | None = None,
        split: str = SPLIT,
        index: int | None = None,
        **unknown: Any,
    ) -> SQLObservation:
        """Begin an episode; if one is open, it ends without an answer.

        Args:
            seed: chooses a task, the same one for the same seed.
            episode_id: name of the episode in `state`; by default the desk's name for it.
            task_id, index: choose the task, by its id or its index in the split.
        """
        self.close()
        if unknown:
            near = nearest(next(iter(unknown)), ("task_id", "index", "split", "seed", "episode_id"))
            hint = f" Did you mean {near}?" if near else ""
            raise Refused(f"reset knows no {next(iter(unknown))!r}; it takes {_TAKEN}.{hint}")
        with counted("reset") as call:
            chosen = self._chosen(task_id, split, index, seed)
            name, task = self._playing = self._desk.start(chosen, "OpenEnv")
            self._state = SQLState(episode_id=episode_id or name, task_id=task.id)
            call.outcome = "ok"
        return self._observation(task, task.prompt())

    def _chosen(self, task_id: str | None, split: str, index: int | None, seed: int | None) -> str:
        """Return the id of the task to play; empty for the next task."""
        if task_id is not None and index is not None:
            raise Refused("Name the task by task_id or by index, not by both.")
        tasks = self._tasks(split)
        if index is not None:
            if not 0 <= index < len(tasks):
                raise Refused(f"There is no task {index} in {split!r}; it has 0 to {len(tasks) - 1}.")
            return tasks[index].id
        if task_id is None and seed is not None:
            return random.Random(seed).choice(tasks).id
        return task_id or ""

    async def step_async(
        self, action: SQLAction, timeout_s: float | None = None, **unknown: Any
    ) -> SQLObservation:
        """Play a call. `timeout_s` has no effect: the database limits the time of a statement."""
        if self._playing is None:
            raise Refused("No episode is open: call reset.")
        name, task = self._playing
        with counted("step") as call:
            came = await self._desk.call(name, self._text(action))
            self._state.step_count += 1
            if isinstance(came, Episode):
                return self._ended(came, call)
            call.outcome = "error" if came.result is None or came.result.error is not None else "ok"
        return self._observation(task, came.observation or "", reward=0.0)

    def _ended(self, episode: Episode, call: Counted) -> SQLObservation:
        self._playing = None
        self._state.status = str(episode.status)
        if episode.status == Status.ENVIRONMENT_FAULT:
            call.outcome = "error"
            raise Refused(
                f"The environment failed, and the episode has no reward: {episode.fault} Leave it out and "
                "call reset."
            )
        call.outcome = "ok"
        self._state.right = episode.right
        (reward,) = episode.rewards.values()
        text = "The answer is recorded." if episode.status == Status.ANSWERED else "No call is left."
        told = {"status": str(episode.status), "right": episode.right}
        return self._observation(episode.task, text, done=True, reward=reward, metadata=told)

    def _text(self, action: SQLAction) -> str:
        """Return the text of the turn for this action."""
        if action.sql is not None:
            return written("execute_sql", query=action.sql)
        tool, argument = ENDINGS[self._desk.protocol.name]
        return written(tool, **{argument: action.answer})

    def _observation(self, task: Task, text: str, **more: Any) -> SQLObservation:
        left = self._desk.rules.turns(task) - self._state.step_count
        product = PRODUCTS[task.dialect]
        return SQLObservation(text=text, task_id=task.id, database=product, calls_left=left, **more)

    # --- what else OpenEnv's server calls ----------------------------------------------------------------

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> SQLObservation:
        """Run `reset_async` from another thread than the desk's."""
        going = self.reset_async(seed, episode_id, **more)
        return asyncio.run_coroutine_threadsafe(going, self._loop).result()

    def step(self, action: SQLAction, timeout_s: float | None = None, **more: Any) -> SQLObservation:
        """Run `step_async` from another thread than the desk's."""
        return asyncio.run_coroutine_threadsafe(self.step_async(action), self._loop).result()

    @property
    def state(self) -> SQLState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name=NAME,
            description="Questions about and changes of SQL tables, on a database of the episode's own.",
            version=version("trl-dbbench"),
        )

    def close(self) -> None:
        """End the episode; may be called from any thread. A later `reset` begins another one."""
        if self._playing is not None:
            self._loop.call_soon_threadsafe(self._desk.leave, self._playing[0])
            self._playing = None


def _shown(index: int, task: Task) -> dict[str, Any]:
    """Return the part of a task that its player may see."""
    about = {"operation": task.operation, "skills": list(task.skills)}
    return {"index": index, "id": task.id, "request": task.question} | about


def application(desk: Desk) -> FastAPI:
    """Return OpenEnv's server of the environment, with monitoring routes. Call it in the serving loop."""
    app = create_fastapi_app(
        # a partial of the class, which OpenEnv unwraps
        partial(DatabaseEnvironment, desk, asyncio.get_running_loop()),
        ACTIONS[desk.protocol.name],
        SQLObservation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=MAX_CONNECTIONS,
            # ends sessions that a request opened and nobody closed, but not those of connections
            session_timeout=desk.idle_seconds,
        ),
        env_name=NAME,
        state_cls=SQLState,
        mode="simulation",
    )
    app.router.routes[:0] = monitoring_routes(desk)  # OpenEnv's own /health always reports healthy

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=409)

    return app
