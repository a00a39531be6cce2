"""Saved arms: files of `trl-dbbench eval --json`, and held-out evaluations of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.compare.arms import Arm, Sampling, gold_of
from trl_dbbench.evaluation.compare.figures import figures_of
from trl_dbbench.evaluation.report.curves import updates, whole_evaluations
from trl_dbbench.evaluation.report.run import read_run
from trl_dbbench.runs.read import loads, portable_digests_in
from trl_dbbench.runs.records import TASKS_FILE, checked_record
from trl_dbbench.utils.files import shortest_names


def arm_dict(arm: Arm) -> dict[str, Any]:
    """Return an arm's entries in an evaluation file, except its greedy episodes and their accuracy."""
    samples = {} if arm.sampling is None else {"samples": arm.samples}
    known = {"gold": arm.gold} | ({"portable_digests": arm.portable_digests} if arm.portable_digests else {})
    return arm.to_dict() | known | {"figures": figures_of(arm).to_dict()} | samples


def saved_arms(paths: Sequence[Path]) -> list[Arm]:
    """Return the arms of evaluation files and of runs (the last held-out evaluation; for a single run also
    the first). Raise ConfigError if there are fewer than two, or one cannot be read."""
    if len(paths) == 1:
        (path,) = paths
        if not path.is_dir():
            raise ConfigError(
                f"'{path}' alone has nothing to be compared with. Name two or more files of eval --json or "
                "runs, or one run, whose first and last evaluations are compared."
            )
        first, *others = _of_run(path, path.resolve().name)
        if not others:
            raise ConfigError(
                f"'{path}' has only one whole held-out evaluation ({first.name}). Name what it is to be "
                "compared with as well: another run, or a file of eval --json."
            )
        return [first, others[-1]]
    names = names_of(paths)
    return [
        _of_run(path, name)[-1] if path.is_dir() else _of_file(path, name)
        for path, name in zip(paths, names, strict=True)
    ]


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return a short, unique name for each path; raise ConfigError if one is named twice."""
    whole = [path.resolve() for path in paths]
    if len(set(whole)) < len(paths):
        raise ConfigError(f"an evaluation is named twice: {', '.join(map(str, paths))}. Name each once.")
    parts = [path.with_suffix("").parts if path.suffix == ".json" else path.parts for path in whole]
    return shortest_names(parts) or list(map(str, paths))


def _of_file(path: Path, name: str) -> Arm:
    try:
        saved = loads(path.read_bytes())
        episodes = [checked_record(episode) for episode in saved["episodes"]]
        sampling = saved.get("sampling")
        return Arm(
            name,
            episodes,
            [checked_record(episode) for episode in saved.get("samples", ())],
            None if sampling is None else Sampling(**sampling),
            saved.get("gold") or {},
            saved.get("model"),
            saved.get("adapter"),
            dict(saved.get("portable_digests") or {}),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise ConfigError(
            f"'{path}' cannot be read as a saved evaluation: {what}. Give a file of eval --json, or a run's "
            "output_dir."
        ) from None


def _of_run(path: Path, name: str) -> list[Arm]:
    """Return an arm for each whole held-out evaluation of a run."""
    run = read_run(path)
    gold, portable = gold_of(run.tasks), portable_digests_in(path / TASKS_FILE)
    arms = [
        Arm(f"{name}, {updates(step)}", episodes, gold=gold, model=run.model, portable_digests=portable)
        for step, episodes in whole_evaluations(run).items()
    ]
    if not arms:
        raise ConfigError(
            f"'{path}' has no held-out evaluation. Evaluate it with eval --json, and name that file."
        )
    return arms
