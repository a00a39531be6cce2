"""Token ids of saved episodes: the sampled ids if they were saved, else new ids for the texts.

`trl-dbbench sample` saves ids, a training log does not. Without them, the rollout's chat format tokenises the
texts again, turn by turn, so the layout of prompt, observations and masks stays the same. Only the agent's
turns may get other ids; `notes` count the turns whose length is unchanged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import eq

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from trl_dbbench.database import QueryResult
from trl_dbbench.engines.policy import ServedPolicy
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.types import Completion, Episode, Sampling, Status, Turn, no_ids
from trl_dbbench.errors import ConfigError, one_line
from trl_dbbench.runs.conversations import Played, prompt_messages, protocol_of
from trl_dbbench.runs.records import EpisodeRecord, action_in, failed_statement
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Task


def chat_of(settings: RunSettings, model: str | None = None) -> ChatFormat:
    """Return the chat format of the run's episodes, or the one for another model; raise ConfigError if
    the tokenizer cannot be loaded."""
    name = model or settings.model
    if name is None:
        raise ConfigError("run.json does not say which model played. Name it by --model.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=None if model is not None else settings.model_revision
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the tokenizer of '{name}' cannot be loaded: {one_line(error)}. Name a model by --model."
        ) from None
    if model is None and settings.chat_template is not None:
        tokenizer.chat_template = settings.chat_template
    return chat_with(settings, tokenizer, ServedPolicy(name, tokenizer).eos_token_ids)


def chat_with(
    settings: RunSettings, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int]
) -> ChatFormat:
    """Return the chat format of the run's protocol with this tokenizer."""
    kwargs, history = settings.chat_template_kwargs, settings.history
    return ChatFormat(tokenizer, protocol_of(settings), eos_token_ids, kwargs, history)


def with_tokens(
    played: Iterable[Played], settings: RunSettings, notes: list[str], chat: ChatFormat | None = None
) -> Iterator[tuple[EpisodeRecord, Episode]]:
    """Yield saved episodes as `Episode`s with texts and token ids, but without database results.

    Args:
        notes: receives a message about texts that were tokenised again, when the iterator ends.
        chat: format of the model to train, if another one played. Saved ids are not used if its tokenizer
            decodes them to other text, or its chat template differs.

    Raises:
        ConfigError: if an endpoint played an episode, or one of several token sequences has no usable ids.
    """
    again: Counter[str] = Counter()
    for record, task in played:
        if (endpoint := record.get("endpoint")) is not None:
            raise no_ids(task.id, endpoint)
        if (kept := _kept(record, task)) is not None and (
            chat is None or (_reads(chat, kept) and _lays_out(chat, kept, record, settings))
        ):
            yield record, kept
        elif settings.rewrites:
            raise ConfigError(
                f"the episode of task '{task.id}' is several sequences (history: template, "
                "compaction_tokens or harness), whose texts cannot be tokenised again, and has no ids of "
                "this tokenizer and chat template. Take the episodes of trl-dbbench sample, and the model "
                "that played them."
            )
        else:
            chat = chat or chat_of(settings)
            episode = _tokenised(record, task, settings, chat)
            now = [(len(turn.completion.ids), len(turn.observation_ids)) for turn in episode.turns]
            then = [(turn["tokens"], turn["observation_tokens"]) for turn in record["turns"]]
            same_prompt = len(episode.prompt_ids) == record.get("prompt_tokens")
            again.update(episodes=1, same_prompts=same_prompt, turns=len(now), same=sum(map(eq, now, then)))
            yield record, episode
    if again:
        assert chat is not None
        notes.append(
            f"{again['episodes']} episodes have no token ids of this tokenizer and chat template: their "
            f"texts were tokenised again with those of '{chat.tokenizer.name_or_path}'. As long as when they "
            f"were played are {again['same_prompts']} of {again['episodes']} prompts, and {again['same']} of "
            f"{again['turns']} turns with what follows them."
        )


def _kept(record: EpisodeRecord, task: Task) -> Episode | None:
    turns = record["turns"]
    if "prompt_ids" not in record or not all("ids" in turn and "observation_ids" in turn for turn in turns):
        return None
    ids = [(turn["ids"], turn["observation_ids"]) for turn in turns]
    return episode_of(record, task, record["prompt_ids"], ids)


def episode_of(
    record: EpisodeRecord, task: Task, prompt_ids: list[int], ids: Iterable[tuple[list[int], list[int]]]
) -> Episode:
    """Return a saved episode; its results have no rows, because logs have none. `ids` has, for each turn, its
    token ids and those between it and the next turn."""
    episode = Episode(task, prompt_ids, Sampling(), status=Status(record["status"]))
    for turn, (sampled, between) in zip(record["turns"], ids, strict=True):
        completion = Completion(sampled, turn.get("logprobs") or [math.nan] * len(sampled))
        made = Turn(completion, turn["text"], action_in(turn), observation_ids=between)
        made.follows, made.observation = turn.get("follows"), turn.get("observation")
        if "sql" in turn and made.observation is not None:
            failed = failed_statement(turn)
            error, code = (made.observation, turn.get("error_code")) if failed else (None, None)
            made.result = QueryResult(None if failed else [], error, code, turn.get("limit"))
        episode.turns.append(made)
    return episode


def _reads(chat: ChatFormat, episode: Episode) -> bool:
    """Return whether this tokenizer decodes the sampled ids to the saved texts."""
    known = len(chat.tokenizer)
    if any(id >= known for id in (*episode.prompt_ids, *episode.completion_ids)):
        return False
    sampled = [turn for turn in episode.turns if turn.completion.ids]  # a program's SQL has none
    return all(chat.text(turn.completion.ids) == turn.text for turn in sampled)


def _lays_out(chat: ChatFormat, episode: Episode, record: EpisodeRecord, settings: RunSettings) -> bool:
    """Return whether this chat template lays out the ids in the same way. If the run's template differs or is
    unknown (`sample` of a model without a run), compare the prompt's ids, except a program's (`harness`)."""
    if settings.harness or settings.chat_template == chat.chat_template:
        return True
    return chat.prompt_ids(prompt_messages(record, episode.task, settings)) == episode.prompt_ids


def _tokenised(record: EpisodeRecord, task: Task, settings: RunSettings, chat: ChatFormat) -> Episode:
    prompt_ids = chat.prompt_ids(prompt_messages(record, task, settings))
    parts = []
    for number, turn in enumerate(record["turns"], 1):
        ids = chat.ids_of(turn["text"])
        cut = turn["tokens"] >= settings.rules.max_turn_tokens
        # an episode also runs out of tokens if an observation no longer fits
        full = record["status"] == Status.OUT_OF_TOKENS and turn.get("observation") is not None
        if number == len(record["turns"]) and not full:
            cut = record.get("truncated", cut)
        if cut:
            ids.pop()  # the turn was not ended
        ended = ids[-1] if ids and ids[-1] in chat.eos_token_ids else None
        read = turn.get("observation") if turn["observation_tokens"] else None
        parts.append((ids, [] if read is None else chat.observation_ids(read, end=ended)))
    return episode_of(record, task, prompt_ids, parts)
