"""Metrics of a batch's episodes, logged beside TRL's own and those of `training/alarms.py`.

A new metric is one line in `episode_metrics` and one under "Logged".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from accelerate.state import GradientState
from trl import GRPOConfig

from trl_dbbench.episode.types import Status
from trl_dbbench.runs.records import EpisodeRecord, is_scored, is_void, total_reward


def episode_metrics(episodes: Sequence[EpisodeRecord]) -> dict[str, list[float]]:
    """Return values whose means over all batches are logged, since an evaluation's last batch may be smaller.

    Logged:

    - `accuracy`: share of right episodes; void ones are left out.
    - `accuracy_void_wrong`: share of right episodes; void ones count as wrong.
    - `status/...`: share of the episodes with this status.
    - `turns/mean`: turns of an episode.
    - `sql/mean_seconds`: seconds of a statement's execution.
    - `database/retries`: retries of the database, summed over the batch.
    - `database/emulation_mistakes`: statements that failed by a mistake of the embedded database, which the
      log describes; summed over the batch.
    """
    turns = [turn for episode in episodes for turn in episode["turns"]]
    values: dict[str, list[float]] = {
        **{f"status/{status}": [float(e["status"] == status) for e in episodes] for status in Status},
        "turns/mean": [float(len(episode["turns"])) for episode in episodes],
        "database/retries": [sum(episode["retries"] for episode in episodes)],
        "database/emulation_mistakes": [sum(turn["limit"] == "emulation" for turn in turns)],
        "accuracy": [float(e["right"]) for e in episodes if not is_void(e)],
        "accuracy_void_wrong": [float(e["right"] and not is_void(e)) for e in episodes],
        "sql/mean_seconds": [turn["sql_seconds"] for turn in turns if turn["sql_seconds"] is not None],
    }
    return {name: each for name, each in values.items() if each}  # TRL would log None for an empty list


def refined_metrics(
    episodes: Sequence[EpisodeRecord],
    alarms: Mapping[str, Sequence[float]],
    args: GRPOConfig,
    weights: Sequence[float],
) -> dict[str, list[float]]:
    """Return values for some of TRL's own metrics, without void episodes; NaN if no others are left.

    Logged:

    - `completions/...`: lengths in sampled tokens, and the share of truncated episodes (`Episode.truncated`;
      TRL looks at the last id).
    - `frac_reward_zero_std`: as `alarm/groups_without_spread`, unless TRL measures the batch's spread.
    - `reward`, `rewards/.../mean`: in an evaluation, the means over its episodes, not over its batches.

    `episodes` are from all ranks, `alarms` are their `alarm_metrics`, and `weights` the reward weights.
    """
    played = [episode for episode in episodes if not is_void(episode)]
    lengths = [float(sum(turn["tokens"] for turn in episode["turns"])) for episode in played]
    ended = [length for length, e in zip(lengths, played, strict=True) if not e["truncated"]]
    refined = {"completions/clipped_ratio": [float(episode["truncated"]) for episode in played] or [math.nan]}
    for name, each in (("length", lengths or [math.nan]), ("terminated_length", ended or [0.0])):
        refined |= {
            f"completions/mean_{name}": each,
            f"completions/min_{name}": [min(each)],
            f"completions/max_{name}": [max(each)],
        }
    by_group = args.multi_objective_aggregation == "sum_then_normalize" and args.scale_rewards != "batch"
    if by_group and (groups := alarms.get("alarm/groups_without_spread")):
        refined["frac_reward_zero_std"] = [*groups]
    scored = [episode for episode in played if is_scored(episode)]
    if scored and episodes[0]["phase"] == "eval":
        refined["reward"] = [total_reward(episode, weights) for episode in scored]
        for name in scored[0]["rewards"]:
            given = [value for e in scored if (value := e["rewards"][name]) is not None]
            refined[f"rewards/{name}/mean"] = given or [math.nan]
    return refined


def drop_repeated_rows(
    episodes: Sequence[EpisodeRecord], state: GradientState, copies: int
) -> Sequence[EpisodeRecord]:
    """Return the rows of all ranks without those that accelerate repeats to fill the last batch. The data
    loader sets `state`; each prompt has `copies` rows."""
    if not state.end_of_dataloader:
        return episodes
    loader = state.active_dataloader
    own = max(0, loader.remainder) * copies % loader.total_batch_size
    return episodes[:own] if own else episodes
