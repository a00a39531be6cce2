"""Greedy evaluation of a model, with the same player and engines as in training."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoTokenizer
from transformers.quantizers import AutoQuantizationConfig

from trl_dbbench.database import Database
from trl_dbbench.engines.base import Backend, EngineSettings, engine_of, open_backend
from trl_dbbench.engines.policy import Policy, Precision, ServedPolicy
from trl_dbbench.episode.plan import Plan
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.types import Episode, Sampling, Start, Status, check_harness
from trl_dbbench.errors import DatabaseError, loading
from trl_dbbench.harness import played_by
from trl_dbbench.harness.task import DEFAULT_SECONDS
from trl_dbbench.runs.adapters import load_base, put_on, warn_of_another_base
from trl_dbbench.runs.conversations import protocol_of
from trl_dbbench.runs.few_shot import DEFAULT_WAY, Memory, Shots, load_memory
from trl_dbbench.runs.journal import GREEDY, SAMPLES, Journal
from trl_dbbench.runs.records import (
    Accuracy,
    EpisodeRecord,
    TurnRecord,
    commonest,
    episode_record,
    void_reasons,
)
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.runs.trained import Trained
from trl_dbbench.tasks import Task
from trl_dbbench.utils.console import columns, printable
from trl_dbbench.utils.files import check_not_misspelled
from trl_dbbench.utils.lookup import check_choice

Reward = Callable[[Sequence[Episode], Mapping[str, str]], None]
"""Function that rewards episodes in place; it also gets the memory lines that their prompts showed, by id."""

UNREADABLE_SHOWN, UNREADABLE_CHARACTERS = 3, 400
"""Most unreadable first turns that an evaluation prints, and most characters of each."""

MEMORY_FILE = "memory.jsonl"
"""Few-shot memory in the folder of a merged model or of `trl-dbbench sample`."""

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Args:
        episodes: episodes played by this process.
        shots: memory lines of the earlier episodes that prompts showed, by id.
        all_records: records of these episodes and of those played before a resume; default: these alone.
    """

    episodes: list[Episode]
    shots: dict[str, str] = field(default_factory=dict)
    all_records: Sequence[EpisodeRecord] | None = None

    @property
    def records(self) -> Sequence[EpisodeRecord]:
        """Records of all played episodes, in the order of the tasks."""
        if self.all_records is not None:
            return self.all_records
        return [episode_record(episode, "eval", 0) for episode in self.episodes]

    @property
    def accuracy(self) -> Accuracy:
        """Accuracy overall, per operation and per skill."""
        return Accuracy().add(self.records)

    @property
    def statuses(self) -> dict[str, float]:
        """Share of episodes per status, without statuses that did not occur."""
        counts = Counter(record["status"] for record in self.records)
        return {status: count / counts.total() for status, count in sorted(counts.items())}

    @property
    def void_reasons(self) -> Counter[str]:
        """Number of void episodes by reason."""
        return void_reasons(self.records)

    @property
    def unreadable_first_turns(self) -> list[TurnRecord]:
        """First turns without a readable action. A model that starts so gets no reward to learn from."""
        first = [record["turns"][0] for record in self.records if record["turns"]]
        return [turn for turn in first if turn["action"] == "invalid"]

    @property
    def emulation_mistakes(self) -> int:
        """Number of statements that failed because of a mistake in the embedded database."""
        turns = [turn for record in self.records for turn in record["turns"]]
        return sum(turn["limit"] == "emulation" for turn in turns)

    def to_dict(self) -> dict[str, Any]:
        said = {
            "accuracy": self.accuracy.metrics(),
            "counts": dict(self.accuracy.counts),
            "void": dict(self.accuracy.void),
            "void_reasons": dict(self.void_reasons),
            "statuses": self.statuses,
            "unreadable_first_turns": len(self.unreadable_first_turns),
            "emulation_mistakes": self.emulation_mistakes,
            "episodes": list(self.records),
        }
        if self.shots:
            said["shots"] = [json.loads(line) for line in self.shots.values()]
        return said

    def __str__(self) -> str:
        rows = [
            *self.accuracy.table(),
            *((f"status/{s}", f"{100 * share:.1f} %") for s, share in self.statuses.items()),
        ]
        for kind, reasons in (
            ("void", self.void_reasons),
            ("harness faults", void_reasons(self.records, Status.HARNESS_FAULT)),
        ):
            if reason := commonest(reasons):
                rows.append((f"{kind}, most often", reason))
        if self.emulation_mistakes:
            rows.append(("database/emulation_mistakes", str(self.emulation_mistakes)))
        unreadable = self.unreadable_first_turns
        if unreadable:
            rows.append(("first turns unreadable", f"{len(unreadable)} of {len(self.records)}"))
        lines = columns([(name, [value]) for name, value in rows])
        for turn in unreadable[:UNREADABLE_SHOWN]:
            shown = "\n".join(map(printable, turn["text"][:UNREADABLE_CHARACTERS].splitlines()))
            cut = " ..." if len(turn["text"]) > UNREADABLE_CHARACTERS else ""
            lines.append(f"\nunreadable ({turn.get('reason')}):\n{textwrap.indent(shown, '    ')}{cut}")
        return "\n".join(lines)


def evaluate(
    tasks: Sequence[Task],
    player: Player,
    backend: Backend,
    *,
    system_prompt: Opening | None = None,
    batch_size: int = 16,
    progress: bool = True,
    shots: Shots | None = None,
    journal: Journal | None = None,
    reward: Reward | None = None,
    plan: Plan | None = None,
) -> Evaluation:
    """Play every task once, greedily, and judge the episodes.

    ```python
    policy = Policy(model, tokenizer)
    player = Player.of(tokenizer, database, eos_token_ids=policy.eos_token_ids)
    print(evaluate(tasks, player, TransformersBackend(policy)))
    ```

    Args:
        player: plays the episodes.
        backend: `TransformersBackend`, `VLLMBackend` or the result of `open_backend`.
        system_prompt: replaces the protocol's system prompt.
        batch_size: episodes played concurrently.
        shots: adds earlier episodes to the prompts; a batch's episodes may join them for later batches.
        journal: saves each episode; episodes that it already has are not played again.
        reward: rewards the episodes of a batch before they are saved.
        plan: draws the samples of this plan instead of greedy episodes.

    Raises:
        ConfigError: if a prompt does not fit the model's context, or the harness fails in every episode of
            the first batch.
        DatabaseError: if the database remains unreachable.
        EngineError: if servers should generate and none responds.
    """
    player, journal = within_context(player, backend), journal or Journal()
    if plan is None:
        part, label, greedy = GREEDY, "greedy evaluation", Sampling(greedy=True)
        starts = [player.start(task, greedy, system_prompt) for task in tasks]
    else:
        part, label, starts = SAMPLES, f"{plan.n} samples a task", plan.starts(tasks, player, system_prompt)
    done = journal.done(part)
    places = [place for place in range(len(starts)) if place not in done]
    played: list[Episode] = []
    for batch in play_in_batches(
        [starts[place] for place in places],
        *(player, backend, batch_size, label),
        shots=shots,
        system_prompt=system_prompt,
        progress=progress,
        begun=bool(done),
    ):
        shown = {} if shots is None else shots.drawn()
        if reward is not None:
            reward(batch, journal.shots | shown)
        records = [episode_record(episode, "eval", 0) for episode in batch]
        journal.add(part, list(zip(places[len(played) :], records, strict=False)), shown)
        played.extend(batch)
        if shots is not None:
            shots.learn_from(records, [episode.task for episode in batch])
    return Evaluation(played, journal.shots, journal.records(part))


def within_context(player: Player, backend: Backend) -> Player:
    """Return the player with rules that keep episodes within the context of the backend's model."""
    context = min([*backend.contexts, *filter(None, [player.rules.context])], default=None)
    return replace(player, rules=replace(player.rules, context=context))


def play_in_batches(
    starts: Sequence[Start],
    player: Player,
    backend: Backend,
    batch_size: int,
    label: str,
    *,
    shots: Shots | None = None,
    system_prompt: Opening | None = None,
    progress: bool = True,
    begun: bool = False,
) -> Iterator[list[Episode]]:
    """Play batches of episodes, yield each, and show progress; raise as `evaluate` does.

    Args:
        player: a player from `within_context`.
        label: text of the progress bar.
        shots: adds earlier episodes to the prompts, which begin with `system_prompt`.
        begun: whether some episodes were played before a resume.
    """
    if shots is not None:
        shots.player = player
    database, right, void = player.database, 0, 0
    with (
        backend.engine() as engine,
        tqdm(total=len(starts), desc=label, unit="episode", disable=not progress or None) as bar,
    ):
        for first in range(0, len(starts), batch_size):
            batch = starts[first : first + batch_size]
            if shots is not None:
                batch = _showing(shots, batch, player, system_prompt)
            episodes = player.play_all(batch, engine)
            if database.gave_up is not None:
                raise DatabaseError(
                    f"{database.gave_up}. It was waited for, {database.patience:g} s, and is still away; "
                    f"{first} of {len(starts)} episodes were played."
                )
            if not (begun or first):
                check_harness(episodes)
            right += sum(episode.right for episode in episodes)
            void += sum(episode.status == Status.ENVIRONMENT_FAULT for episode in episodes)
            yield episodes
            bar.update(len(episodes))
            bar.set_postfix_str(so_far(right, void))


def so_far(right: int, void: int) -> str:
    """Return the counts shown next to the progress bar."""
    return f"{right} right" + (f", {void} void" if void else "")


def _showing(
    shots: Shots, starts: Sequence[Start], player: Player, system_prompt: Opening | None
) -> list[Start]:
    """Return the starts with earlier episodes in their prompts."""
    chat, tasks = player.chat, [start.task for start in starts]
    shown = shots.show(tasks, [chat.protocol.messages(task, system_prompt) for task in tasks], round=0)
    return [
        replace(start, prompt_ids=chat.prompt_ids(messages), shots=ids, messages=messages)
        for start, (messages, ids) in zip(starts, shown, strict=True)
    ]


def open_model(
    trained: Trained, engine: EngineSettings | None = None, adapters: Sequence[str] = ()
) -> tuple[Backend, Policy | ServedPolicy]:
    """Return the backend that generates and the policy, which is loaded here or by vLLM.

    `adapters` are further adapters that the same model will play with, one after the other.

    Raises:
        ConfigError: if the model or an adapter cannot be loaded.
        EngineError: if servers should generate and none responds.
    """
    model, adapter, settings = trained.model, trained.adapter, trained.settings
    engine, dtype = engine or EngineSettings(), dtype_of(settings)
    for name in filter(None, (model, adapter)):
        check_not_misspelled(name)
    for name in dict.fromkeys(filter(None, (adapter, *adapters))):
        warn_of_another_base(name, model)
    revision = settings.model_revision if adapter is not None else None
    quantized = settings.quantized if adapter is not None else None  # a whole model's config.json has it
    policy: Policy | ServedPolicy
    what = f"the model '{model}'" + (f" with the adapter '{adapter}'" if adapter else "")
    with loading(what):
        tokenizer = AutoTokenizer.from_pretrained(
            model, revision=revision, trust_remote_code=engine.trust_remote_code
        )
        if settings.chat_template is not None:
            tokenizer.chat_template = settings.chat_template
        if engine_of(engine) == "vllm":
            policy = ServedPolicy(
                *(model, tokenizer, adapter),
                adapters=adapters,
                computes_in=Precision(settings.autocast or dtype, (quantized or {}).get("quant_method")),
                revision=revision,
                config_changes=settings.model_config,
            )
        else:
            given: dict[str, Any] = {"revision": revision, "dtype": dtype, **(settings.model_config or {})}
            if quantized is not None:
                given["quantization_config"] = AutoQuantizationConfig.from_dict(quantized)
            loaded: Any = load_base(model, trust_remote_code=engine.trust_remote_code, **given)
            if adapter is not None:
                loaded = put_on(loaded, adapter)
            precision = getattr(torch, settings.autocast) if settings.autocast else None
            policy = Policy(loaded.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer, precision)
    return open_backend(engine, policy), policy


def dtype_of(settings: RunSettings) -> str:
    """Return the dtype to load weights in; raise ConfigError if it is not in `DTYPES`."""
    dtype = settings.dtype or "auto"
    check_choice("dtype", dtype, DTYPES)
    return dtype


def player_of(settings: RunSettings, policy: Policy | ServedPolicy, database: Database) -> Player:
    """Return a player with these settings; raise ConfigError if the tokenizer has no usable chat template, or
    a name in the settings is unknown."""
    player = Player.of(
        policy.tokenizer,
        database,
        protocol=settings.protocol,
        observation_characters=settings.observation_characters,
        eos_token_ids=policy.eos_token_ids,
        template_kwargs=settings.chat_template_kwargs,
        grader=settings.grader,
        rules=settings.rules,
        history="template" if settings.harness else settings.history,
    )
    if settings.harness is None:
        return player
    return played_by(player, settings.harness, settings.harness_seconds or DEFAULT_SECONDS)


def memory_of(trained: Trained, protocol: AgentProtocol) -> Memory:
    """Return a run's few-shot memory as it was when the weights were saved; raise ConfigError if it cannot be
    read."""
    settings, memory = trained.settings, Memory()
    if settings.few_shot_memory is not None:
        memory = load_memory(settings.few_shot_memory, protocol)
    if settings.few_shot_update and trained.run is not None:
        before = math.inf if trained.step is None else trained.step
        for example in load_memory(trained.run, protocol, ("train",), before, may_be_empty=True):
            memory.add(example)
    return memory


def settings_apart(trained: Trained, folder: Path, found_at: Path) -> RunSettings:
    """Return settings that do not depend on the run's folder.

    If the run's own episodes joined the few-shot memory, it is written to `folder`, and the settings name it
    by its later path below `found_at`.
    """
    settings = trained.settings
    if not settings.few_shot_update or trained.run is None:
        return settings
    memory_of(trained, protocol_of(settings)).write(folder / MEMORY_FILE)
    return replace(settings, few_shot_memory=str(found_at.resolve() / MEMORY_FILE), few_shot_update=None)


def shots_of(
    trained: Trained,
    player: Player,
    tasks: Iterable[Task],
    update: bool = False,
    folder: Path | None = None,
) -> Shots | None:
    """Return the source of few-shot episodes for prompts; `None` if the settings ask for none.

    Args:
        player: a player from `within_context`.
        tasks: all tasks to be played.
        update: whether right episodes of the evaluation join the memory.
        folder: where the shown episodes are recorded; `None` for nowhere.

    Raises:
        ConfigError: if the memory cannot be read or has nothing to show, the chat template cannot show
            earlier episodes, or not even the shortest prompt has room for one.
    """
    settings, protocol = trained.settings, player.chat.protocol
    if not settings.few_shot:
        return None
    memory = memory_of(trained, protocol)
    by, seed = settings.few_shot_by or DEFAULT_WAY, settings.few_shot_seed or 0
    shots = Shots(player, memory, settings.few_shot, by, seed=seed, update=update, folder=folder)
    shots.check_room(protocol.messages(task, settings.system_prompt) for task in tasks)
    return shots
