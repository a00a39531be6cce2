"""Plays episodes: whoever wants some needs a `Player` and an engine, and nothing of a trainer.

```python
player = Player.of(tokenizer, database, protocol="text")
starts = [player.start(task, Sampling(temperature=0.8, seed=7)) for task in tasks]
with backend.engine() as engine:
    episodes = player.play_all(starts, engine)
```

The trainer, an evaluation, demonstrations and replay each have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyio.from_thread import start_blocking_portal
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from trl_dbbench.database import Database
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.dataset import rows_to_check, tasks_to_check
from trl_dbbench.episode.dialogue import Dialogue, TokenDialogue
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.play import play
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol, get_protocol
from trl_dbbench.episode.types import Chat, Engine, Episode, Rules, Sampling, Start
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Task

DEFAULT_RULES = Rules()
DEFAULT_SAMPLING = Sampling()

TEMPLATE_TOKENS = 1_000
"""More than a chat template adds to the texts of a prompt, tool descriptions left out."""


@dataclass(frozen=True)
class Player:
    """What episodes are played with.

    Args:
        chat: how text becomes token ids, and which protocol agent and database talk in.
        database: where the statements run. Whoever opened it closes it.
        judge: says whether an episode ended right.
        rules: the limits of an episode.
    """

    chat: Chat
    database: Database
    judge: Judge
    rules: Rules = DEFAULT_RULES

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        database: Database,
        *,
        protocol: str | AgentProtocol = "text",
        observation_characters: int | None = 800,
        eos_token_ids: Sequence[int] | None = None,
        template_kwargs: dict[str, Any] | None = None,
        grader: str | None = None,
        rules: Rules = DEFAULT_RULES,
    ) -> Player:
        """A player with the library's own chat format and judge.

        Args:
            protocol: `"text"`, `"tools"`, the dotted path of your own, or a protocol object.
            observation_characters: of a protocol that is given by name; longer observations are cut.
            eos_token_ids, template_kwargs: as in [`ChatFormat`].
            grader: judges the answers of all tasks; if left out, the one that each task names.

        Raises:
            ConfigError: if the tokenizer has no usable chat template, or a name is not known.
        """
        if isinstance(protocol, str):
            protocol = get_protocol(protocol, observation_characters)
        chat = ChatFormat(tokenizer, protocol, eos_token_ids, template_kwargs)
        return cls(chat, database, Judge(database, grader), rules)

    def start(
        self, task: Task, sampling: Sampling = DEFAULT_SAMPLING, system_prompt: Opening | None = None
    ) -> Start:
        """Where an episode of this task starts.

        Args:
            system_prompt: replaces the protocol's own.

        Raises:
            TaskError, ConfigError: see `check_task`.
        """
        self.check_task(task)
        return Start(task, self.chat.prompt_ids(self.chat.protocol.messages(task, system_prompt)), sampling)

    def check_task(self, task: Task) -> None:
        """Finds a task whose episodes could not be judged; see `Judge.check_task`."""
        self.judge.check_task(task, self.chat.protocol)

    def check_dataset(self, dataset: Dataset) -> None:
        """Finds before a run what would fail in the middle of it.

        Raises:
            TaskError: if the rows have no `task`, or see `check_task`.
            ConfigError: if a prompt leaves the model no room for a turn, or see `check_task`.
        """
        dataset = rows_to_check(dataset)
        if not {"prompt", "task"} <= set(dataset.column_names):
            raise TaskError(
                f"the dataset has the columns {dataset.column_names}, needed are 'prompt' and 'task'. "
                "Make it with trl_dbbench.to_dataset(load_tasks(...))."
            )
        for task in tasks_to_check(dataset):
            self.check_task(task)
        if self.rules.context is not None:
            for messages, line in zip(dataset["prompt"], dataset["task"], strict=True):
                self.check_prompt(messages, partial(_id_of, line))

    def check_prompt(self, messages: Sequence[dict[str, Any]], task_id: Callable[[], str]) -> None:
        """Finds a prompt that is too long.

        Args:
            messages: a task's prompt.
            task_id: names the task; it is called only for an error's text.

        Raises:
            ConfigError: if the prompt leaves the model no room for a turn.
        """
        if self.rules.context is None:
            return
        # a token is at least a byte long, so that the tokenizer is not asked about short prompts
        longest = sum(len(message["content"].encode()) for message in messages) + TEMPLATE_TOKENS
        if longest >= self.rules.context or self.chat.protocol.tools:
            self.rules.check_length(len(self.chat.prompt_ids(list(messages))), task_id)

    def dialogue(self, engine: Engine, row: int, episode: Episode) -> Dialogue:
        """How an episode talks with the agent."""
        return TokenDialogue(episode, row, engine, self.chat, self.rules)

    async def play(self, start: Start, engine: Engine, row: int = 0) -> Episode:
        """Plays one episode; see `loop.play`."""
        return await play(
            start,
            dialogue=partial(self.dialogue, engine, row),
            protocol=self.chat.protocol,
            database=self.database,
            judge=self.judge,
            rules=self.rules,
        )

    def play_all(self, starts: Sequence[Start], engine: Engine) -> list[Episode]:
        """Plays many episodes at once, each from its start, in their order.

        The episodes run on an event loop in a thread of its own, where statements wait for the database; the
        model runs in the caller's thread, where its contexts (autocast, gathered parameters, CUDA streams)
        hold. May be called where an event loop runs already, as in notebooks.
        """
        with start_blocking_portal() as portal:
            loop = portal.call(asyncio.get_running_loop)
            # not portal.start_task_soon, which waits for the loop each time
            futures = [
                asyncio.run_coroutine_threadsafe(self.play(start, engine, row), loop)
                for row, start in enumerate(starts)
            ]
            try:
                engine.serve(futures)
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise


def _id_of(line: str) -> str:
    return Task.from_json(line).id
