"""Player of many episodes at once, without a trainer.

```python
player = Player.of(tokenizer, database, protocol="text")
starts = [player.start(task, Sampling(temperature=0.8, seed=7)) for task in tasks]
with backend.engine() as engine:
    episodes = player.play_all(starts, engine)
```

Training uses exactly the ids that the model sampled. Observations are appended once, as ids, and masked:

```
prompt ids | turn 1 (mask 1) | observation (mask 0) | turn 2 (mask 1) | ... | last turn (mask 1)
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from anyio.from_thread import start_blocking_portal
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from trl_dbbench.database import Database
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.dataset import rows_to_check, task_in, tasks_to_check
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.play import Dialogue, play
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol, Reply, get_protocol
from trl_dbbench.episode.token_tree import TokenTree
from trl_dbbench.episode.types import Engine, Episode, Request, Rules, Sampling, Start, Turn
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Task

DEFAULT_RULES = Rules()
DEFAULT_SAMPLING = Sampling()

ASK_FOR_A_SUMMARY = (
    "The conversation is getting long. Write a summary of what matters for the task: what you have found and "
    "changed, and what is left to do. You will go on from your summary alone."
)
AFTER_A_SUMMARY = "Go on from your summary."
SUMMARY_SEED = 1_000
"""Added to the number of the turn after a summary, to seed the summary."""

TEMPLATE_TOKENS = 1_000
"""Upper bound on the tokens that a chat template adds to a prompt without tools."""


class TokenDialogue:
    """The agent's side of one episode, played by an engine, in token ids.

    Args:
        episode: the episode, with the turns that it continues from.
        row: the episode's number among those that the engine plays at once.
    """

    def __init__(self, episode: Episode, row: int, engine: Engine, chat: ChatFormat, rules: Rules):
        self._ids = [*episode.prompt_ids, *episode.completion_ids]
        prompt = len(episode.prompt_ids)
        self._end = prompt + rules.room(0, prompt)
        self._sampling = episode.sampling
        self._row = row
        self._engine = engine
        self._chat = chat
        self._max_turn_tokens = rules.max_turn_tokens

    async def next_turn(self, number: int) -> Turn | None:
        return await self._sample(number)

    async def _sample(self, number: int) -> Turn:
        budget = min(self._max_turn_tokens, self._end - len(self._ids))
        request = Request(tuple(self._ids), budget, self._sampling, self._row, number, self._end)
        completion = await self._engine.generate(request)
        self._ids += completion.ids
        text = self._chat.text(completion.ids)
        ended = completion.ids[-1] in self._chat.eos_token_ids
        return Turn(completion, text, self._chat.protocol.parse(text), cut_off=not ended)

    @property
    def full(self) -> bool:
        return len(self._ids) >= self._end

    def tell(self, turn: Turn) -> bool:
        assert turn.observation is not None
        end = None if turn.cut_off else turn.completion.ids[-1]
        ids = self._chat.observation_ids(turn.observation, end=end)
        if len(self._ids) + len(ids) >= self._end:
            return False
        turn.observation_ids = ids
        self._ids += ids
        return True


class RewrittenDialogue(TokenDialogue):
    """A dialogue that shows earlier turns rewritten, leaves them out, or sums them up.

    The ids before each turn are built from scratch; see `token_tree`.
    """

    def __init__(self, episode: Episode, row: int, engine: Engine, chat: ChatFormat, rules: Rules):
        super().__init__(episode, row, engine, chat, rules)
        self._episode, self._rules = episode, rules
        self._tree = TokenTree(episode.prompt_ids)
        self._follows: int | None = None
        self._first = 0  # the first turn that is shown: the last summary, if there is one
        self._sums_up = False  # whether to sum up before the next turn
        for number, turn in enumerate(episode.turns):
            self._tree.write(turn.completion.ids)
            self._read(episode.turns[: number + 1])

    def _room(self) -> int:
        return self._rules.room(len(self._tree.ids) - len(self._episode.prompt_ids), len(self._ids))

    async def next_turn(self, number: int) -> Turn | None:
        if self._sums_up:
            summary = await self._sample(SUMMARY_SEED + number)
            summary.action, summary.observation = Reply(summary.text), AFTER_A_SUMMARY
            self._episode.turns.append(summary)
            self._first = len(self._episode.turns) - 1
            if not self.tell(summary):
                return None
        return await self._sample(number)

    async def _sample(self, number: int) -> Turn:
        self._end = len(self._ids) + self._room()
        turn = await super()._sample(number)
        turn.follows = self._follows
        self._tree.write(turn.completion.ids)
        return turn

    @property
    def full(self) -> bool:
        return self._room() <= 0

    def tell(self, turn: Turn) -> bool:
        new = self._read(self._episode.turns)
        if self._room() <= 0:
            return False
        turn.observation_ids = new
        return True

    def _read(self, turns: Sequence[Turn]) -> list[int]:
        """Update the ids that are read after these turns; return those that are new."""
        shown, most = list(turns[self._first :]), self._rules.compaction_tokens
        self._ids = self._chat.context_ids(self._episode.prompt_ids, shown)
        if most is not None and self._rules.compaction == "summary":
            # right after a summary there is nothing more to sum up
            self._sums_up = len(self._ids) > most and not isinstance(shown[-1].action, Reply)
            if self._sums_up:
                last = replace(shown[-1], observation=f"{shown[-1].observation}\n\n{ASK_FOR_A_SUMMARY}")
                self._ids = self._chat.context_ids(self._episode.prompt_ids, [*shown[:-1], last])
        elif most is not None:
            while len(self._ids) > most and len(shown) > 1:
                shown = shown[1:]
                self._ids = self._chat.context_ids(self._episode.prompt_ids, shown)
        new, self._follows = self._tree.read(self._ids)
        return new


@dataclass(frozen=True)
class Player:
    """Everything that playing needs except the model. The caller closes the database."""

    chat: ChatFormat
    database: Database
    judge: Judge
    rules: Rules = DEFAULT_RULES

    def __post_init__(self) -> None:
        if self.rewrites:
            self.chat.check_context()

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
        history: str = "kept",
    ) -> Player:
        """Return a player with the library's chat format and judge.

        Args:
            protocol: `"text"`, `"tools"`, the dotted path of your own, or a protocol object.
            observation_characters: as in `get_protocol`, for a protocol given by name.
            eos_token_ids, template_kwargs, history: as in [`ChatFormat`].
            grader: judges the answers of all tasks; if left out, each task names its own.

        Raises:
            ConfigError: if the tokenizer has no usable chat template, or a name is unknown.
        """
        if isinstance(protocol, str):
            protocol = get_protocol(protocol, observation_characters, grader)
        chat = ChatFormat(tokenizer, protocol, eos_token_ids, template_kwargs, history)
        return cls(chat, database, Judge(database, grader), rules)

    def start(
        self, task: Task, sampling: Sampling = DEFAULT_SAMPLING, system_prompt: Opening | None = None
    ) -> Start:
        """Return the start of an episode; `system_prompt` replaces the protocol's own.

        Raises:
            ConfigError: if the prompt leaves the model no room for a turn; also see `Judge.check_task`.
            TaskError: see `Judge.check_task`.
        """
        self.judge.check_task(task, self.chat.protocol)
        messages = self.chat.protocol.messages(task, system_prompt)
        prompt_ids = self.chat.prompt_ids(messages)
        self.rules.check_length(len(prompt_ids), task)
        return Start(task, prompt_ids, sampling, messages=messages)

    def check_dataset(self, dataset: Dataset) -> None:
        """Raise before a run for problems that would make it fail later.

        Raises:
            TaskError: if the rows have no `task`; also see `Judge.check_task`.
            ConfigError: if a prompt leaves the model no room for a turn; also see `Judge.check_task`.
        """
        dataset = rows_to_check(dataset)
        if not {"prompt", "task"} <= set(dataset.column_names):
            raise TaskError(
                f"the dataset has the columns {dataset.column_names}, needed are 'prompt' and 'task'. "
                "Make it with trl_dbbench.to_dataset(load_tasks(...))."
            )
        for task in tasks_to_check(dataset):
            self.judge.check_task(task, self.chat.protocol)
        context, tools = self.rules.context, self.chat.protocol.tools
        if context is None:
            return
        for messages, line in zip(dataset["prompt"], dataset["task"], strict=True):
            # a token is at least one byte long, so short prompts need no tokenizer
            longest = sum(len(message["content"].encode()) for message in messages) + TEMPLATE_TOKENS
            if tools or longest >= context:
                self.rules.check_length(len(self.chat.prompt_ids(messages)), task_in(line))

    def dialogue(self, engine: Engine, row: int, episode: Episode) -> Dialogue:
        """Return the agent's side of an episode."""
        kind = RewrittenDialogue if self.rewrites else TokenDialogue
        return kind(episode, row, engine, self.chat, self.rules)

    @property
    def rewrites(self) -> bool:
        """Return whether a turn may be sampled after a rewritten or shortened history."""
        return bool(self.chat.rewrites or self.rules.compaction_tokens)

    async def play(self, start: Start, engine: Engine, row: int = 0) -> Episode:
        """Play one episode; see `play.play`."""
        return await play(
            start,
            dialogue=partial(self.dialogue, engine, row),
            protocol=self.chat.protocol,
            database=self.database,
            judge=self.judge,
            rules=self.rules,
        )

    def play_all(self, starts: Sequence[Start], engine: Engine) -> list[Episode]:
        """Play many episodes at once; return them in the order of their starts.

        The episodes run on an event loop in a separate thread, where statements wait for the database. The
        model runs in the caller's thread, so that its contexts (autocast, gathered parameters, CUDA streams)
        hold. Works where an event loop is already running, as in notebooks.
        """
        with start_blocking_portal() as portal:
            loop = portal.call(asyncio.get_running_loop)
            # portal.start_task_soon would wait for the loop each time
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
