"""Whether the installed packages work together: their versions, and a few episodes by the tiny model that
comes with this package.

Versions that were not tried may fail, or compute something else in a rollout than in training. Both show
here, within a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging
from transformers.utils.versions import require_version

from trl_dbbench.cli import bundled as shipped
from trl_dbbench.database import open_database
from trl_dbbench.engines.policy import Policy
from trl_dbbench.engines.transformers.backend import TransformersBackend
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Episode, Rules
from trl_dbbench.errors import DBBenchError, EngineError, one_line
from trl_dbbench.evaluation.evaluate import evaluate
from trl_dbbench.tasks import load_tasks

TASKS = 4
"""Episodes that are played side by side."""

LIMITS = ("max_turns", "max_turn_tokens", "max_completion_length")

LARGEST_DIFFERENCE = 1e-3
"""Of log-probabilities; on a CPU in fp32 a few 1e-6 are usual."""


def unmet() -> dict[str, str]:
    """Return requirements of this package that are not met: of each, what is there instead."""
    try:
        wanted = [each.replace(" ", "") for each in requires("trl-dbbench") or [] if "extra ==" not in each]
    except PackageNotFoundError:  # run from a folder that is not installed
        return {}
    found = {}
    for each in wanted:
        try:
            require_version(each)
        except PackageNotFoundError:
            found[each] = "missing"
        except ImportError:
            found[each] = f"{version(re.split('[<>=!~]', each)[0])} is installed"
    return found


def play_shipped() -> str:
    """Play tasks of the quickstart by its model, on a CPU and the embedded database; return what came of it.

    Raises:
        EngineError: if that fails, or if rollouts and training forwards disagree about a token.
    """
    try:
        with _one_quiet_thread():
            model, episodes = _played(shipped.read_recipe(shipped.recipes()["quickstart"]))
            difference = largest_difference(model, episodes)
    except DBBenchError:
        raise
    except Exception as error:  # whatever a version raises that was not tried
        raise EngineError(
            "no episode can be played with the installed versions of trl, transformers and torch: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error
    for episode in episodes:
        if episode.fault is not None:
            raise EngineError(f"the embedded database fails with the installed versions: {episode.fault}")
    if not difference <= LARGEST_DIFFERENCE:  # NaN is not, either
        raise EngineError(
            "with the installed versions of trl, transformers and torch, a rollout computes something else "
            f"than a training forward: log-probabilities differ by {difference:.2g}, allowed is "
            f"{LARGEST_DIFFERENCE:g}"
        )
    right = sum(episode.right for episode in episodes)
    return (
        f"the quickstart's model plays {len(episodes)}, {right} of them right; log-probabilities of rollouts "
        f"and training forwards agree up to {difference:.1g}"
    )


@contextmanager
def _one_quiet_thread() -> Iterator[None]:
    """For a model so small that threads only wait for each other, and that loads at once."""
    threads, bars = torch.get_num_threads(), logging.is_progress_bar_enabled()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if bars:
            logging.enable_progress_bar()


def _played(recipe: Mapping[str, Any]) -> tuple[PreTrainedModel, list[Episode]]:
    folder = shipped.shipped("recipes")
    name = folder / recipe["model_name_or_path"]
    policy = Policy(
        AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32), AutoTokenizer.from_pretrained(name)
    )
    tasks = load_tasks(folder / recipe["eval_tasks"])[:TASKS]
    with open_database(recipe["database"]) as database:
        player = Player.of(
            policy.tokenizer,
            database,
            protocol=recipe["protocol"],
            eos_token_ids=policy.eos_token_ids,
            rules=Rules(**{limit: recipe[limit] for limit in LIMITS}),
        )
        backend = TransformersBackend(policy)
        played = evaluate(tasks, player, backend, system_prompt=recipe["system_prompt"], progress=False)
    return policy.model, played.episodes


@torch.no_grad()
def largest_difference(model: PreTrainedModel, episodes: Sequence[Episode]) -> float:
    """Return by how much the log-probabilities of sampled tokens differ between the rollout and one forward
    pass over the whole episode, without a cache."""
    largest = 0.0
    for episode in episodes:
        ids = torch.tensor([[*episode.prompt_ids, *episode.completion_ids]])
        start = len(episode.prompt_ids)
        logits = model(ids, use_cache=False).logits[0, start - 1 : -1]  # (T, V)
        computed = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
        sampled = torch.tensor(episode.mask, dtype=torch.bool)
        differences = (computed - torch.tensor(episode.logprobs))[sampled].abs()
        largest = max(largest, *differences.tolist())
    return largest
