"""What is kept of a run's episodes: how often the greedy agent was right, and every episode in full."""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from trl_dbbench.runs.read import EPISODES_FILE, TASKS_FILE, RunSettings
from trl_dbbench.scoring import wilson_interval

logger = logging.getLogger(__name__)


class Accuracy:
    """Counts of right episodes: overall, per operation and per skill.

    Episodes whose environment failed are not counted: they say nothing of the agent.
    """

    def __init__(self, counts: Mapping[str, Sequence[int]] | None = None):
        self.counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])  # group -> [right, played]
        for group, (right, played) in (counts or {}).items():
            self.counts[group] = [right, played]

    def add(self, episodes: Iterable[Mapping[str, Any]]) -> Accuracy:
        """Counts episodes in the form of `Episode.to_dict`."""
        for episode in episodes:
            if episode["status"] == "environment_fault":
                continue
            for group in (
                "overall",
                f"operation/{episode['operation']}",
                *(f"skill/{s}" for s in episode["skills"]),
            ):
                self.counts[group][0] += bool(episode["right"])
                self.counts[group][1] += 1
        return self

    def rate(self, group: str = "overall") -> float | None:
        right, played = self.counts.get(group, (0, 0))
        return right / played if played else None

    def describe(self, group: str = "overall") -> str:
        """For instance `31/48 = 64.6 % [50.4, 76.6]`, the 95 % Wilson interval in brackets."""
        right, played = self.counts.get(group, (0, 0))
        low, high = wilson_interval(right, played)
        rate = f"{100 * right / played:.1f} %" if played else "-"
        return f"{right}/{played} = {rate} [{100 * low:.1f}, {100 * high:.1f}]"

    def table(self) -> list[tuple[str, str]]:
        """(group, description) of every group: overall, then operations, then skills."""
        order = {"overall": 0, "operation": 1, "skill": 2}
        groups = sorted(self.counts, key=lambda group: (order[group.partition("/")[0]], group))
        return [(group, self.describe(group)) for group in groups]

    def metrics(self) -> dict[str, float]:
        """`accuracy` with `accuracy_low` and `accuracy_high`, and a rate for each operation and skill."""
        right, played = self.counts.get("overall", (0, 0))
        low, high = wilson_interval(right, played)
        rates = {
            group: self.counts[group][0] / self.counts[group][1]
            for group in self.counts
            if group != "overall"
        }
        return {
            "accuracy": right / played if played else 0.0,
            "accuracy_low": low,
            "accuracy_high": high,
            **rates,
        }


class GreedyEvalCallback(TrainerCallback, ExportableState):
    """Keeps the record of the greedy runs that precede each update.

    The trainer plays each prompt of a generation batch greedily, with the weights that are about to be
    updated, and hands the episodes to `record`. The record goes with every checkpoint, so a resumed run
    counts on from there: from the end of a step, also if the checkpoint was saved in the middle of the next.
    """

    def __init__(self):
        self.accuracy = Accuracy()
        self._at_step_end: dict[str, list[int]] = {}

    def record(self, step: int, episodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Counts a batch's greedy episodes, prints a line and returns metrics.

        The `greedy/batch_accuracy` is of this batch, all else of the run so far.
        """
        batch = Accuracy().add(episodes)
        self.accuracy.add(episodes)
        right, played = batch.counts["overall"]
        tqdm.write(f"step {step}: greedy {right} of {played} right; so far {self.accuracy.describe()}")
        metrics = {f"greedy/{name}": value for name, value in self.accuracy.metrics().items()}
        if (rate := batch.rate()) is not None:
            metrics["greedy/batch_accuracy"] = rate
        return metrics

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"counts": self._at_step_end}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ):
        saved = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        if saved is not None:
            self.accuracy = Accuracy(saved["attributes"].get("counts"))
            logger.info("the greedy record goes on at %s", self.accuracy.describe())
        self._settle()
        # a checkpoint of a run without greedy evaluation has no place for the record
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ):
        self._settle()

    def _settle(self) -> None:
        self._at_step_end = {group: list(counts) for group, counts in self.accuracy.counts.items()}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ):
        if state.is_world_process_zero and self.accuracy.counts:
            tqdm.write("Greedy accuracy over the run, each prompt played before its update:")
            width = max(map(len, self.accuracy.counts))
            for group, described in self.accuracy.table():
                tqdm.write(f"  {group:<{width}}  {described}")


class RolloutProgressCallback(ProgressCallback):
    """The progress bar with the two numbers that matter, in place of all metrics of every step as text.

    All metrics are in `trainer_state.json` and go to `report_to`.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        if not state.is_world_process_zero or self.training_bar is None or logs is None:
            return
        if (held_out := logs.get("eval_accuracy")) is not None:
            self.training_bar.write(
                f"step {state.global_step}: held-out greedy accuracy {100 * held_out:.1f} %"
            )
        shown = {"greedy": logs.get("greedy/accuracy"), "reward": logs.get("reward")}
        if shown["reward"] is not None:
            self.training_bar.set_postfix(
                {name: f"{value:.3f}" for name, value in shown.items() if value is not None}
            )


class EpisodeLogCallback(TrainerCallback):
    """Writes every episode, greedy and sampled, to `output_dir/episodes.jsonl`, one a line.

    The tasks they played go to `tasks.jsonl` beside it, each once, in the own format, and how they were played to
    `run.json`. A resumed run drops the lines that its checkpoint does not know, so that each episode stands there
    once. A run that starts afresh keeps an older file under another name.
    """

    def __init__(self, output_dir: str | os.PathLike, settings: RunSettings | None = None):
        self._settings = settings
        self.path = Path(output_dir) / EPISODES_FILE
        self._tasks_path = self.path.with_name(TASKS_FILE)
        self._tasks: set[str] | None = None  # lines of tasks.jsonl

    def write(self, episodes: Iterable[Mapping[str, Any]], tasks: Iterable[str] = ()) -> None:
        """Appends episodes in the form of `Episode.to_dict`; on the main process only.

        Args:
            tasks: their tasks, by `Task.to_json`; those known already are not written again.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._tasks is None:
            if self._settings is not None:
                self._settings.write(self.path.parent)
            self._tasks = _whole_lines(self._tasks_path)
        new = [task for task in dict.fromkeys(tasks) if task not in self._tasks]
        if new:
            self._tasks.update(new)
            with self._tasks_path.open("a", encoding="utf-8") as file:
                file.writelines(f"{task}\n" for task in new)
        lines = [json.dumps(episode, ensure_ascii=False) + "\n" for episode in episodes]
        with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(lines)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ):
        if not state.is_world_process_zero or not self.path.exists():
            return
        if step := state.global_step:
            logs = [entry for entry in state.log_history if entry["step"] == step]
            evaluated = any(key.startswith("eval_") for entry in logs for key in entry)
            _keep_lines_before(self.path, step, evaluated)
        else:
            number = 1
            while (older := self.path.with_suffix(f".{number}.jsonl")).exists():
                number += 1
            self.path.rename(older)
            logger.warning("%s is of an earlier run and was moved to %s", self.path, older.name)


def _whole_lines(path: Path) -> set[str]:
    """The lines of a file that is then appended to; one that a kill cut short is taken off."""
    if not path.exists():
        return set()
    whole, newline, _ = path.read_bytes().rpartition(b"\n")
    os.truncate(path, len(whole + newline))
    return set(whole.decode("utf-8").split("\n"))


def _keep_lines_before(path: Path, step: int, evaluated: bool) -> None:
    """Keeps what had been written when the checkpoint of `step` was saved.

    Sampled and greedy episodes of step s lead to step s + 1, so those of the checkpoint's own step came
    after it; an evaluation at that step came before it, if there was one. A line cut by a kill goes as well.
    """
    kept = path.with_suffix(".tmp")
    # errors="replace": a kill may have cut the last line within a character
    with path.open(encoding="utf-8", errors="replace") as lines, kept.open("w", encoding="utf-8") as out:
        for line in lines:
            try:
                episode = json.loads(line)
            except ValueError:
                continue
            if episode["step"] < step + (evaluated and episode["phase"] == "eval"):
                out.write(line.rstrip("\n") + "\n")
    kept.replace(path)
