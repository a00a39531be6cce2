"""Plays a run's saved episodes again, without the model, and says what does not come out as it was.

The loop is the rollout's own: `rollout.play` plays each episode on a fresh sandbox, with the saved texts in the place
of engine and tokenizer. What the saved line says of itself is then compared with what the episode says now: how each
turn was read, what the database replied, how the episode ended, which tables it left, and its rewards.

Three things cannot be had again and are taken as saved: token ids (stand-ins of the same number are put in),
log-probabilities, and that an episode ran out of tokens, as long as nothing speaks against it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from tqdm.auto import tqdm
from trl.trainer.utils import get_callable_name

from trl_dbbench.database import Database, Dialect
from trl_dbbench.errors import ConfigError
from trl_dbbench.judge import Judge
from trl_dbbench.player import Player
from trl_dbbench.protocol import AgentProtocol, get_protocol
from trl_dbbench.rewards import (
    OUTCOME_PRESETS,
    OutcomeReward,
    RewardFunction,
    describe_reward,
    load_reward_functions,
    with_step_rewards,
)
from trl_dbbench.rollout import Completion, Episode, Request, Rules, Sampling, Start, Status
from trl_dbbench.runs.read import read_episodes, read_tasks
from trl_dbbench.runs.records import EPISODES_FILE, PHASES, TASKS_FILE, EpisodeRecord, episode_record
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Task

_OF_A_TURN = ("action", "sql", "answer", "reason", "observation")
_OF_THE_DATABASE = ("observation", "right", "published_right", "state")

_BATCH = 1024
"""Most episodes that a reward function gets at once."""


@dataclass(frozen=True)
class Difference:
    """What was saved and what is now.

    `turn` counts from 1; 0 stands for the whole episode. `excuse` says why it may differ for no fault.
    """

    what: str
    was: Any
    now: Any
    turn: int = 0
    excuse: str | None = None

    def __str__(self) -> str:
        was, now = _shown(self.was, self.now)
        turn = f"turn {self.turn}, " if self.turn else ""
        excuse = f" ({self.excuse})" if self.excuse else ""
        return f"{turn}{self.what}: was {was}, is {now}{excuse}"


@dataclass
class Replayed:
    """A saved episode and what came of playing it again.

    `line` is its number in `episodes.jsonl`. `episode` is `None` where there was nothing to play: its environment had
    failed in the run, or its task cannot be found.
    """

    line: int
    saved: EpisodeRecord
    episode: Episode | None = None
    differences: list[Difference] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether something differs that should not."""
        return any(difference.excuse is None for difference in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """The saved episode with the rewards of now; those of the run are under `saved_rewards`."""
        return self.saved | {
            "rewards": self.episode.rewards if self.episode else {},
            "advantage": None,  # of the saved rewards
            "saved_rewards": self.saved["rewards"],
            "saved_advantage": self.saved.get("advantage"),
        }

    def __str__(self) -> str:
        saved = self.saved
        where = f"line {self.line}: step {saved['step']}, {PHASES[saved['phase']]}, task {saved['task_id']}"
        return "\n".join([where, *(f"  {difference}" for difference in self.differences)])


def replay(
    run: str | Path,
    database: Database,
    *,
    settings: RunSettings | None = None,
    reward_funcs: Sequence[str] | None = None,
    outcome: OutcomeReward | None = None,
    phase: str | None = None,
    steps: tuple[int, int] | None = None,
    workers: int = 16,
    progress: bool = True,
    notes: list[str] | None = None,
) -> Iterator[Replayed]:
    """Plays a run's episodes again, in the order of its log.

    Rewards are computed anew by the run's own functions, or by those asked for; they are compared where function and
    values are the run's. A function gets the episodes of a phase and step at once.

    Args:
        run: the run's `output_dir`.
        settings: how its episodes were played; read from the run if left out.
        reward_funcs: names for `load_reward_functions`, instead of the run's.
        outcome: the values of the outcome reward, instead of the run's.
        phase: `train`, `greedy` or `eval`; all if left out.
        steps: only those from the first number up to, and without, the second.
        workers: episodes that are played side by side.
        notes: gets what could not be read or computed, in words for the user; complete at the end.

    Raises:
        ConfigError: if the run cannot be read, holds nothing to play, or a reward that was asked for cannot be had.
    """
    folder = Path(run)
    if phase not in (None, *PHASES):
        raise ConfigError(f"unknown phase {phase!r}; allowed: {', '.join(PHASES)}.")
    notes = [] if notes is None else notes
    settings = settings or RunSettings.read(folder)
    rewards = _rewards(settings, reward_funcs, outcome, database, notes)
    player = _Replayer(settings, database, _by_digest_and_id(read_tasks(folder / TASKS_FILE, notes)))
    first, end = steps or (0, math.inf)
    records = (
        (line, record)
        for line, record in _with_progress(folder / EPISODES_FILE, notes, progress)
        if phase in (None, record["phase"]) and first <= record["step"] < end
    )
    count = 0
    for batch in _batches(player.play_all(records, workers)):
        _score(batch, rewards, database.dialect, notes)
        count += len(batch)
        yield from batch
    if not count:
        raise ConfigError(f"'{folder}' has no such episode to play again. {' '.join(notes)}".rstrip())


def _with_progress(path: Path, notes: list[str], progress: bool) -> Iterator[tuple[int, EpisodeRecord]]:
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    with tqdm(total=lines, desc="replay", unit="episode", disable=not progress) as bar:
        for line, record in read_episodes(path, notes, _check):
            bar.update(line - bar.n)
            yield line, record


def _check(record: EpisodeRecord) -> None:
    """Raises ValueError for an episode that cannot be played again."""
    if record["status"] == Status.ENVIRONMENT_FAULT:
        return
    if record["status"] not in tuple(Status):
        raise ValueError(f"unknown status {record['status']!r}")
    if not record["turns"]:
        raise ValueError("no turns")
    for key in ("prompt_tokens", "seed"):
        if not isinstance(record.get(key, 0), int):
            raise ValueError(f"no usable '{key}'")
    for turn in record["turns"]:
        for key, kind, least in (("text", str, ""), ("tokens", int, 1), ("observation_tokens", int, 0)):
            value = turn.get(key)
            if not isinstance(value, kind) or value < least:  # type: ignore[operator]
                raise ValueError(f"a turn without usable '{key}'")


def _by_digest_and_id(tasks: Iterable[Task]) -> dict[str | tuple[str, str], list[Task]]:
    found: defaultdict[str | tuple[str, str], list[Task]] = defaultdict(list)
    for task in tasks:
        found[task.digest].append(task)
        found[task.id, task.question].append(task)  # for episodes of earlier versions
    return found


# --- playing ------------------------------------------------------------------------------------------

_TOKEN, _END = -1, -2
"""Stand-ins for ids that are not saved; no tokenizer reads them as something else."""


class _SavedTurns:
    """A saved episode as the engine and the chat format of `play`.

    Sampled turns and observations are as long as they were. After the last turn nothing more fits in, so an episode
    that would go on there runs out of tokens, as the saved one must have done.

    Args:
        cut: the last turn was cut off where the tokens ended, so that nobody acted on it.
    """

    eos_token_ids = frozenset([_END])

    def __init__(self, saved: EpisodeRecord, protocol: AgentProtocol, *, cut: bool):
        turns = saved["turns"]
        self.protocol = protocol
        self.length = sum(turn["tokens"] for turn in turns)
        self.length += sum(max(1, turn["observation_tokens"]) for turn in turns[:-1])
        self._prompt_tokens = saved.get("prompt_tokens", 0)
        self._turns = turns
        self._turn = turns[0]
        self._cut = cut

    def rules(self, max_turns: int) -> Rules:
        return Rules(max_turns, self.length, self.length if self._cut else self.length + 1)

    async def generate(self, request: Request) -> Completion:
        self._turn = self._turns[request.turn]
        ids = [_TOKEN] * self._turn["tokens"]
        if not (self._cut and request.turn + 1 == len(self._turns)):
            ids[-1] = _END
        return Completion(ids, [math.nan] * len(ids))

    def serve(self, episodes: Sequence[Future]) -> None:
        """Nothing to do: `generate` answers at once."""

    def prompt_ids(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return [_TOKEN] * self._prompt_tokens

    def text(self, ids: Sequence[int]) -> str:
        return self._turn["text"]

    def observation_ids(self, observation: str, *, turn_ended: bool) -> list[int]:
        return [_TOKEN] * max(1, self._turn["observation_tokens"])


class _Replayer:
    def __init__(
        self,
        settings: RunSettings,
        database: Database,
        tasks: Mapping[str | tuple[str, str], list[Task]],
    ):
        self._settings = settings
        self._protocol = get_protocol(settings.protocol, settings.observation_characters or None)
        self._database = database
        self._judge = Judge(database, settings.grader)
        self._tasks = tasks

    def play_all(self, records: Iterable[tuple[int, EpisodeRecord]], workers: int) -> Iterator[Replayed]:
        """In order; never more than `workers` are under way or wait to be taken."""
        with start_blocking_portal() as portal:
            loop = portal.call(asyncio.get_running_loop)
            playing: deque[Future[Replayed]] = deque()
            try:
                for line, record in records:
                    playing.append(asyncio.run_coroutine_threadsafe(self._play(line, record), loop))
                    if len(playing) == workers:
                        yield playing.popleft().result()
                while playing:
                    yield playing.popleft().result()
            finally:
                for episode in playing:
                    episode.cancel()

    async def _play(self, line: int, saved: EpisodeRecord) -> Replayed:
        replayed = Replayed(line, saved)
        if saved["status"] == Status.ENVIRONMENT_FAULT:
            return replayed
        digest = saved.get("task_digest")
        tasks = self._tasks.get(str(digest) if digest else (saved["task_id"], saved["question"]), [])
        if len({task.digest for task in tasks}) != 1:
            found = f"one of {len(tasks)} with this id and question" if tasks else f"not in {TASKS_FILE}"
            replayed.differences.append(Difference("task", saved["task_id"], found))
            return replayed
        turns = _SavedTurns(saved, self._protocol, cut=self._was_cut(saved))
        player = Player(turns, self._database, self._judge, turns.rules(self._settings.max_turns))
        sampling = Sampling(greedy=bool(saved.get("greedy")), seed=saved.get("seed", 0))
        start = Start(tasks[0], turns.prompt_ids([]), sampling)
        replayed.episode = await player.play(start, engine=turns)
        replayed.differences += _differences(saved, replayed.episode, self._database.dialect)
        return replayed

    def _was_cut(self, saved: EpisodeRecord) -> bool:
        """Whether the saved episode ran out of tokens within its last turn, and can have done so."""
        *before, last = saved["turns"]
        if saved["status"] != Status.OUT_OF_TOKENS or last.get("observation") is not None:
            return False
        used = last["tokens"] + sum(turn["tokens"] + turn["observation_tokens"] for turn in before)
        room = self._settings.max_completion_length or 0  # 0: not known
        if self._settings.context is not None and "prompt_tokens" in saved:
            room = min(room, self._settings.context - saved["prompt_tokens"])
        return used >= room


def _differences(saved: EpisodeRecord, episode: Episode, dialect: Dialect) -> Iterator[Difference]:
    if episode.status == Status.ENVIRONMENT_FAULT:
        yield Difference("status", saved["status"], f"{episode.status}: {episode.fault}")
        return
    first, excuse = _excuse(saved, episode, dialect)
    now = _facts(episode_record(episode, saved["phase"], saved["step"]))
    for (turn, what), was in _facts(saved).items():
        if turn <= len(episode.turns) and now.get((turn, what)) != was:
            excused = what in _OF_THE_DATABASE and (turn or math.inf) >= first
            yield Difference(what, was, now.get((turn, what)), turn, excuse if excused else None)


def _facts(episode: Mapping[str, Any]) -> dict[tuple[int, str], Any]:
    """What must come out again: (turn, what) -> value; turn 0 for the whole episode."""
    facts = {
        (number, what): turn[what]
        for number, turn in enumerate(episode["turns"], 1)
        for what in _OF_A_TURN
        if what in turn
    }
    facts[0, "turns"] = len(episode["turns"])
    facts[0, "status"] = episode["status"]
    facts[0, "right"] = episode["right"]
    verdict = episode.get("verdict")
    if isinstance(verdict, dict):
        facts |= {(0, what): verdict[what] for what in ("published_right", "state") if what in verdict}
    return facts


def _excuse(saved: EpisodeRecord, episode: Episode, dialect: Dialect) -> tuple[float, str | None]:
    """From which turn on the database may say something else for no fault, and why."""
    if any(dialect.varies(column.type) for table in episode.task.tables for column in table.columns):
        return 1, "its tables hold the time of their changes"
    for number, (was, now) in enumerate(zip(saved["turns"], episode.turns, strict=False), 1):
        if now.result is None:
            continue
        if (was.get("limit") == "time") != (now.result.limit == "time"):
            return number, f"the statement of turn {number} hit the time limit in one of the two runs"
        if dialect.varies(str(was.get("sql"))):
            return number, f"the SQL of turn {number} asks for the time, chance or the server itself"
    return math.inf, None


# --- rewards ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reward:
    name: str
    function: RewardFunction
    same: bool
    """Whether the run had this function with these values, so that it must give the same rewards."""


def _rewards(
    settings: RunSettings,
    names: Sequence[str] | None,
    outcome: OutcomeReward | None,
    database: Database,
    notes: list[str],
) -> list[_Reward]:
    values = outcome or _outcome_of(settings) or OUTCOME_PRESETS["greedy_then_grpo"]
    functions: list[RewardFunction] = []
    if names is not None:
        functions = load_reward_functions(names, database=database, outcome=values)
    elif not settings.rewards:
        notes.append("The run does not say how it was rewarded: rewards are not checked.")
    else:
        for name, made in settings.rewards.items():
            try:
                if made is None:
                    raise ConfigError("it is no function that can be imported")
                functions += load_reward_functions([made["function"]], database=database, outcome=values)
            except ConfigError as error:
                notes.append(f"The reward {name} is not checked: {error}.")
    named = {get_callable_name(function): with_step_rewards(function) for function in functions}
    return [
        _Reward(name, function, settings.rewards.get(name) == describe_reward(function))
        for name, function in named.items()
    ]


def _outcome_of(settings: RunSettings) -> OutcomeReward | None:
    for made in settings.rewards.values():
        if made is not None and made["function"] == "outcome":
            return OutcomeReward(**{name: value for name, value in made.items() if name != "function"})
    return None


def _batches(replayed: Iterable[Replayed]) -> Iterator[list[Replayed]]:
    """What was scored together in the run; large evaluations in parts."""
    for _, group in groupby(replayed, key=lambda each: (each.saved["phase"], each.saved["step"])):
        while batch := list(islice(group, _BATCH)):
            yield batch


def _score(batch: Sequence[Replayed], rewards: list[_Reward], dialect: Dialect, notes: list[str]) -> None:
    """Rewards the episodes and compares what is to be the same; takes a function that fails off the list."""
    for reward in list(rewards):
        scored = [
            (each, each.episode)
            for each in batch
            if each.episode is not None
            and each.episode.status != Status.ENVIRONMENT_FAULT
            and (not reward.same or reward.name in each.saved["rewards"])  # greedy runs got none
        ]
        if not scored:
            continue
        try:
            values = _values(reward.function, [episode for _, episode in scored])
        except Exception as error:  # whatever a user's function does with what is not there
            what = f"fails on saved episodes, which have no token ids: {type(error).__name__}: {error}"
            if not reward.same:
                raise ConfigError(f"the reward function '{reward.name}' {what}") from error
            notes.append(f"The reward {reward.name} is not checked: it {what}.")
            rewards.remove(reward)
            continue
        for (each, episode), value in zip(scored, values, strict=True):
            episode.rewards[reward.name] = value
            was = each.saved["rewards"].get(reward.name)
            if reward.same and not _same_reward(was, value):
                _, excuse = _excuse(each.saved, episode, dialect)
                each.differences.append(Difference(f"reward {reward.name}", was, value, excuse=excuse))


def _values(function: RewardFunction, episodes: Sequence[Episode]) -> list[float | None]:
    values = function(
        episode=episodes,
        completions=[episode.messages() for episode in episodes],
        task=[episode.task.to_json() for episode in episodes],
    )
    numbers = [None if value is None or not math.isfinite(value) else float(value) for value in values]
    if len(numbers) != len(episodes):
        raise ValueError(f"{len(numbers)} rewards for {len(episodes)} episodes")
    return numbers


def _same_reward(was: Any, now: float | None) -> bool:
    """TRL holds rewards in fp32, and some seven digits are saved."""
    if was is None or now is None or not isinstance(was, int | float):
        return was is now
    return math.isclose(was, now, rel_tol=1e-6)


# --- what is said of it ---------------------------------------------------------------------------------


class Summary:
    """Counts what `replay` yields."""

    def __init__(self) -> None:
        self.episodes = self.faults = self.differing = self.excused = 0
        self.whats: Counter[str] = Counter()  # of unexcused differences: episodes that have one
        self.rewards: defaultdict[tuple[str, str], dict[str, list[float]]] = defaultdict(
            lambda: {"was": [0, 0.0], "is": [0, 0.0]}
        )
        """(phase, name) -> number and sum of the rewards that were saved, and of those of now"""

    def add(self, replayed: Replayed) -> None:
        self.episodes += 1
        self.faults += replayed.saved["status"] == Status.ENVIRONMENT_FAULT
        self.differing += replayed.differs
        self.excused += bool(replayed.differences) and not replayed.differs
        self.whats.update({each.what for each in replayed.differences if each.excuse is None})
        if replayed.episode is not None:
            for when, rewards in (("was", replayed.saved["rewards"]), ("is", replayed.episode.rewards)):
                for name, value in rewards.items():
                    if isinstance(value, int | float):
                        number_and_sum = self.rewards[replayed.saved["phase"], name][when]
                        number_and_sum[0] += 1
                        number_and_sum[1] += value

    def __str__(self) -> str:
        played = self.episodes - self.faults
        equal = played - self.differing - self.excused
        lines = [f"{equal} of {played} episodes came out equal, {self.differing} differ."]
        lines += [f"  {what}: {count}" for what, count in self.whats.most_common()]
        if self.excused:
            lines.append(
                f"{self.excused} differ for no fault: their SQL met the time limit, or asks for the time, chance or the server itself."
            )
        if self.faults:
            lines.append(f"{self.faults} were not played: their environment had failed in the run.")
        return "\n".join(lines)

    def mean_rewards(self) -> str:
        """A line for each phase and reward: its mean in the run and now."""
        return "\n".join(
            f"mean {name}, {PHASES[phase]}: was {_mean(*of['was'])}, is {_mean(*of['is'])}"
            for (phase, name), of in sorted(self.rewards.items())
        )


def _mean(count: float, total: float) -> str:
    return f"{total / count:.4f} of {count:.0f} episodes" if count else "none"


def _shown(was: Any, now: Any, characters: int = 120) -> tuple[str, str]:
    """Both as JSON; of long ones what is about the first place where they differ."""
    texts = [json.dumps(value, ensure_ascii=False) for value in (was, now)]
    start = 0
    if max(map(len, texts)) > characters:
        same = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        start = max(0, same - characters // 3)
    was, now = (
        ("..." if start else "")
        + text[start : start + characters]
        + ("..." if text[start + characters :] else "")
        for text in texts
    )
    return was, now
