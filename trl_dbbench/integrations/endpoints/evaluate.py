"""Evaluation of a model behind an endpoint, with counts of requests and tokens."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyio.from_thread import start_blocking_portal
from tqdm.auto import tqdm

from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.plan import Plan
from trl_dbbench.episode.play import play
from trl_dbbench.episode.player import DEFAULT_RULES
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.types import Episode, Rules, Sampling, Start, Status, Turn, Usage
from trl_dbbench.evaluation.evaluate import Evaluation, so_far
from trl_dbbench.integrations.endpoints.http import Endpoint, TooLong
from trl_dbbench.integrations.endpoints.messages import Message, Reply
from trl_dbbench.runs.journal import GREEDY, SAMPLES, Journal
from trl_dbbench.runs.records import EpisodeRecord, commonest, episode_record
from trl_dbbench.tasks import Task

GREEDILY = Sampling(greedy=True)

Keep = Callable[[int, Episode], None]
"""Callback for each episode that ends, with its index and the episode."""


@dataclass
class MessageDialogue:
    """Conversation with an endpoint, as an `episode.play.Dialogue`.

    `max_completion_length` limits the tokens that the endpoint reports: the growth of its prompts since the
    first request, plus the last turn. Without reported counts there is no limit.
    """

    endpoint: Endpoint
    messages: list[Message]
    protocol: AgentProtocol
    rules: Rules
    episode: Episode
    _reply: Reply = field(default=Reply(""))
    _first_prompt: int | None = None
    """Tokens of the first request."""
    _used: int = 0

    async def next_turn(self, number: int) -> Turn | None:
        budget = min(self.rules.max_turn_tokens, self.rules.max_completion_length - self._used)
        try:
            self._reply = await self.endpoint.reply(
                self.messages, self.protocol.tools, budget, self.episode.sampling
            )
        except TooLong:
            return None
        if usage := self._reply.usage:
            if self._first_prompt is None:
                self._first_prompt = usage.read
            self._used = max(0, usage.read - self._first_prompt) + usage.written
        self.messages.append(self._reply.message(self.protocol))
        return self._reply.turn(self.protocol)

    @property
    def full(self) -> bool:
        if self._reply.squeezed and self._reply.finish == "length":
            return True  # the model's context is full
        return self._used >= self.rules.max_completion_length

    def tell(self, turn: Turn) -> bool:
        assert turn.observation is not None
        self.messages += self._reply.observed(turn.observation, self.protocol)
        return not self.full


@dataclass(frozen=True)
class EndpointPlayer:
    """Player of episodes on an endpoint; `player.Player` is for models whose tokens are known.

    Args:
        rules: `context` is not used; the endpoint itself reports what does not fit.
        system_prompt: replaces the protocol's own.
        concurrency: episodes played in parallel, each with one request at a time.
    """

    endpoint: Endpoint
    protocol: AgentProtocol
    database: Database
    judge: Judge
    rules: Rules = DEFAULT_RULES
    system_prompt: Opening | None = None
    concurrency: int = 8

    def play_all(self, tasks: Sequence[tuple[Task, Sampling]], keep: Keep) -> None:
        """Play every task; end early when the endpoint or the database gives up.

        Args:
            tasks: tasks with their sampling settings; a task may occur several times.
            keep: called for each episode, in another thread than the caller's.

        Raises:
            TaskError, ConfigError: if a task's episodes could not be judged; checked before the first
                request.
        """
        for task in {id(task): task for task, _ in tasks}.values():
            self.judge.check_task(task, self.protocol)
        waiting = deque(enumerate(tasks))

        async def work() -> None:
            while waiting and self.endpoint.gave_up is None and self.database.gave_up is None:
                place, (task, sampling) = waiting.popleft()
                keep(place, await self.play(task, sampling))

        async def work_together() -> None:
            async with self.endpoint.connected():
                await asyncio.gather(*(work() for _ in range(self.concurrency)))

        with start_blocking_portal() as portal:
            portal.call(work_together)

    async def play(self, task: Task, sampling: Sampling) -> Episode:
        """Play one episode, within `Endpoint.connected`; see `episode.play`."""
        messages: list[Message] = [*self.protocol.messages(task, self.system_prompt)]
        episode = await play(
            Start(task, [], sampling),
            dialogue=partial(MessageDialogue, self.endpoint, messages, self.protocol, self.rules),
            protocol=self.protocol,
            database=self.database,
            judge=self.judge,
            rules=self.rules,
        )
        episode.endpoint = str(self.endpoint)
        return episode


@dataclass(frozen=True)
class EndpointEvaluation(Evaluation):
    """Evaluation of an endpoint, which may have ended early.

    Args:
        endpoint: the model and the server's address.
        planned: the number of tasks; `episodes` are the played ones.
        requests, left_out, squeezed, too_long: see `Endpoint`; `requests` includes those of earlier starts.
        stopped: why it ended early.
        usages: the token counts of each turn, as the endpoint reports them.
        samples: the episodes sampled in addition to the greedy ones.
    """

    endpoint: str = ""
    planned: int = 0
    requests: int = 0
    left_out: Sequence[str] = ()
    squeezed: int = 0
    too_long: str | None = None
    stopped: str | None = None
    usages: Sequence[Usage | None] = ()
    samples: Sequence[EpisodeRecord] = ()
    tasks: Sequence[Task] = ()

    @property
    def ended_early(self) -> str | None:
        """Message for the user if tasks were not played or every episode failed; else `None`."""
        if self.stopped is not None:
            return f"{self.stopped.rstrip('.')}. {len(self.records)} of {self.planned} tasks were played."
        if self.records and self.void_reasons.total() == len(self.records):
            return f"every episode ended by a fault, most often: {commonest(self.void_reasons)}."
        return None

    @property
    def tokens(self) -> dict[str, int]:
        """Numbers of tokens read and written, as the endpoint counted them, and of turns without a count."""
        counted = [usage for usage in self.usages if usage is not None]
        return {
            "read": sum(usage.read for usage in counted),
            "written": sum(usage.written for usage in counted),
            "uncounted_turns": len(self.usages) - len(counted),
        }

    @property
    def unreadable(self) -> Counter[str]:
        """Number of turns that the protocol could not parse, by reason."""
        turns = [turn for record in (*self.records, *self.samples) for turn in record["turns"]]
        return Counter(turn.get("reason", "") for turn in turns if turn["action"] == "invalid")

    def to_dict(self) -> dict[str, Any]:
        how = {"endpoint": self.endpoint, "planned": self.planned, "stopped": self.stopped}
        how |= {"requests": self.requests, "tokens": self.tokens, "left_out": list(self.left_out)}
        how |= {"unreadable_turns": dict(self.unreadable), "squeezed_turns": self.squeezed}
        return {**super().to_dict(), **how}

    def __str__(self) -> str:
        tokens = self.tokens
        said = f"{self.endpoint}: {self.requests:,} requests, "
        said += f"{tokens['read']:,} tokens read, {tokens['written']:,} written"
        if tokens["uncounted_turns"]:
            said += f" ({tokens['uncounted_turns']:,} turns not counted)"
        if self.unreadable:
            turns = sum(len(record["turns"]) for record in (*self.records, *self.samples))
            said += f"\n{self.unreadable.total():,} of {turns:,} turns could not be read; most often: "
            said += commonest(self.unreadable)
        if self.squeezed:
            said += f"\n{self.squeezed:,} turns got fewer tokens than asked for: the context was nearly full"
        if self.too_long is not None and any(each["status"] == Status.OUT_OF_TOKENS for each in self.records):
            said += f"\nconversations that do not fit the model: {self.too_long}"
        return f"{super().__str__()}\n{said}" if self.records else said


def evaluate_endpoint(
    tasks: Sequence[Task],
    player: EndpointPlayer,
    *,
    plan: Plan | None = None,
    journal: Journal | None = None,
) -> EndpointEvaluation:
    """Play every task once, greedily, then the samples of a plan, and judge all of them.

    An interrupted evaluation keeps what was played. Raises what `EndpointPlayer.play_all` does.

    Args:
        plan: the samples of each task.
        journal: stores each episode; those that it already has are not played again.
    """
    journal = journal or Journal()
    endpoint, wanted = player.endpoint, _wanted(tasks, plan)
    done = {part: journal.done(part) for part in (GREEDY, SAMPLES)}
    waiting = [each for each in wanted if each[1] not in done[each[0]]]
    right, void = sum(entry["record"]["right"] for entry in journal.earlier), 0
    played: list[tuple[int, Episode]] = []
    earlier_requests = max((entry.get("requests", 0) for entry in journal.earlier), default=0)
    usages = [each and Usage(*each) for entry in journal.earlier for each in entry.get("usages", ())]
    label = "greedy evaluation" if plan is None else f"greedy evaluation and {plan.n} samples a task"
    initial, interrupted = len(wanted) - len(waiting), False
    with tqdm(total=len(wanted), initial=initial, desc=label, unit="episode", disable=None) as bar:

        def keep(number: int, episode: Episode) -> None:
            nonlocal right, void
            part, place, *_ = waiting[number]
            if part == GREEDY:
                played.append((place, episode))
            record = episode_record(episode, "eval", 0)
            new = [turn.usage for turn in episode.turns]
            usages.extend(new)
            counts = [usage and (usage.read, usage.written) for usage in new]
            requests = earlier_requests + endpoint.requests
            journal.add(part, [(place, record)], usages=counts, requests=requests)
            right += episode.right
            void += episode.status == Status.ENVIRONMENT_FAULT
            bar.update()
            bar.set_postfix_str(so_far(right, void))

        try:
            player.play_all([(task, sampling) for *_, task, sampling in waiting], keep)
        except KeyboardInterrupt:
            interrupted = True
    stopped = endpoint.gave_up or player.database.gave_up or ("interrupted" if interrupted else None)
    return EndpointEvaluation(
        [episode for _, episode in sorted(played, key=lambda each: each[0])],
        all_records=journal.records(GREEDY),
        samples=journal.records(SAMPLES),
        endpoint=str(endpoint),
        planned=len(tasks),
        tasks=tasks,
        requests=earlier_requests + endpoint.requests,
        usages=usages,
        left_out=sorted(endpoint.left_out),
        squeezed=endpoint.squeezed,
        too_long=endpoint.too_long,
        stopped=stopped,
    )


def _wanted(tasks: Sequence[Task], plan: Plan | None) -> list[tuple[str, int, Task, Sampling]]:
    """Return the episodes to play: the part of the journal, the index in it, the task, and its sampling."""
    wanted = [(GREEDY, place, task, GREEDILY) for place, task in enumerate(tasks)]
    if plan is not None:
        drawn = [(task, sampling) for task in tasks for sampling in plan.samplings(task)]
        wanted += [(SAMPLES, place, task, sampling) for place, (task, sampling) in enumerate(drawn)]
    return wanted
