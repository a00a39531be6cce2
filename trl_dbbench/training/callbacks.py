"""Callbacks that record greedy accuracy, episodes and metrics, and show progress on the console."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, TrainerState

from trl_dbbench.episode.types import Status
from trl_dbbench.runs.checkpoints import run_id_in
from trl_dbbench.runs.records import (
    EPISODES_FILE,
    METRICS_FILE,
    TASKS_FILE,
    Accuracy,
    EpisodeRecord,
    commonest,
    void_reasons,
)
from trl_dbbench.runs.settings import SETTINGS_FILE, RunSettings
from trl_dbbench.runs.trained import TAKEN
from trl_dbbench.utils.files import whole_lines, write_atomically

logger = logging.getLogger(__name__)


class GreedyEvalCallback(TrainerCallback):
    """Record of greedy episodes, played with the current weights before each update.

    The trainer plays each prompt once, together with the samples or before them, and passes the episodes to
    `record`. Checkpoints keep the record.
    """

    decides_weights = False

    def __init__(self):
        self.accuracy = Accuracy()

    def record(self, step: int, episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
        """Count all ranks' greedy episodes of a batch, print a line and return metrics.

        Logged:

        - `greedy/accuracy`: accuracy of the greedy episodes so far, each played before its prompt's update.
        - `greedy/accuracy_low`, `greedy/accuracy_high`: the 95 % Wilson interval of `greedy/accuracy`.
        - `greedy/accuracy_void_wrong`: `greedy/accuracy` with void episodes counted as wrong.
        - `greedy/void`: share of void episodes among the greedy episodes so far.
        - `greedy/operation/...`, `greedy/skill/...`: accuracy on the tasks with this operation or skill.
        - `greedy/void_wrong/...`: accuracy by operation and by skill with void episodes counted as wrong, if
          there are any.
        - `greedy/batch_accuracy`: accuracy of this batch alone.
        - `greedy/batch_accuracy_void_wrong`: `greedy/batch_accuracy` with void episodes counted as wrong.
        """
        batch = Accuracy().add(episodes)
        self.accuracy.add(episodes)
        of_batch = batch.share()
        older = {episode.get("policy_step", step) for episode in episodes} - {step}
        whose = "".join(f", weights of step {each}" for each in sorted(older))
        said = f"greedy {of_batch.right} of {of_batch.judged} right"
        if of_batch.void:
            said += f", {of_batch.void} void, most often {commonest(void_reasons(episodes))}"
        tqdm.write(f"step {step}{whose}: {said}; so far {self.accuracy.describe()}")
        metrics = {f"greedy/{name}": value for name, value in self.accuracy.metrics().items()}
        if (rate := batch.rate()) is not None:
            metrics["greedy/batch_accuracy"] = rate
        metrics["greedy/batch_accuracy_void_wrong"] = of_batch.void_wrong
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.accuracy.counts), "void": dict(self.accuracy.void)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.accuracy = Accuracy(state["counts"], state["void"])

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and (table := self.accuracy.table()):
            tqdm.write("Greedy accuracy over the run, each prompt played before its update:")
            width = max(len(group) for group, _ in table)
            for group, described in table:
                tqdm.write(f"  {group:<{width}}  {described}")


HELD_OUT = b'{"phase": "eval"'
"""Prefix of a held-out episode's line; other lines are skipped unparsed."""


def before_and_after(folder: Path, kept: int | None = None) -> dict[int, Accuracy]:
    """Return the accuracy of the first and last held-out evaluation, keyed by the updates before each.

    Only evaluations on the same tasks as the last one count. `kept` is the update whose weights the run
    keeps; if that was evaluated, it replaces the last evaluation.
    """
    played: defaultdict[int, Accuracy] = defaultdict(Accuracy)
    tasks: defaultdict[int, set[str]] = defaultdict(set)
    path = folder / EPISODES_FILE
    if path.exists():
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(HELD_OUT) and line.endswith(b"\n"):
                    episode = json.loads(line)
                    played[episode["step"]].add([episode])
                    tasks[episode["step"]].add(episode.get("task_digest", ""))
    if not played:
        return {}
    last = kept if kept is not None and kept in played else max(played)
    first = min(step for step, of in tasks.items() if of == tasks[last])
    return {step: played[step] for step in sorted({first, last})}


class HeldOutCallback(TrainerCallback):
    """Callback that prints, when training ends, the held-out accuracy before and after it.

    `kept` returns the update whose weights the run keeps, or `None` if it keeps the last ones.
    """

    def __init__(self, kept: Callable[[], int | None] = lambda: None):
        self._kept = kept

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        kept = self._kept()
        found = before_and_after(Path(args.output_dir), kept)
        rates = {step: rate for step, of in found.items() if (rate := of.rate()) is not None}
        if len(rates) > 1:
            (first, before), (last, after) = rates.items()
            begin = "before the training" if first == 0 else f"at step {first}"
            best = ", whose weights were the best and are kept" if last == kept else ""
            tqdm.write(
                f"Held-out greedy accuracy: {100 * before:.1f} % {begin} -> {100 * after:.1f} % "
                f"after step {last}{best}."
            )


class RolloutProgressCallback(ProgressCallback):
    """Progress bar that shows only greedy accuracy, reward and the share of void episodes."""

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or self.training_bar is None or logs is None:
            return
        if (held_out := _held_out(state, logs)) is not None:
            self.training_bar.write(held_out)
        shown = {"greedy": logs.get("greedy/accuracy"), "reward": logs.get("reward"), "void": _void(logs)}
        if shown["reward"] is not None:
            self.training_bar.set_postfix(
                {name: f"{value:.3f}" for name, value in shown.items() if value is not None}
            )


def _held_out(state: TrainerState, logs: Mapping[str, Any]) -> str | None:
    """Return the console line for the log of a held-out evaluation; `None` for other logs."""
    accuracy, void = logs.get("eval_accuracy"), _void(logs, "eval_")
    if accuracy is None and void is None:
        return None
    said = "none judged" if accuracy is None else f"{100 * accuracy:.1f} %"
    if void is not None:
        void_wrong = logs.get("eval_accuracy_void_wrong", 0.0)
        said += f" ({100 * void:.1f} % void, {100 * void_wrong:.1f} % with those counted wrong)"
    return f"step {state.global_step}: held-out greedy accuracy {said}"


def _void(logs: Mapping[str, Any], prefix: str = "") -> float | None:
    """Return the share of void episodes; `None` if there are none."""
    return logs.get(f"{prefix}status/{Status.ENVIRONMENT_FAULT}") or None


class PlainProgressCallback(PrinterCallback):
    """Callback that prints one line per logged step, where progress bars are off."""

    _begin = (0, 0.0)  # first step of this process, and its time by time.monotonic()

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._begin = (state.global_step, time.monotonic())

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or logs is None:
            return
        if (held_out := _held_out(state, logs)) is not None:
            print(held_out, flush=True)
        if (reward := logs.get("reward")) is None:
            return
        step, begin = self._begin
        each = (time.monotonic() - begin) / max(state.global_step - step, 1)
        left = timedelta(seconds=round(each * (state.max_steps - state.global_step)))
        void = "" if (share := _void(logs)) is None else f", {100 * share:.1f} % of the episodes void"
        where = f"step {state.global_step} of {state.max_steps}"
        print(f"{where}: reward {reward:.3f}{void}, {left} left", flush=True)


class MetricsLogCallback(TrainerCallback):
    """Callback that writes each step's metrics to `output_dir/metrics.jsonl`, one JSON object per line.

    `step` comes first, then the metrics sent to `report_to`. NaN and infinite values become null. A resumed
    run drops the lines after its checkpoint, so that no step is logged twice.
    """

    def __init__(self, output_dir: str | os.PathLike):
        self.path = Path(output_dir) / METRICS_FILE

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        if not state.global_step:
            self.path.unlink(missing_ok=True)  # of a first step that is repeated
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(self.path) as file:
            file.writelines(_metrics_line(entry["step"], entry) for entry in state.log_history)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_metrics_line(state.global_step, logs))


def _metrics_line(step: int, logs: Mapping[str, Any]) -> str:
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in logs.items()
    }
    return json.dumps({"step": step, **values}) + "\n"


class EpisodeLogCallback(TrainerCallback):
    """Callback that writes every episode, greedy or sampled, to `output_dir/episodes.jsonl`, one per line.

    Their tasks go to `tasks.jsonl`, each once, and the settings to `run.json`. A resumed run drops the lines
    after its checkpoint, so that no episode is written twice.

    Args:
        run_id: returns the run's id, or `None` before the run begins.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike,
        settings: RunSettings | None = None,
        run_id: Callable[[], str | None] = lambda: None,
    ):
        self._settings = settings
        self._run_id = run_id
        self.path = Path(output_dir) / EPISODES_FILE
        self._tasks_path = self.path.with_name(TASKS_FILE)
        self._tasks: set[bytes] | None = None  # digests of the lines of tasks.jsonl

    def write(self, episodes: Iterable[EpisodeRecord], tasks: Iterable[str] = ()) -> None:
        """Append episodes, and those of their tasks (`Task.to_json`) that are not in the file yet. Call it on
        the main process only."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._tasks is None:
            self._write_settings()
            self._tasks = {_digest(line) for line in whole_lines(self._tasks_path, cut=True)}
        by_digest = {_digest(task.encode()): task for task in tasks}
        if new := {digest: task for digest, task in by_digest.items() if digest not in self._tasks}:
            self._tasks |= new.keys()
            with self._tasks_path.open("a", encoding="utf-8") as file:
                file.writelines(f"{task}\n" for task in new.values())
        lines = [json.dumps(episode, ensure_ascii=False) + "\n" for episode in episodes]
        with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(lines)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        step = state.global_step
        if step:
            self._warn_of_other_settings()
        self._write_settings()
        self._tasks = None  # the file read before may be another run's, now set aside
        if not step:
            self.path.unlink(missing_ok=True)  # of a first step that is repeated
        elif self.path.exists():
            logs = [entry for entry in state.log_history if entry["step"] == step]
            evaluated = any(key.startswith("eval_") for entry in logs for key in entry)
            _keep_lines_before(self.path, step, evaluated)

    def _warn_of_other_settings(self) -> None:
        """Warn of settings that differ from those of the episodes before the checkpoint."""
        path = self.path.with_name(SETTINGS_FILE)
        if self._settings is None or not path.exists():
            return
        both = (RunSettings.of_file(path), self._settings)
        before, now = (json.loads(json.dumps(asdict(each))) for each in both)
        names = (*TAKEN, "rewards", "advantage", "sampling", "task_files")
        if changed := [name for name in names if before[name] != now[name]]:
            logger.warning(
                "the run goes on with other settings: %s. %s has the new ones; figures from before and after "
                "this step do not compare.",
                ", ".join(changed),
                path,
            )

    def _write_settings(self) -> None:
        if self._settings is not None:
            folder = self.path.parent
            folder.mkdir(parents=True, exist_ok=True)
            # an evaluation before training has no id yet, and keeps the folder's
            replace(self._settings, id=self._run_id() or run_id_in(folder)).write(folder)


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()


def _keep_lines_before(path: Path, step: int, evaluated: bool) -> None:
    """Keep the lines written before the checkpoint of `step` was saved.

    Sampled and greedy episodes of step s lead to step s + 1, so those of the checkpoint's own step came after
    it. Held-out episodes of that step came before it if the evaluation was complete (`evaluated`). A line
    truncated by a kill is dropped too.
    """
    # errors="replace": a kill may have cut the last line within a character
    with path.open(encoding="utf-8", errors="replace") as lines, write_atomically(path) as out:
        for line in lines:
            try:
                episode = json.loads(line)
            except ValueError:
                continue
            if episode["step"] < step + (evaluated and episode["phase"] == "eval"):
                out.write(line.rstrip("\n") + "\n")
