"""Replay of a run's saved episodes, without the model, to find differences.

`episode.play` plays each episode on a fresh sandbox; the saved texts replace engine and tokenizer. Then the
saved record is compared with the new one: parsed actions, the database's replies, the episode's status, the
final tables and the rewards.

Three things are taken from the record unchecked: token ids (as the same number of placeholders),
log-probabilities, and whether an episode ran out of tokens, if its lengths allow it. If a program played the
episode (`harness`), its statements and its answer are replayed, not the program.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from anyio.from_thread import start_blocking_portal
from tqdm.auto import tqdm

from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.play import play
from trl_dbbench.episode.protocol import Action, Operation, given_answer
from trl_dbbench.episode.types import Completion, Rules, Sampling, Start, Status, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.outcome import OutcomeReward
from trl_dbbench.runs.conversations import protocol_of
from trl_dbbench.runs.differences import Difference, Replayed, compare
from trl_dbbench.runs.few_shot import shown_in
from trl_dbbench.runs.read import read_episodes, tasks_by_digest
from trl_dbbench.runs.records import (
    EPISODES_FILE,
    PHASES,
    TASKS_FILE,
    EpisodeRecord,
    TurnRecord,
    check_turns,
)
from trl_dbbench.runs.rescore import batches, rewards_of, score
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Task
from trl_dbbench.utils.lookup import check_choice


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
    """Replay a run's episodes, in the order of its log.

    Rewards are computed again by the run's functions or by `reward_funcs`; they are compared if function and
    values are the run's. A function gets all episodes of a phase and step together.

    Args:
        settings: settings of the episodes; default: read from the run.
        reward_funcs, outcome: names for `load_reward_functions`, and the values of the outcome reward,
            instead of the run's.
        phase, steps: replay only this phase, and only steps in the range from the first number to the second,
            which is excluded.
        workers: episodes played concurrently.
        notes: receives messages about unreadable parts; complete when the iterator ends.

    Raises:
        ConfigError: if the run cannot be read, has nothing to play, or a reward cannot be loaded.
    """
    folder = Path(run)
    if phase is not None:
        check_choice("phase", phase, PHASES)
    notes = [] if notes is None else notes
    settings = settings or RunSettings.read(folder)
    rewards = rewards_of(settings, reward_funcs, outcome, database, notes)
    player = _Replayer(settings, database, tasks_by_digest(folder / TASKS_FILE, notes))
    first, end = steps or (0, math.inf)
    shown = shown_in(folder)  # earlier episodes in prompts, which rewards may read
    records = (
        (line, record | {"shown": [shown[id] for id in record.get("shots", ()) if id in shown]})
        for line, record in _with_progress(folder / EPISODES_FILE, notes, progress)
        if phase in (None, record["phase"]) and first <= record["step"] < end
    )
    count = 0
    for batch in batches(player.play_all(records, workers)):
        score(batch, rewards, settings, database.dialect, notes)
        count += len(batch)
        yield from batch
    if not count:
        raise ConfigError(f"'{folder}' has no such episode to play again. {' '.join(notes)}".rstrip())


def _with_progress(path: Path, notes: list[str], progress: bool) -> Iterator[tuple[int, EpisodeRecord]]:
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    with tqdm(total=lines, desc="replay", unit="episode", disable=not progress or None) as bar:
        for line, record in read_episodes(path, notes, _check):
            bar.update(line - bar.n)
            yield line, record


def _check(record: EpisodeRecord) -> None:
    """Raise ValueError for an episode that cannot be replayed."""
    if record["status"] == Status.ENVIRONMENT_FAULT:
        return
    if record["status"] not in tuple(Status):
        raise ValueError(f"unknown status {record['status']!r}")
    if not record["turns"] and record["status"] not in (Status.HARNESS_FAULT, Status.OUT_OF_TOKENS):
        raise ValueError("no turns")
    for key in ("prompt_tokens", "seed"):
        if not isinstance(record.get(key, 0), int):
            raise ValueError(f"no usable '{key}'")
    check_turns(record)


_ID = -1
"""Placeholder for token ids, which are not saved."""


class _SavedTurns:
    """Turns of a saved episode, with their saved lengths; see `episode.play.Dialogue`.

    An episode that would continue after the last saved turn runs out of tokens, as the saved one must have.
    With `cut`, the token limit cut off the last turn, so its action was not executed.
    """

    full = True  # asked only after a turn that was cut off

    def __init__(self, turns: Sequence[TurnRecord], parse: Callable[[TurnRecord], Action], *, cut: bool):
        self._turns, self._parse, self._cut = turns, parse, cut
        self._saved, self._is_last = turns[0], False

    async def next_turn(self, number: int) -> Turn:
        self._saved, self._is_last = self._turns[number], number + 1 == len(self._turns)
        ids = [_ID] * max(1, self._saved["tokens"])  # 0 is saved if tokens were not counted
        completion, cut_off = Completion(ids, [math.nan] * len(ids)), self._cut and self._is_last
        return Turn(completion, self._saved["text"], self._parse(self._saved), cut_off=cut_off)

    def tell(self, turn: Turn) -> bool:
        if not self._is_last:
            turn.observation_ids = [_ID] * max(1, self._saved["observation_tokens"])
        return not self._is_last


class _Replayer:
    def __init__(self, settings: RunSettings, database: Database, tasks: Mapping[str, Task]):
        self._settings = settings
        self._protocol = protocol_of(settings)
        self._database = database
        self._judge = Judge(database, settings.grader)
        self._tasks = tasks

    def play_all(self, records: Iterable[tuple[int, EpisodeRecord]], workers: int) -> Iterator[Replayed]:
        """Yield replays in order; at most `workers` are playing or waiting to be consumed."""
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
        # a reply executes nothing: it is a summary, or the model's text for a program
        acts = [turn for turn in saved["turns"] if turn.get("action") != "reply"]
        replayed = Replayed(line, {**saved, "turns": acts}, saved["turns"])
        saved = replayed.saved
        if saved["status"] in (Status.ENVIRONMENT_FAULT, Status.SERVER_CRASH):
            return replayed
        task = self._tasks.get(str(saved.get("task_digest")))
        if task is None:
            replayed.differences.append(Difference("task", saved["task_id"], f"not in {TASKS_FILE}"))
            return replayed
        if not saved["turns"]:  # nothing was executed or answered: a program failed, or no turn fitted
            return replayed
        cut, most = self._was_cut(saved, replayed.turns), self._settings.max_turns
        if self._settings.harness is not None:
            cut, most = False, len(saved["turns"])
        turns = _SavedTurns(saved["turns"], self._action, cut=cut)
        sampling = Sampling(greedy=bool(saved.get("greedy")), seed=saved.get("seed", 0))
        prompt_ids = [_ID] * saved.get("prompt_tokens", 0)
        replayed.episode = await play(
            Start(task, prompt_ids, sampling, shots=saved.get("shots", ())),
            dialogue=lambda episode: turns,
            protocol=self._protocol,
            database=self._database,
            judge=self._judge,
            rules=Rules(most),
        )
        if self._settings.harness is not None and saved["status"] != Status.ANSWERED:
            replayed.episode.status = Status(saved["status"])  # the program is not run again
        replayed.differences += compare(saved, replayed.episode, self._database.dialect)
        return replayed

    def _action(self, turn: TurnRecord) -> Action:
        if self._settings.harness is None:
            return self._protocol.parse(turn["text"])
        # a program's turn is a statement, or an answer as JSON
        is_statement = turn["action"] == "operation"
        return Operation(turn["text"]) if is_statement else given_answer(json.loads(turn["text"]))

    def _was_cut(self, saved: EpisodeRecord, turns: Sequence[TurnRecord]) -> bool:
        """Return whether the saved episode ran out of tokens in its last turn, as far as its lengths allow.
        `turns` are all its turns, including summaries."""
        last = saved["turns"][-1]
        if saved["status"] != Status.OUT_OF_TOKENS or last.get("observation") is not None:
            return False
        used = sum(turn["tokens"] + (turn is not last and turn["observation_tokens"]) for turn in turns)
        room = self._settings.max_completion_length or 0  # 0: not known
        if self._settings.context is not None and "prompt_tokens" in saved:
            room = min(room, self._settings.context - saved["prompt_tokens"])
        return used >= room
