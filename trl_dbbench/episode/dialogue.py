"""What an episode says and reads: as token ids here, as messages in `endpoints`.

What was sampled is kept as it was sampled: the ids that are trained are the ids that the model chose;
observations are appended once, as ids, and masked.

```
prompt ids | turn 1 (mask 1) | observation (mask 0) | turn 2 (mask 1) | ... | last turn (mask 1)
```
"""

from __future__ import annotations

from typing import Protocol

from trl_dbbench.episode.types import Chat, Engine, Episode, Request, Rules, Turn


class Dialogue(Protocol):
    """One episode's talk with whoever plays the agent."""

    async def next_turn(self, number: int) -> Turn | None:
        """The turn of that number, counted from 0; `None` if there is no room for any."""

    @property
    def full(self) -> bool:
        """Whether no token is left for the episode."""

    def tell(self, turn: Turn) -> bool:
        """Lets the agent read the turn's observation; returns whether there was room for it."""


class TokenDialogue:
    """An episode's talk with an engine, in token ids.

    Args:
        episode: with the turns that it goes on from.
        row: of the episode among those that the engine plays side by side.
    """

    def __init__(self, episode: Episode, row: int, engine: Engine, chat: Chat, rules: Rules):
        self._ids = [*episode.prompt_ids, *episode.completion_ids]
        room = rules.max_completion_length
        if rules.context is not None:
            room = min(room, rules.context - len(episode.prompt_ids))
        self._end = len(episode.prompt_ids) + room
        self._sampling = episode.sampling
        self._row = row
        self._engine = engine
        self._chat = chat
        self._max_turn_tokens = rules.max_turn_tokens

    async def next_turn(self, number: int) -> Turn:
        budget = min(self._max_turn_tokens, self._end - len(self._ids))
        request = Request(tuple(self._ids), budget, self._sampling, self._row, number)
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
