"""An agent whose turns are written in the test, and a database whose server fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from transformers import PreTrainedTokenizerBase

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox, State
from trl_dbbench.database.dialect import MYSQL
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Completion, Episode, Request, Rules
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Task

RULES = Rules(max_turns=3, max_turn_tokens=4096, max_completion_length=20_000)


class ScriptedEngine:
    """Says `turns[row][turn]`, ends each turn with the eos token if it fits, and logs the requests.

    Token k of a turn has the log-probability -(k + 1) / 1000.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, turns: Mapping[int, Sequence[str]]):
        self.tokenizer = tokenizer
        self.turns = turns
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Completion:
        await asyncio.sleep(0)
        self.requests.append(request)
        text = self.turns[request.row][request.turn]
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] + [self.tokenizer.eos_token_id]
        ids = ids[: request.max_new_tokens]
        return Completion(ids, [-(k + 1) / 1000 for k in range(len(ids))])

    def serve(self, episodes: Sequence[Future]) -> None:
        wait(episodes)


def play_scripts(
    scripts: Sequence[tuple[Task, Sequence[str]]],
    tokenizer: PreTrainedTokenizerBase,
    database: Database,
    protocol: str = "text",
    rules: Rules = RULES,
) -> list[Episode]:
    """Episodes, played side by side, in which the agent says these turns."""
    player = Player.of(tokenizer, database, protocol=protocol, rules=rules)
    starts = [player.start(task, system_prompt="Rules.") for task, _ in scripts]
    return player.play_all(
        starts, ScriptedEngine(tokenizer, {row: turns for row, (_, turns) in enumerate(scripts)})
    )


def play_script(task: Task, turns: Sequence[str], *args: Any, **kwargs: Any) -> Episode:
    """One episode; see `play_scripts`."""
    (episode,) = play_scripts([(task, turns)], *args, **kwargs)
    return episode


def sequences(episode: Episode) -> list[list[int]]:
    """Each sampled turn's ids, and before them the ids that it was sampled after, by the places that they follow."""
    ids = [*episode.prompt_ids, *episode.completion_ids]
    first = len(episode.prompt_ids)
    follows = [*range(-1, first - 1), *(episode.follows or range(first - 1, len(ids) - 1))]
    found, end = [], first
    for turn in episode.turns:
        end += len(turn.completion.ids)
        if turn.completion.ids:
            path, place = [], end - 1
            while place >= 0:
                path.append(ids[place])
                place = follows[place]
            found.append(path[::-1])
        end += len(turn.observation_ids)
    return found


class BrokenSandbox(Sandbox):
    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        raise EnvironmentFault("2013: lost connection")

    def state(self) -> State:
        raise EnvironmentFault("2013: lost connection")

    def close(self) -> None:
        pass


class BrokenDatabase(Database):
    """A server that goes away, before the first turn or under the first statement."""

    url, dialect, patience = "broken", MYSQL, 0.0

    def __init__(self, at_start: bool):
        self.at_start = at_start

    def fresh_sandbox(self, task: Task) -> Sandbox:
        if self.at_start:
            raise EnvironmentFault("2003: cannot connect")
        return BrokenSandbox()

    def describe(self) -> str:
        return "broken"

    def close(self) -> None:
        pass
