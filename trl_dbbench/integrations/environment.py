"""Episodes for a trainer with its own tool loop, such as TRL's `GRPOTrainer`: the same tasks, sandboxes,
judge and rewards. docs/integrations.md has an example.

Here the trainer calls and the episode answers; in `player` the episode asks the model. Both use
`episode.play`: each environment plays in a task on an event loop, which waits there for the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from statistics import fmean as mean
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from trl.trainer.utils import get_callable_name

from trl_dbbench.database import Database
from trl_dbbench.episode.dataset import task_in
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import ToolsProtocol, ToolsSQLProtocol
from trl_dbbench.episode.types import Episode, Rules, Start, Status, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.integrations.calls import OVER, Calls, play_calls, written
from trl_dbbench.rewards.learned import LearnedReward
from trl_dbbench.rewards.registry import RewardFunction, call_reward, with_step_rewards


class Environment:
    """Environment that plays one episode after another; each starts at `reset`.

    Its public methods are the trainer's tools. `environments` creates it.

    An episode ends with its answer, at the turn limit, when `episode` is read, or at the next `reset`. In the
    last two cases the trainer's loop ended it, because tokens ran out or the model made no call; its status
    is `OUT_OF_TOKENS`, which rewards treat like the turn limit.
    """

    _protocol: ToolsProtocol

    def __init__(self, portal: BlockingPortal, database: Database, judge: Judge, rules: Rules):
        self._portal = portal
        self._database = database
        self._judge = judge
        self._rules = rules
        self._played: tuple[Calls, Future[Episode]] | None = None

    def reset(self, task: str, **row: Any) -> None:
        """Begin an episode; raise what `Judge.check_task` does for tasks that cannot be judged here.

        Args:
            task, row: the columns of `to_dataset`, which TRL passes.
        """
        self._end()
        start = Start(task_in(task), prompt_ids=[])
        self._judge.check_task(start.task, self._protocol)
        calls = self._portal.call(Calls, self._protocol)
        playing = self._portal.start_task_soon(
            play_calls, start, calls, self._database, self._judge, self._rules
        )
        self._played = calls, playing

    @property
    def episode(self) -> Episode:
        """The episode; reading it ends it. Raises what `play_calls` does, and ConfigError before `reset`."""
        self._end()
        return self._begun()[1].result()

    def _begun(self) -> tuple[Calls, Future[Episode]]:
        if self._played is None:
            raise ConfigError("the environment has no episode yet: call reset(task=...) first.")
        return self._played

    def _end(self) -> None:
        if self._played is not None and not self._played[1].done():
            calls, playing = self._played
            self._portal.call(calls.leave)
            playing.result()

    def _call(self, name: str, **arguments: Any) -> str:
        calls, playing = self._begun()
        if playing.done():
            return OVER[playing.result().status]
        came = self._portal.call(calls.call, written(name, **arguments))
        if isinstance(came, Turn):
            return came.observation or ""
        last = came.turns[-1].observation if came.status == Status.TURN_LIMIT else None
        return "\n".join(filter(None, (last, OVER[came.status])))


class DatabaseEnvironment(Environment):
    """Environment whose answers are values, with the tools of the protocol `tools`."""

    _protocol = ToolsProtocol()

    def execute_sql(self, query: str) -> str:
        """Runs one SQL statement on the MySQL database and returns its rows or its error.

        Args:
            query: The SQL statement.
        """
        return self._call("execute_sql", query=query)

    def commit_final_answer(self, answers: list[str]) -> str:
        """Ends the session with the answer. After a change of the tables, any answer will do.

        Args:
            answers: The answer, each value or row as a string.
        """
        return self._call("commit_final_answer", answers=answers)


class SQLAnswerEnvironment(Environment):
    """Environment whose answers are SQL, with the tools of the protocol `tools_sql`."""

    _protocol = ToolsSQLProtocol()

    def execute_sql(self, query: str) -> str:
        """Runs one SQL statement on the database and returns its rows or its error.

        Args:
            query: The SQL statement.
        """
        return self._call("execute_sql", query=query)

    def submit_sql(self, query: str) -> str:
        """Ends the session with the query whose rows are the answer.

        Args:
            query: The SQL query.
        """
        return self._call("submit_sql", query=query)


KINDS: dict[str, type[Environment]] = {"tools": DatabaseEnvironment, "tools_sql": SQLAnswerEnvironment}


@contextmanager
def environments(
    database: Database,
    protocol: str = "tools",
    *,
    grader: str | None = None,
    max_turns: int = Rules.max_turns,
) -> Iterator[Callable[[], Environment]]:
    """Give the factory for `GRPOTrainer(environment_factory=...)`; its environments last for the block.

    Args:
        database: where the statements run. The caller closes it, after this block.
        protocol: `"tools"`, or `"tools_sql"` where answers are SQL.
        grader: judges the answers of all tasks; by default the one that each task names.
        max_turns: largest number of calls in an episode.

    Raises:
        ConfigError: if the protocol has no tools, or the grader is not known.
    """
    if protocol not in KINDS:
        raise ConfigError(
            f"an environment's protocol is {' or '.join(KINDS)}, not {protocol!r}: a trainer with a loop of "
            "its own speaks with it by tool calls."
        )
    judge, rules, made = Judge(database, grader), Rules(max_turns=max_turns), []
    with start_blocking_portal() as portal:

        def new() -> Environment:
            made.append(KINDS[protocol](portal, database, judge, rules))
            return made[-1]

        try:
            yield new
        finally:
            for each in made:
                each._end()


def environment_reward(function: RewardFunction) -> Callable[..., Sequence[float | None]]:
    """Return a reward function over environments, as TRL calls it, made from one over episodes.

    `None`, for a void episode, means no reward in TRL, too. The log shows how many there were.

    Raises:
        ConfigError: for a reward model (`model:PATH`, `prm:PATH`).

    Logged:

    - `environment/accuracy_void_wrong`: with a stock trainer, the share of right episodes; those whose
      environment failed count as wrong.
    - `environment/void`: with a stock trainer, the share of episodes whose environment failed.
    """
    if isinstance(function, LearnedReward):
        raise ConfigError(
            f"environment_reward takes no reward model such as {function.name!r}, which must read what the "
            "policy reads; take another reward, or train with DBBenchGRPOTrainer."
        )
    of_episodes = with_step_rewards(function)

    def reward(environments: Sequence[Environment], **kwargs: Any) -> list[float | None]:
        episodes = [each.episode for each in environments]
        if episodes and (log := kwargs.get("log_metric")) is not None:
            log("environment/accuracy_void_wrong", mean(each.right for each in episodes))
            log("environment/void", mean(each.status == Status.ENVIRONMENT_FAULT for each in episodes))
        return call_reward(of_episodes, episode=episodes, **kwargs)

    reward.__name__ = get_callable_name(function)
    return reward
