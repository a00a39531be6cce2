"""Right episodes of other tasks as earlier turns of the prompt: few-shot retrieval and experience replay.

```
system      the protocol's prompt
user        the question of an earlier task            ─┐
assistant   Action: Operation ...                       │  a shot: an episode that was right,
user        [(2,)]                                      │  as its agent read and wrote it
assistant   Action: Answer ...                         ─┘
user        the question of this task
```

This is a baseline for reinforcement learning: no weights change. `memory` holds the episodes, `choice` ranks
them, and `Shots` inserts them into prompts, the same on all ranks. Episodes of the task itself, or of a task
with the same question or gold SQL on the same schema, are never shown.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trl_dbbench.episode.dataset import rows_to_check, task_in
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.runs.few_shot.choice import WAYS, Ranking
from trl_dbbench.runs.few_shot.memory import Example, Memory, Query, good_episodes, load_memory
from trl_dbbench.runs.records import EPISODES_FILE, SHOTS_FILE, EpisodeRecord
from trl_dbbench.tasks import Task
from trl_dbbench.utils.files import telling_of_no_space, whole_lines
from trl_dbbench.utils.lookup import check_choice
from trl_dbbench.utils.ranks import Ranks
from trl_dbbench.utils.settings import check_number

__all__ = [
    "DEFAULT_WAY",
    "WAYS",
    "Example",
    "Memory",
    "Shots",
    "check_few_shot",
    "good_episodes",
    "load_memory",
    "longest_shown",
    "shown_in",
    "with_examples",
]

logger = logging.getLogger(__name__)

DEFAULT_WAY = "bm25"

Messages = list[dict[str, Any]]


def check_few_shot(number: int, memory: str | None, by: str, update: bool) -> None:
    """Raise ConfigError for few-shot settings that are invalid or contradict each other."""
    check_choice("few_shot_by", by, WAYS)
    check_number("few_shot", number, whole=True)
    if number and not (memory or update):
        raise ConfigError(
            f"few_shot: {number} has nothing to show: name past episodes with few_shot_memory, or let those "
            "of the run itself join with few_shot_update: true."
        )
    if not number and (memory or update):
        given = "few_shot_memory" if memory else "few_shot_update"
        raise ConfigError(f"{given} is used only with few_shot above 0; set that, or leave it out.")


@dataclass(eq=False)
class Shots:
    """Source of examples for prompts.

    Args:
        player: its chat format, protocol and limits apply.
        number: most examples per prompt; fewer if not all fit. No text is cut.
        by: a key of `choice.WAYS`.
        update: whether right episodes join the memory.
        folder: folder to write `SHOTS_FILE` to; `None` for no file.

    Raises:
        ConfigError: if the chat template cannot show examples.
    """

    player: Player
    memory: Memory
    number: int
    by: str = DEFAULT_WAY
    seed: int = 0
    update: bool = False
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        self._rank = Ranking(self.memory, self.by)
        self._file = None if self.folder is None else Path(self.folder) / SHOTS_FILE
        self._written: set[str] | None = None  # ids
        self._drawn: dict[str, Example] = {}  # id -> example in the last prompts
        self._told = False
        self.player.chat.check_shots()

    @classmethod
    def of(cls, trainer: Any) -> Shots | None:
        """Return the shots of a trainer; `None` if its settings ask for none. A growing memory is added to
        `trainer.stateful`. Raise ConfigError if the memory cannot be read, has nothing to show or is the
        run's own log, or if prompts have no room for an example."""
        args, player = trainer.args, trainer.player
        if not args.few_shot:
            return None
        memory = Memory()
        if args.few_shot_memory is not None:
            _check_not_its_own(args.few_shot_memory, args.output_dir)
            memory = load_memory(args.few_shot_memory, player.chat.protocol)
        shots = cls(
            *(player, memory, args.few_shot, args.few_shot_by),
            seed=args.seed,
            update=args.few_shot_update,
            folder=args.output_dir,
        )
        shots.check_room(rows_to_check(trainer.train_dataset)["prompt"])
        if shots.update:
            trainer.stateful["few_shot"] = memory
        return shots

    # --- prompts ----------------------------------------------------------------------------------

    def put(self, rows: Sequence[dict[str, Any]], round: int, further: bool = False) -> list[dict[str, Any]]:
        """Return copies of rows with examples in `prompt` and their ids in `shots`; see `show`. With
        `further`, the last call's examples are kept too, because its rows are not recorded yet."""
        before = self._drawn if further else {}
        tasks = {row["task"]: task_in(row["task"]) for row in rows}
        prompts = [row["prompt"] for row in rows]
        shown = self.show([tasks[row["task"]] for row in rows], prompts, round, Ranks())
        self._drawn |= before
        return [
            {**row, "prompt": prompt, "shots": ids} for row, (prompt, ids) in zip(rows, shown, strict=True)
        ]

    def show(
        self, tasks: Sequence[Task], prompts: Sequence[Messages], round: int, ranks: Ranks | None = None
    ) -> list[tuple[Messages, list[str]]]:
        """Return prompts with examples, and the examples' ids, in the order of the prompt.

        All prompts of a task get the same examples.

        Args:
            tasks, prompts: the tasks and prompts of this rank.
            round: determines the draw, together with the seed, the task and the memory.
            ranks: if given, all ranks must call this, and rank 0 draws for all.
        """
        digests = [task.digest for task in tasks]
        queries = {digest: Query.of(task) for digest, task in zip(digests, tasks, strict=True)}
        if ranks is not None:
            queries = {digest: query for mine in ranks.gather(queries) for digest, query in mine.items()}
        drawn = {}
        if ranks is None or ranks.is_main:
            drawn = {digest: self._draw(query, round) for digest, query in queries.items()}
        if ranks is not None:
            drawn = ranks.from_main(drawn)
        self._drawn = {example.id: example for examples in drawn.values() for example in examples}
        fitting: dict[tuple[str, str], tuple[Messages, list[str]]] = {}  # each prompt is made once
        for digest, prompt in zip(digests, prompts, strict=True):
            if (digest, str(prompt)) not in fitting:
                fitting[digest, str(prompt)] = self._with_those_that_fit(prompt, drawn[digest])
        return [fitting[digest, str(prompt)] for digest, prompt in zip(digests, prompts, strict=True)]

    def _draw(self, query: Query, round: int) -> list[Example]:
        """Return the examples of a task, the best one first."""
        random = np.random.default_rng(np.random.SeedSequence((self.seed, round, int(query.digest, 16))))
        others = (
            example
            for example in self._rank(query, random)
            if example.task_digest != query.digest and {*example.query.twins}.isdisjoint(query.twins)
        )
        return [example for example, _ in zip(others, range(self.number), strict=False)]

    def _with_those_that_fit(
        self, prompt: Messages, examples: Sequence[Example]
    ) -> tuple[Messages, list[str]]:
        for number in range(len(examples), 0, -1):
            shown = examples[number - 1 :: -1]  # the best one is next to the question
            messages = with_examples(prompt, shown, self.player.chat.protocol)
            if self._fits(messages):
                return messages, [example.id for example in shown]
            if not self._told:
                self._told = True
                logger.warning(
                    "Not all prompts have room for %d earlier episodes within %d tokens, the model's context "
                    "less max_completion_length: those show fewer.",
                    *(self.number, self._room()),
                )
        return prompt, []

    def drawn(self) -> dict[str, str]:
        """Return the memory lines of the examples that were drawn last, by id."""
        return {id: example.line for id, example in self._drawn.items()}

    # --- room -------------------------------------------------------------------------------------

    def _room(self) -> float:
        """Return the most tokens of a prompt with examples, which leaves room for a whole completion."""
        context = self.player.rules.context
        return math.inf if context is None else context - self.player.rules.max_completion_length

    def _fits(self, messages: Messages) -> bool:
        room = self._room()
        return room == math.inf or len(self.player.chat.prompt_ids(messages)) <= room

    def check_room(self, prompts: Iterable[Messages]) -> None:
        """Raise ConfigError if not even the shortest prompt has room for the shortest example."""
        protocol = self.player.chat.protocol
        prompt = min(prompts, key=_characters, default=[])
        messages = min((example.messages(protocol) for example in self.memory), key=_characters, default=[])
        whole = _inserted(prompt, messages)
        if whole and not self._fits(whole):
            what = "with one earlier episode" if messages else "alone"
            raise ConfigError(
                f"few_shot: the shortest prompt {what} has {len(self.player.chat.prompt_ids(whole))} tokens, "
                f"and there is room for {self._room():.0f}: the model's context of "
                f"{self.player.rules.context} less max_completion_length "
                f"({self.player.rules.max_completion_length}). Lower that, or take a model with a longer "
                "context."
            )

    # --- played episodes --------------------------------------------------------------------------

    def record(
        self, episodes: Sequence[EpisodeRecord], tasks: Iterable[str], train: bool
    ) -> dict[str, list[float]]:
        """Record the shown examples, and add right training episodes to the memory.

        All ranks must call it with the episodes of all ranks, in the same order.

        Args:
            tasks: the tasks of the episodes, as `Task.to_json` gives them.
            train: whether these are sampled episodes of training tasks.

        Logged:

        - `few_shot/shown`: examples in an episode's prompt.
        - `few_shot/memory`: tasks in the memory.
        """
        if Ranks().is_main:
            self.write(episodes)
        if train:
            self.learn_from(episodes, map(task_in, dict.fromkeys(tasks)))
        shown = [float(len(episode.get("shots", ()))) for episode in episodes]
        return {"few_shot/shown": shown, "few_shot/memory": [float(len(self.memory))]}

    def learn_from(self, episodes: Iterable[EpisodeRecord], tasks: Iterable[Task]) -> None:
        """Add right episodes of these tasks to the memory, in order, if `update` is set."""
        if not self.update:
            return
        of_digest = {task.digest: task for task in tasks}
        for episode in episodes:
            if episode["right"]:
                example = Example.of(episode, of_digest[episode["task_digest"]])
                if example.readable(self.player.chat.protocol):
                    self.memory.add(example)

    def write(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Append new examples in these episodes' prompts, the last ones made, to `SHOTS_FILE`."""
        if self._file is None:
            return
        if self._written is None or not self._file.exists():  # a new run has moved another run's file
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._written = {*shown_in(self._file.parent, cut=True)}
        ids = dict.fromkeys(id for episode in episodes for id in episode.get("shots", ()))
        new = [id for id in ids if id not in self._written]
        self._written.update(new)
        if new:
            lines = [f"{self._drawn[id].line}\n" for id in new]
            with (
                telling_of_no_space(self._file, "Free some, and start again."),
                self._file.open("a", encoding="utf-8", errors="backslashreplace") as file,
            ):
                file.writelines(lines)


def _check_not_its_own(memory: str, output_dir: str) -> None:
    """Raise ConfigError if the memory is the run's own log, which would change before a resume reads it."""
    if Path(memory).resolve() in (Path(output_dir).resolve(), Path(output_dir, EPISODES_FILE).resolve()):
        raise ConfigError(
            f"few_shot_memory: '{memory}' is output_dir, whose episodes this run replaces by its own. Name "
            "another output_dir; to show the run's own episodes set few_shot_update: true."
        )


def with_examples(prompt: Messages, examples: Iterable[Example], protocol: AgentProtocol) -> Messages:
    """Return a prompt with the examples, in this order, right before its question."""
    return _inserted(prompt, [message for each in examples for message in each.messages(protocol)])


def longest_shown(
    number: int, memory: Iterable[Example], protocol: AgentProtocol, own: Iterable[Messages] = ()
) -> Messages:
    """Return the messages of the `number` longest examples, to estimate the longest prompt. Episodes of
    the prompts `own` will join the memory; each is counted as long as its question."""
    examples = [example.messages(protocol) for example in memory]
    examples += [[each for each in prompt if each["role"] != "system"] for prompt in own]
    longest = sorted(examples, key=_characters, reverse=True)[:number]
    return [message for messages in longest for message in messages]


def shown_in(run: str | Path, *, cut: bool = False) -> dict[str, Example]:
    """Return the examples that a run has shown, by their ids in `EpisodeRecord.shots`. Unreadable lines are
    skipped; with `cut`, an incomplete last line is also removed from the file."""
    found = {}
    for line in whole_lines(Path(run) / SHOTS_FILE, cut=cut):
        with suppress(ValueError, KeyError, TypeError, TaskError):
            example = Example.from_line(line)
            found[example.id] = example
    return found


def _inserted(prompt: Messages, messages: Messages) -> Messages:
    begin = max(len(prompt) - 1, 0)
    return [*prompt[:begin], *messages, *prompt[begin:]]


def _characters(messages: Messages) -> int:
    return sum(len(message["content"]) for message in messages)
