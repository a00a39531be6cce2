"""The open episodes of a server: each is played by `loop.play`, as all others, and its turns are calls.

```
start("t1") -> Opening      a task of `loop.play`, with a sandbox of its own, begins
call(episode, text) -> Turn      the call is the next turn; its observation is the reply
call(episode, text) -> Episode   the call has ended it: an answer, or the last turn that there is
```

An episode has a name that cannot be guessed, and whoever has the name plays it. A connection could not stand
for it: since its version of 2026-07-28 MCP knows none over HTTP, and agents of a client share one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trl_dbbench.calls import Calls, Refused
from trl_dbbench.database import Database
from trl_dbbench.errors import StorageError
from trl_dbbench.judge import Judge
from trl_dbbench.lookup import nearest
from trl_dbbench.loop import play
from trl_dbbench.protocol import AgentProtocol
from trl_dbbench.rollout import Episode, Rules, Sampling, Start, Status, Turn
from trl_dbbench.serving.folder import Folder
from trl_dbbench.tasks import Task

logger = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Names of ended episodes that are told from those that never were."""

STOPPED = "the server was stopped before the episode ended"


@dataclass(frozen=True)
class Opening:
    """A new episode: its name, and the task that it plays."""

    name: str
    task: Task


@dataclass
class Desk:
    """Hands out tasks, and plays what comes of them. For one event loop.

    Args:
        tasks: are handed out in this order, each once; by its id a task can be had again.
        database: where the statements run. Whoever opened it closes it.
        judge: says whether an episode ended right.
        rules: of which `max_turns` counts.
        idle_seconds: an episode that is not called for so long is ended, and so not right.
        folder: keeps the episodes, if they are to be kept. Tasks that were played there are handed out by
            their ids only.

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
    _open: dict[str, tuple[Calls, asyncio.Task[None]]] = field(default_factory=dict, init=False)
    _ended: dict[str, str] = field(default_factory=dict, init=False)
    _closing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for task in self.tasks:
            self.judge.check_task(task, self.protocol)
        played = self.folder.played if self.folder else set()
        self._by_id = {task.id: task for task in self.tasks}
        self._next = deque(task for task in self.tasks if task.digest not in played)

    def start(self, task_id: str, client: str) -> Opening:
        """Begins an episode.

        Args:
            task_id: of the task to be played; if empty, it is the next one.
            client: who plays, for the record.

        Raises:
            Refused: if there is no such task, or none is left, or too many episodes are open.
        """
        if self._closing:
            raise Refused("The server is stopping.")
        # a sandbox more could wait for a connection in the thread that a statement needs
        if len(self._open) >= self.database.statements_at_once:
            raise Refused(
                f"{len(self._open)} episodes are open, and no more are played at once. Submit one, or wait: "
                f"one that is not used ends after {self.idle_seconds:g} seconds."
            )
        task = self._task(task_id)
        name = secrets.token_urlsafe(12)
        talk = Calls(self.protocol, self.idle_seconds)
        # a task of its own: an episode outlives the call, and the connection, that began it
        self._open[name] = talk, asyncio.create_task(self._play(name, task, talk, client))
        return Opening(name, task)

    async def call(self, name: str, text: str) -> Turn | Episode:
        """Plays the next turn of an episode.

        Args:
            text: the turn, as the protocol reads it.

        Returns:
            The turn with its observation, or the episode if the turn has ended it.

        Raises:
            Refused: if there is no such episode, or it has ended.
        """
        if name in self._ended:
            raise Refused(self._ended[name])
        if name not in self._open:
            raise Refused(f"There is no episode {name!r}. Call start_task, which names one.")
        return await self._open[name][0].call(text)

    async def close(self, fault: str | None = None) -> None:
        """Ends all episodes, when the statements that run have ended. Nothing of them is left afterwards.

        Args:
            fault: why that is not the agents' doing, if it is not.
        """
        self._closing = True
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
            episode = outcome = await play(
                Start(task, [], Sampling()),
                dialogue=lambda episode: talk,
                protocol=self.protocol,
                database=self.database,
                judge=self.judge,
                rules=self.rules,
            )
            episode.endpoint = client
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
    Status.ENVIRONMENT_FAULT: "the database failed or the server was stopped, so it does not count",
}


def ended(episode: Episode) -> str:
    """What the agent reads if it calls an episode that has ended."""
    why = _ENDINGS.get(episode.status, str(episode.status))
    return f"This episode has ended: {why}. Call start_task for another one."
