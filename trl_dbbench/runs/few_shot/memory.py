"""Memory of right episodes for prompts: its examples, its files, and which tasks are duplicates.

```json
{"phase": "train", "step": 0, "task_id": "q1", "status": "answered", "right": true, "task": {...},
 "turns": [{"text": "Action: Operation ...", "observation": "[(2,)]"}, {"text": "Action: Answer ..."}]}
```

This is a line of a memory file: an episode's record, as in `episodes.jsonl`, with its task. A run's folder is
a memory too, with the tasks in a file beside the episodes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trl_dbbench.episode.protocol import AgentProtocol, Answer, Operation
from trl_dbbench.episode.tool_calls import after_thoughts, call_alone
from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.runs.read import read_episodes, tasks_by_digest
from trl_dbbench.runs.records import (
    EPISODES_FILE,
    OF_TRAINING_TASKS,
    TASKS_FILE,
    EpisodeRecord,
    Phase,
    episode_record,
)
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.sources.base import EXAMPLE_ROWS
from trl_dbbench.utils.files import write_atomically

CAPACITY = 10_000
"""Most tasks in a memory, since each checkpoint holds it; the least recently right ones are dropped."""


@dataclass(frozen=True)
class Query:
    """Keys by which a task is compared with others.

    `terms` are the words of question and schema, in lower case, and the skills. Tasks that share one of the
    digests `twins` have the same question or the same gold SQL, on the same schema.
    """

    digest: str
    terms: tuple[str, ...]
    skills: frozenset[str]
    twins: tuple[str, ...]

    @classmethod
    def of(cls, task: Task) -> Query:
        schema = [(table.name, [column.name for column in table.columns]) for table in task.tables]
        names = [name for table, columns in schema for name in (table, *columns)]
        words = [word for text in (task.question, *names) for word in re.findall(r"[^\W_]+", text.lower())]
        same = [("question", task.question)]
        if task.gold.sql:
            same.append(("sql", task.gold.sql.rstrip("; \n")))
        twins = tuple(_digest([kind, " ".join(text.lower().split()), schema]) for kind, text in same)
        return cls(task.digest, (*words, *task.skills), frozenset(task.skills), twins)


@dataclass(frozen=True)
class Example:
    """A right episode.

    Args:
        task: the task, with only those rows of its tables that its prompt shows.
        task_digest: digest of the task with all rows.
        turns: the agent's texts, each with the observation that it then read; `None` after the last turn.
    """

    task: Task
    task_digest: str
    turns: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, record: EpisodeRecord, task: Task) -> Example:
        shown = EXAMPLE_ROWS if task.schema == "full" else 0
        tables = tuple(replace(table, rows=table.rows[:shown]) for table in task.tables)
        *before, last = [(turn["text"], turn.get("observation")) for turn in record["turns"]]
        digest = str(record.get("task_digest") or task.digest)
        return cls(replace(task, tables=tables), digest, (*before, (last[0], None)))

    @cached_property
    def id(self) -> str:
        """Digest of the task and the turns, as 16 hex digits."""
        return _digest([self.task_digest, self.turns])

    @cached_property
    def query(self) -> Query:
        return Query.of(self.task)

    @cached_property
    def line(self) -> str:
        """Line of a memory file."""
        record = {
            "id": self.id,
            "phase": "train",
            "step": 0,
            "task_id": self.task.id,
            "task_digest": self.task_digest,
            "status": "answered",
            "right": True,
            "turns": [{"text": text, "observation": seen} for text, seen in self.turns],
            "task": self.task.to_entry(),
        }
        return json.dumps(record, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> Example:
        """Return the example of a line of a memory file."""
        record = json.loads(line)
        return cls.of(record, Task.from_entry(record["task"]))

    def readable(self, protocol: AgentProtocol) -> bool:
        """Return whether this protocol reads the turns as statements with observations, then an answer."""
        *before, (last, _) = self.turns
        return isinstance(protocol.parse(last), Answer) and all(
            seen is not None and isinstance(protocol.parse(text), Operation) for text, seen in before
        )

    def messages(self, protocol: AgentProtocol) -> list[dict[str, str]]:
        """Return the episode as earlier turns of a prompt: its question, then turns and observations.

        Thoughts, and words around a tool call, are left out, as in `ChatFormat.prompt_ids`.
        """
        messages = [each for each in protocol.messages(self.task) if each["role"] != "system"]
        for text, seen in self.turns:
            said = after_thoughts(text).strip() or text
            said = call_alone(said) if protocol.tools else said
            messages.append({"role": "assistant", "content": said})
            if seen is not None:
                messages.append({"role": protocol.observation_role, "content": seen})
        return messages


class Memory:
    """The last right episode of each task, the most recent one last. Beyond `capacity` tasks, the least
    recently right ones are dropped."""

    def __init__(self, examples: Iterable[Example] = (), capacity: int = CAPACITY):
        self.capacity = capacity
        self.changes = 0
        """Number of changes, by which a `Ranking` notices that the memory has changed."""
        self._examples: dict[str, Example] = {}  # by the digest of question and schema
        for example in examples:
            self.add(example)

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self._examples.values())

    def add(self, example: Example) -> None:
        self.changes += 1
        key = example.query.twins[0]
        self._examples.pop(key, None)  # the new one comes last
        self._examples[key] = example
        if len(self) > self.capacity:
            del self._examples[next(iter(self._examples))]

    def state_dict(self) -> dict[str, Any]:
        return {"examples": [example.line for example in self]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        known = {example.line: example for example in self}
        self._examples = {}
        for line in state["examples"]:
            self.add(known.get(line) or Example.from_line(line))
        self.changes += 1

    def write(self, path: str | Path) -> None:
        """Write a file for `few_shot_memory`; raise ConfigError if it cannot be written."""
        with write_atomically(path) as file:
            file.writelines(f"{example.line}\n" for example in self)


def good_episodes(episodes: Iterable[Episode]) -> Memory:
    """Return a memory of the right ones among episodes, such as those of `demonstrations.demonstrate`."""
    return Memory(
        Example.of(episode_record(episode, "train", 0), episode.task) for episode in episodes if episode.right
    )


def load_memory(
    path: str | Path,
    protocol: AgentProtocol,
    phases: Sequence[Phase] = OF_TRAINING_TASKS,
    before: float = math.inf,
    *,
    may_be_empty: bool = False,
) -> Memory:
    """Load the right episodes of a run, or of a file of `Memory.write`, that this protocol can show.

    Args:
        path: a run's `output_dir`; or a JSONL file whose lines hold their task, or that has a `tasks.jsonl`
            beside it.
        phases, before: load only episodes of these phases, and of steps below `before`.
        may_be_empty: whether to return an empty memory instead of raising.

    Raises:
        ConfigError: if it cannot be read, or holds no right episode that the protocol can show.
    """
    file = Path(path) / EPISODES_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise ConfigError(
            f"few_shot_memory: '{file}' is not there. Give a run's output_dir, or a JSONL file of episodes."
        )
    notes: list[str] = []
    tasks: dict[str, Task] = {}
    if (beside := file.with_name(TASKS_FILE)).is_file():
        tasks = tasks_by_digest(beside, notes)
    memory, right, unreadable = Memory(), 0, 0
    for _, record in read_episodes(file, notes, _check_texts):
        if not (record["right"] and record["turns"]) or record["phase"] not in phases:
            continue
        if record["step"] >= before or (task := _task_of(record, tasks)) is None:
            continue
        right += 1
        example = Example.of(record, task)
        if example.readable(protocol):
            memory.add(example)
        else:
            unreadable += 1
    if not memory and not may_be_empty:
        why = f"its {right} right episodes" if right else "it has no right episode of a training task"
        if unreadable:
            why += f" have turns that the protocol '{protocol.name}' does not read"
        raise ConfigError(
            f"few_shot_memory: nothing in '{file}' can be shown: {why}. {' '.join(notes)}".rstrip()
        )
    return memory


def _check_texts(record: EpisodeRecord) -> None:
    if not all(isinstance(turn.get("text"), str) for turn in record["turns"]):
        raise ValueError("a turn without usable 'text'")


def _task_of(record: EpisodeRecord, tasks: Mapping[str, Task]) -> Task | None:
    entry = record.get("task")
    if isinstance(entry, dict):
        try:
            return Task.from_entry(entry)
        except TaskError:
            return None
    return tasks.get(str(record.get("task_digest")))


def _digest(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
