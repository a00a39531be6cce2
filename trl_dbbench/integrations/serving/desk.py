"""Open episodes of a server. As everywhere, `episode.play` plays them; the agent's calls are their turns.

```
start("t1") -> name, Task     an episode of this task begins, with a sandbox of its own
call(name, text) -> Turn      the call is the next turn; its observation is the reply
call(name, text) -> Episode   the call ended it: an answer, or the last turn allowed
```

An episode has a secret name, and any client with the name can play it. A connection cannot identify it: MCP
over HTTP has had none since its version of 2026-07-28, and the agents of a client share one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import Counter, Gauge, Histogram

from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.types import Episode, Rules, Sampling, Start, Status, Turn
from trl_dbbench.errors import StorageError
from trl_dbbench.integrations.calls import Calls, Refused
from trl_dbbench.integrations.serving.folder import Folder
from trl_dbbench.tasks import Task
from trl_dbbench.utils.lookup import nearest

logger = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Number of ended episodes whose names are kept, to tell a late call from a wrong name."""

EPISODES = Counter("dbbench_episodes", "Episodes that have ended.", ["status", "right"])
OPEN = Gauge("dbbench_episodes_open", "Episodes that are being played.")
LEFT = Gauge("dbbench_tasks_left", "Tasks that have not been handed out yet.")
DATABASE = Gauge("dbbench_database_up", "Whether the database has answered in the last seconds.")

CALLS = Histogram(
    "dbbench_call_seconds",
    "From a call's coming to its reply.",
    ["tool", "outcome"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)

ENDINGS = {"tools": ("commit_final_answer", "answers"), "tools_sql": ("submit_sql", "query")}
"""Protocols that can be served -> the tool that ends an episode, and its argument."""

STOPPED = "the server was stopped before the episode ended"


@dataclass
class Counted:
    """Call in progress; `outcome` is `refused` until it is set to `ok` or `error`."""

    outcome: str = "refused"


@contextmanager
def counted(tool: str) -> Iterator[Counted]:
    """Record a call and its duration in `CALLS`."""
    start, call = time.monotonic(), Counted()
    try:
        yield call
    finally:
        CALLS.labels(tool, call.outcome).observe(time.monotonic() - start)


MAX_OPEN_EPISODES = 1024
"""Largest number of open episodes. Agents think most of the time, so most sandboxes are idle."""


@dataclass
class Desk:
    """Desk that hands out tasks and plays their episodes. For one event loop.

    Args:
        tasks: handed out in this order, each once; a client can ask for any task again by its id.
        rules: only `max_turns` is used.
        idle_seconds: seconds without a call after which an episode ends as not right.
        folder: where episodes are saved; `None` saves none. Tasks already played there are handed out only by
            id.
        reward: adds an episode's reward to its `rewards`.
        most_open: largest number of open episodes.

    Raises:
        TaskError, ConfigError: if episodes of a task could not be judged.
    """

    tasks: Sequence[Task]
    database: Database
    judge: Judge
    protocol: AgentProtocol
    rules: Rules
    idle_seconds: float
    folder: Folder | None = None
    reward: Callable[[Episode], None] | None = None
    most_open: int = MAX_OPEN_EPISODES
    _open: dict[str, tuple[Calls, asyncio.Task[None]]] = field(default_factory=dict, init=False)
    _ended: dict[str, str] = field(default_factory=dict, init=False)
    closing: bool = field(default=False, init=False)
    """True if the server is stopping and begins no new episodes."""

    def __post_init__(self) -> None:
        for task in self.tasks:
            self.judge.check_task(task, self.protocol)
        played = self.folder.played if self.folder else set()
        self._by_id = {task.id: task for task in self.tasks}
        self._next = deque(task for task in self.tasks if task.digest not in played)
        OPEN.set_function(lambda: self.open)
        LEFT.set_function(lambda: self.left)
        DATABASE.set_function(lambda: not self.database.silent)

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def left(self) -> int:
        """Number of tasks that have not been handed out yet."""
        return len(self._next)

    @property
    def ready(self) -> bool:
        """True if a new episode would get its database."""
        return not self.closing and not self.database.silent

    def start(self, task_id: str, client: str) -> tuple[str, Task]:
        """Begin an episode of this task or, if `task_id` is empty, of the next one; return its name and task.

        Args:
            client: name of the client that plays, for the record.

        Raises:
            Refused: if the server is stopping or full, or has no such task.
        """
        if self.closing:
            raise Refused("The server is stopping.")
        if self.open >= self.most_open:
            raise Refused(
                f"{self.open} episodes are open, and no more are played at once. Submit one, or wait: "
                f"one that is not used ends after {self.idle_seconds:g} seconds."
            )
        task = self._task(task_id)
        name = secrets.token_urlsafe(12)
        talk = Calls(self.protocol, self.idle_seconds)
        # a task of its own: an episode outlives the call, and the connection, that began it
        self._open[name] = talk, asyncio.create_task(self._play(name, task, talk, client))
        return name, task

    async def call(self, name: str, text: str) -> Turn | Episode:
        """Play the next turn of an episode, as `Calls.call` does; raise Refused if it is not open."""
        if name in self._ended:
            raise Refused(self._ended[name])
        if name not in self._open:
            raise Refused(f"There is no episode {name!r}. Begin one, which gives its name.")
        return await self._open[name][0].call(text)

    def leave(self, name: str) -> None:
        """End an open episode whose client is gone."""
        if name in self._open:
            self._open[name][0].leave()

    async def drain(self, seconds: float) -> None:
        """Begin no new episodes; wait until the open ones end, at most this many seconds."""
        self.closing = True
        if self._open:
            # wait() leaves the episodes running if it is cancelled or times out
            await asyncio.wait([task for _, task in self._open.values()], timeout=seconds)

    async def close(self, fault: str | None = None) -> None:
        """End all episodes as soon as their statements do; a `fault` makes them environment faults."""
        self.closing = True
        playing = list(self._open.values())
        for talk, _ in playing:
            talk.leave(fault)
        await asyncio.gather(*(task for _, task in playing))

    def _task(self, task_id: str) -> Task:
        if task_id:
            if task_id in self._by_id:
                return self._by_id[task_id]
            near = nearest(task_id, self._by_id)
            hint = f"; nearest: {near!r}" if near else ""
            raise Refused(f"There is no task {task_id!r}{hint}. Leave task_id out to get the next one.")
        if not self._next:
            raise Refused("All tasks have been handed out. By its task_id one can be had again.")
        return self._next.popleft()

    async def _play(self, name: str, task: Task, talk: Calls, client: str) -> None:
        outcome: Episode | Refused
        try:
            start = Start(task, [], Sampling())
            episode = outcome = await talk.play(start, self.database, self.judge, self.rules)
            episode.endpoint = client
            if self.reward is not None:
                await self.database.in_thread(self.reward, episode)
            EPISODES.labels(episode.status, episode.right).inc()
            if self.folder is not None:
                await self.database.in_thread(self.folder.add, episode)
            said = ended(episode)
        except StorageError as error:
            logger.error("%s", error)
            outcome, said = Refused(f"The episode has ended, but {error}"), "This episode has ended."
        except Exception:
            logger.exception("task %s: the episode failed", task.id)
            outcome = Refused("The episode failed by a mistake of the server, and is not recorded.")
            said = str(outcome)
        del self._open[name]
        self._ended[name] = said
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        if isinstance(outcome, Episode):
            talk.end(outcome, said)
        else:
            talk.refuse(outcome)


_ENDINGS = {
    Status.ANSWERED: "its answer was submitted",
    Status.TURN_LIMIT: "it had no turn left",
    Status.OUT_OF_TOKENS: "it was not called for too long",
    Status.SERVER_CRASH: "one of its statements ended the database server",
    Status.ENVIRONMENT_FAULT: "the database failed or the server was stopped, so it does not count",
}


def ended(episode: Episode) -> str:
    """Return the reply to a call of an episode that has ended."""
    return f"This episode has ended: {_ENDINGS[episode.status]}. Begin another one."
