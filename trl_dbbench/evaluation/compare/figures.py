"""Figures of an arm: accuracies by group of tasks, and statistics of its episodes."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trl_dbbench.evaluation.compare.arms import GREEDY, Arm, by_task
from trl_dbbench.grading.statistics import Share
from trl_dbbench.runs.records import (
    EpisodeRecord,
    commonest,
    groups_of,
    is_void,
    key_of,
    place_of_group,
    void_reasons,
)

OVERALL = "overall"

MAX_REASONS = 8
"""Most reasons for unreadable turns that are listed separately."""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return mean and spread of a reward. `std` is the sample standard deviation (n - 1), 0 for one value;
    `at_lowest` is the share of values equal to `min`."""
    lowest = min(values)
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "min": lowest,
        "median": statistics.median(values),
        "max": max(values),
        "at_lowest": values.count(lowest) / len(values),
    }


def episode_figures(kind: str, episodes: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Return statistics of episodes (`kind`: `sampled` or `greedy`), without void ones.

    `faults` and `void_reasons` count the void ones. `statuses` are shares of episodes, `readable` and
    `unreadable` (by reason) are shares of turns. `distinct_statements` counts equal statements of a task
    once. `turns`, `tokens` (sampled) and `prompt_tokens` are means per episode; `generated_tokens` is a sum.
    """
    sound = [episode for episode in episodes if not is_void(episode)]
    turns = [turn for episode in sound for turn in episode["turns"]]
    reasons = Counter(turn.get("reason", "") for turn in turns if turn.get("action") == "invalid")
    statements = [
        (key_of(episode), " ".join(turn["sql"].split()))
        for episode in sound
        for turn in episode["turns"]
        if "sql" in turn
    ]
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for episode in sound:
        for name, value in episode["rewards"].items():
            if value is not None:
                rewards[name].append(value)
    tokens = sum(turn.get("tokens", 0) for turn in turns)
    prompts = [episode["prompt_tokens"] for episode in sound if "prompt_tokens" in episode]
    return {
        "kind": kind,
        "episodes": len(sound),
        "faults": len(episodes) - len(sound),
        "statuses": _shares(Counter(episode["status"] for episode in sound), len(sound)),
        "turns": len(turns) / len(sound) if sound else 0.0,
        "tokens": tokens / len(sound) if sound else 0.0,
        "prompt_tokens": statistics.fmean(prompts) if prompts else None,
        "generated_tokens": tokens,
        "readable": 1 - reasons.total() / len(turns) if turns else None,
        "unreadable": _shares(reasons, len(turns)),
        "statements": len(statements),
        "distinct_statements": len(set(statements)),
        "rewards": {name: spread(values) for name, values in rewards.items()},
        "void_reasons": dict(void_reasons(episodes).most_common()),
    }


@dataclass(frozen=True)
class Figures:
    """Figures of an arm.

    Args:
        shares: accuracies with Wilson intervals, as group -> measure (`Arm.values`) -> share. Groups are
            `overall`, `operation/...` and `skill/...`. For values between 0 and 1, such as pass@k, the
            interval is conservative: they vary at most as much as right and wrong do.
        episodes: `episode_figures` of the samples, or of the greedy episodes if there are none.
    """

    shares: dict[str, dict[str, Share]]
    episodes: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        shares = {
            group: {measure: share_dict(share) for measure, share in measured.items()}
            for group, measured in self.shares.items()
        }
        return {"shares": shares, "episodes": self.episodes}

    def rows(self) -> list[tuple[str, str]]:
        """Return (name, text) of all figures except those by operation and skill."""
        of = self.episodes
        rows = [(measure, str(share)) for measure, share in self.shares.get(OVERALL, {}).items()]
        rows += [(f"status {status}", percent(share)) for status, share in of["statuses"].items()]
        for name, reward in of["rewards"].items():
            told = ", ".join(f"{key} {reward[key]:.3g}" for key in ("mean", "std", "min", "median"))
            rows += [(f"reward {name}", told), (f"at the lowest {name}", percent(reward["at_lowest"]))]
        if of["readable"] is not None:
            rows.append(("readable turns", percent(of["readable"])))
        reasons = list(of["unreadable"].items())
        rows += [(f"unreadable: {reason[:60]}", percent(share)) for reason, share in reasons[:MAX_REASONS]]
        if others := reasons[MAX_REASONS:]:
            rows.append((f"unreadable: {len(others)} other reasons", percent(sum(s for _, s in others))))
        rows.append(("turns an episode", f"{of['turns']:.2f}"))
        rows.append(("tokens an episode", f"{of['tokens']:.1f}"))
        if of["prompt_tokens"] is not None:
            rows.append(("tokens of a prompt", f"{of['prompt_tokens']:.1f}"))
        rows.append(("SQL statements", f"{of['statements']:,}, {of['distinct_statements']:,} distinct"))
        faults = f", {of['faults']} more whose environment failed" if of["faults"] else ""
        if reason := commonest(Counter(of["void_reasons"])):
            rows.append(("void, most often", reason))
        rows.append((f"{of['kind']} episodes", f"{of['episodes']:,}{faults}"))
        return rows


def figures_of(arm: Arm) -> Figures:
    """Return the figures of an arm."""
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for key, (first, *_) in by_task([*arm.samples, *arm.greedy]).items():
        for group in (OVERALL, *groups_of(first["operation"], first["skills"])):
            keys[group].append(key)
    judged, of_all = arm.values(), arm.values(void_wrong=True)
    void_greedy, void_samples = (
        Counter(map(key_of, filter(is_void, of))) for of in (arm.greedy, arm.samples)
    )
    shares: dict[str, dict[str, Share]] = {}
    for group in sorted(keys, key=place_of_group):
        shares[group] = {}
        for measure, values in of_all.items():
            void = void_greedy if measure == GREEDY else void_samples
            found = [judged[measure][key] for key in keys[group] if key in judged.get(measure, {})]
            if counted := [values[key] for key in keys[group] if key in values]:
                failed = sum(void[key] for key in keys[group])
                shares[group][measure] = Share(sum(found), len(found), failed, (sum(counted), len(counted)))
    kind, episodes = ("sampled", arm.samples) if arm.samples else ("greedy", arm.greedy)
    return Figures(shares, episode_figures(kind, episodes))


def best_measures(shares: Mapping[str, Share]) -> list[str]:
    """Return the measures for a table by group: of pass@k, only the smallest and largest k."""
    passes = [measure for measure in shares if measure.startswith("pass@")]
    return [measure for measure in shares if measure not in passes[1:-1]]


def share_dict(share: Share) -> dict[str, float]:
    low, high = share.interval
    return {
        "rate": share.rate,
        "low": low,
        "high": high,
        "tasks": share.judged,
        "void": share.void,
        "void_wrong": share.void_wrong,
    }


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _shares(counts: Counter[str], total: int) -> dict[str, float]:
    """Return the share of each name, most frequent first."""
    return {name: count / total for name, count in counts.most_common()}
