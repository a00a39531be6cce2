"""Training on stages of tasks, one after another, as a recipe's `stream` defines them.

A stage's tasks come in random order, each once before any is repeated. A stage ends by steps, tasks or
accuracy, always between two generations. Then the held-out tasks of all stages are played, which fills the
accuracy matrix of `grading.continual`; `runs.stream` writes it to a file. The greedy evaluation plays each
task before training on it, so its accuracy is prequential (Dawid, 1984; Gama et al., 2013, On evaluating
stream learning algorithms).

Replay takes a share of the prompts from a buffer of tasks of earlier stages, in which each of those tasks is
equally likely to be kept (reservoir sampling; Vitter, 1985, Algorithm R).

All ranks draw and count alike. Checkpoints keep the stage, the position in it, the buffer and the matrix.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import SaveStrategy

from trl_dbbench.episode.dataset import is_fresh, task_in
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.records import EpisodeRecord, is_void
from trl_dbbench.runs.stream import STAGES_FOLDER, StageRecord, StreamRecord, matrix_text, measures_text
from trl_dbbench.tasks.stages import Stages, kind_of, plan_stages, shared_with_training

logger = logging.getLogger(__name__)

WINDOW = 32
"""Number of greedy episodes over which `stage_accuracy` is measured."""

LEAST_WEIGHT = 0.05
"""Weight, in replay by accuracy, of a task that was always solved; a task never solved weighs 1 more."""

ROUNDING = 1e-9
"""Tolerance for shares that add up to a whole number."""

FIXED = ("stream_order", "stage_adapters", "replay", "replay_size", "replay_by", "kl_reference", "seed")
"""Settings that a resumed run must not change, because the state in its checkpoint depends on them."""

REPLAYS = ("uniform", "accuracy")
REPLAY_SIZE = 200


def check_stream(args: Any) -> None:
    """Raise ConfigError for settings of a stream that cannot work."""
    if args.stream is None:
        return
    by, names = kind_of(args.stream)
    if isinstance(args.stream, list) and not names:
        args.stream = by  # the command line makes a list of a single word, YAML does not
    if args.stage_steps is None and args.stage_tasks is None:
        raise ConfigError(
            "stream needs the length of a stage: stage_steps (updates), stage_tasks (tasks played), or both, "
            "for whichever comes first."
        )
    if by == "file" and args.stage_tasks is None:
        raise ConfigError("stream: file is cut into stages of as many tasks; say with stage_tasks how many.")
    if (by == "file" or names) and args.stream_order not in ("fixed", "mixed"):
        whose = "the file's" if by == "file" else "the list's"
        raise ConfigError(
            f"stream: {args.stream} comes in {whose} order; leave stream_order: {args.stream_order} out."
        )
    if by == "file" and args.stream_order == "mixed":
        raise ConfigError("stream: file has no stages to mix; for shuffled tasks leave stream out.")
    if args.max_steps > 0:
        raise ConfigError(
            f"a stream ends with its last stage; leave max_steps ({args.max_steps}) out, or set it to -1, "
            "and set stage_steps."
        )
    if _micro_steps(args) % args.gradient_accumulation_steps:
        raise ConfigError(
            f"a stage ends between two generations, and steps_per_generation ({args.steps_per_generation}) "
            f"x num_iterations ({args.num_iterations}) micro-steps are not whole updates of "
            f"gradient_accumulation_steps ({args.gradient_accumulation_steps}); make them a multiple."
        )


class Stream:
    """Order of a stream's tasks, and the record of its stages.

    Args:
        dataset: training rows with the column `task`.
        held_out: rows for the accuracy matrix; rows that share a table or a question with a training task do
            not count.
        args: a `DBBenchGRPOConfig`.

    Raises:
        ConfigError: if the tasks do not make at least two stages.
    """

    name = "stream"

    def __init__(self, dataset: Dataset, held_out: Dataset | None, args: Any):
        if is_fresh(dataset):
            raise ConfigError(
                "generate:// has no end, and a stream needs stages; write a file with generate."
            )
        self._dataset, self._args = dataset, args
        tasks = [task_in(line) for line in dataset["task"]]
        self._digests = [task.digest for task in tasks]  # by row
        self.stages: Stages = plan_stages(
            tasks, args.stream, args.stream_order, args.stage_tasks or 0, args.seed
        )
        self._check_accuracy()
        self.record_of = StreamRecord(
            self.stages.by,
            args.stream_order,
            [StageRecord(stage.name, len(stage.rows)) for stage in self.stages.stages],
            list(self.stages.groups),
        )
        self.record_of.stages[0].first_step = 0
        self._groups: dict[str, int] = {}  # of held-out tasks, by digest
        if held_out is not None:
            self._group([task_in(line) for line in held_out["task"]], tasks)
        self.stage = 0
        self._generations = self._played = self._place = 0
        self._offered: list[int] = []  # rows that were candidates for the replay buffer
        self._owed = 0.0  # fraction of a replayed prompt that is due
        self._window: list[bool] = []
        self._kept: list[list[int]] = []  # the replay buffer: [row, stage]
        self._accuracy: dict[int, float] = {}  # by row, when it was last played
        self._drawn: dict[str, tuple[int, bool]] = {}  # of a batch, by digest: row, and whether replayed
        self._counts: list[list[int]] | None = None  # [right, judged] by group, of the evaluation under way
        self._due = True  # for the matrix row before training
        if args.process_index == 0:
            logger.info("Stream of %d stages: %s.", len(self.stages.stages), self.record_of.told)
            if left_out := self.stages.left_out:
                logger.warning("%d training tasks belong to no stage and are never trained on.", left_out)

    def _check_accuracy(self) -> None:
        """Raise ConfigError if no stage is long enough to measure `stage_accuracy`."""
        args = self._args
        if args.stage_accuracy is None:
            return
        longest = max(map(self._most_generations, range(len(self.stages.stages))))
        prompts = math.ceil(longest / args.greedy_eval_every) * prompts_of(args)
        greedy = math.floor(prompts * (1 - args.replay))
        if greedy < WINDOW:
            raise ConfigError(
                f"stage_accuracy is measured over {WINDOW} greedy episodes, and a stage has {greedy}: make "
                "it longer (stage_steps, stage_tasks), its batch larger, or leave stage_accuracy out."
            )

    def _group(self, held_out: Sequence[Any], training: Sequence[Any]) -> None:
        """Find the group of each held-out task."""
        shared = {task.digest for task in shared_with_training(training, held_out)}
        # with stages by database, or a user's own database, held-out tasks always use the training's tables
        if self.stages.by == "databases" or len(shared) == len(held_out):
            shared = {task.digest for task in shared_with_training(training, held_out, tables=False)}
            if self._args.process_index == 0:
                logger.warning("The held-out tasks are over the training's tables; only questions are new.")
        for task in held_out:
            group = self.stages.group_of(task)
            if group is not None and task.digest not in shared:
                self._groups[task.digest] = group
        if not self._groups:
            raise ConfigError(
                f"stream: none of {len(held_out)} held-out tasks can be measured: {len(shared)} ask a "
                "question of a training task, or one over its tables, and the others belong to no stage. "
                "Give eval_tasks of their own (trl-dbbench split, or generate --split test)."
            )
        if shared and self._args.process_index == 0:
            logger.warning(
                "%d of %d held-out tasks share a table or a question with a training task: they are played "
                "and do not count in the stream's matrix.",
                *(len(shared), len(held_out)),
            )
        measured = set(self._groups.values())
        empty = [name for number, name in enumerate(self.stages.groups) if number not in measured]
        if empty and self._args.process_index == 0:
            logger.warning("No held-out task measures %s.", ", ".join(empty))

    # --- length -----------------------------------------------------------------------------------

    @property
    def max_steps(self) -> int:
        """Return the maximum number of updates of the stream."""
        return sum(map(self._most_generations, range(len(self.stages.stages)))) * _updates(self._args)

    def _most_generations(self, stage: int) -> int:
        args = self._args
        bounds = []
        if args.stage_steps is not None:
            bounds.append(math.ceil(args.stage_steps / _updates(args)))
        if args.stage_tasks is not None:
            own = prompts_of(args) * (
                1 - args.replay if stage else 1
            )  # the first stage has nothing to replay
            bounds.append(math.ceil(self._tasks_of(stage) / own - ROUNDING))
        length = min(bounds)
        # the one mixed stage lasts as long as all stages together
        return length * len(self.stages.groups) if args.stream_order == "mixed" else length

    def _tasks_of(self, stage: int) -> int:
        """Return the number of tasks that a stage plays, without those that fill up its last generation."""
        most = self._args.stage_tasks
        return min(most, len(self.stages.stages[stage].rows)) if self.stages.by == "file" else most

    @property
    def ended(self) -> bool:
        """True if the current stage has ended."""
        args = self._args
        if self.finished or not self._generations:
            return False
        mixed = args.stream_order == "mixed"
        if args.stage_tasks is not None and not mixed and self._played >= self._tasks_of(self.stage):
            return True
        full = args.stage_accuracy is not None and len(self._window) == WINDOW
        if full and sum(self._window) >= args.stage_accuracy * WINDOW:
            return True
        return self._generations >= self._most_generations(self.stage)

    @property
    def finished(self) -> bool:
        return self.stage == len(self.stages.stages)

    def end_stage(self, step: int) -> None:
        """Start the next stage after update `step`, and mark the held-out evaluation as due."""
        stages = self.record_of.stages
        stages[self.stage].last_step = step
        self.stage += 1
        if not self.finished:
            stages[self.stage].first_step = step
        self._generations = self._played = self._place = 0
        self._owed, self._window = 0.0, []
        self._due = True

    # --- which tasks ------------------------------------------------------------------------------

    def epoch(self, number: int) -> Sequence[int]:
        """Return placeholders, which are replaced when their batch begins."""
        return range(len(self._dataset))

    def further(self, random: np.random.Generator) -> Iterator[int]:
        """Yield a row for each prompt of a generation; a row is repeated only if no other is left."""
        earlier = [row for row, stage in self._kept if stage < self.stage]
        for _ in range(prompts_of(self._args)):
            self._owed += self._args.replay if earlier else 0.0
            replayed = self._owed >= 1 - ROUNDING
            if replayed:
                self._owed -= 1
                fresh = [row for row in earlier if self._digests[row] not in self._drawn] or earlier
                row = fresh[int(random.choice(len(fresh), p=self._weights(fresh)))]
            else:
                row = self._next()
            self._drawn.setdefault(self._digests[row], (row, replayed))
            yield row

    def _weights(self, rows: Sequence[int]) -> np.ndarray | None:
        if self._args.replay_by == "uniform":
            return None
        weights = np.array([1 - self._accuracy.get(row, 0.0) + LEAST_WEIGHT for row in rows])
        return weights / weights.sum()

    def _next(self) -> int:
        rows = self.stages.stages[self.stage].rows
        for _ in rows:
            around, place = divmod(self._place, len(rows))
            self._place += 1
            row = rows[place] if self.stages.by == "file" else self._shuffled(self.stage, around)[place]
            if self._digests[row] not in self._drawn:
                break
        return row

    def _shuffled(self, stage: int, around: int) -> list[int]:
        """Return a stage's rows in random order, for round `around` through them."""
        seed = np.random.SeedSequence((self._args.seed, stage, around))
        return np.random.default_rng(seed).permutation(self.stages.stages[stage].rows).tolist()

    # --- results of episodes ----------------------------------------------------------------------

    def record(self, episodes: Sequence[EpisodeRecord]) -> dict[str, list[float]]:
        """Count all ranks' samples of a generation; return values whose means are logged.

        Logged:

        - `stream/stage`: number of the stage, from 1.
        - `stream/replayed`: share of the prompts that come from earlier stages.
        """
        self._generations += 1
        replays = []
        groups: dict[str, list[bool]] = {}
        for episode in episodes:
            judged = groups.setdefault(episode["task_digest"], [])
            judged += [] if is_void(episode) else [bool(episode["right"])]
        for digest, right in groups.items():
            if (drawn := self._drawn.get(digest)) is None:
                continue
            row, replayed = drawn
            replays.append(float(replayed))
            if right:
                self._accuracy[row] = sum(right) / len(right)
            if not replayed:
                self._played += 1
                self._keep(row)
        self._drawn.clear()
        return {"stream/stage": [self.stage + 1.0], "stream/replayed": replays or [0.0]}

    def _keep(self, row: int) -> None:
        """Offer a row to the replay buffer, which keeps each offered row with equal probability."""
        if not self._args.replay or row in self._offered:
            return
        self._offered.append(row)
        if len(self._kept) < self._args.replay_size:
            self._kept.append([row, self.stage])
            return
        seen = len(self._offered)
        place = int(np.random.default_rng((self._args.seed, seen)).integers(seen))
        if place < self._args.replay_size:
            self._kept[place] = [row, self.stage]

    def record_greedy(self, episodes: Iterable[EpisodeRecord]) -> dict[str, list[float]]:
        """Count all ranks' greedy episodes of the current batch.

        Logged:

        - `stream/accuracy`: greedy accuracy over the last 32 tasks of the stage, each played before its
          update.
        """
        for episode in episodes:
            _, replayed = self._drawn.get(episode["task_digest"], (0, True))
            if not replayed and not is_void(episode):
                self._window = [*self._window, bool(episode["right"])][-WINDOW:]
        return {"stream/accuracy": [sum(self._window) / len(self._window)]} if self._window else {}

    # --- the matrix -------------------------------------------------------------------------------

    def stage_of(self, task: Any) -> int | None:
        """Return the number of a held-out task's stage; `None` if it belongs to none."""
        return None if self.stages.by == "file" else self.stages.group_of(task)

    def write(self, folder: str) -> None:
        """Write `stream.json`, on the main process."""
        if self._args.process_index == 0:
            self.record_of.write(Path(folder))

    def count_held_out(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Count all ranks' held-out episodes of the evaluation under way."""
        if self._counts is None:
            self._counts = [[0, 0] for _ in self.stages.groups]
        for episode in episodes:
            group = self._groups.get(episode["task_digest"])
            if group is not None and not is_void(episode):
                self._counts[group][0] += episode["right"]
                self._counts[group][1] += 1

    def measured(self) -> dict[str, float]:
        """Close an evaluation; return the stream's metrics if it was due before or after a stage.

        Logged:

        - `stream/average_accuracy`, `stream/forgetting`, `stream/backward_transfer`,
          `stream/forward_transfer`: docs/lifelong.md defines them.
        - `stream/held_out/GROUP`: accuracy on the held-out tasks of a stage.
        """
        counts, self._counts = self._counts, None
        if counts is None or not self._due:
            return {}
        self._due = False
        self.record_of.matrix.append(counts)
        measures = asdict(self.record_of.measures)
        values = {f"stream/{name}": value for name, value in measures.items()}
        accuracies = zip(self.stages.groups, self.record_of.accuracies[-1], strict=True)
        values |= {f"stream/held_out/{group}": value for group, value in accuracies}
        return {name: value for name, value in values.items() if value is not None}

    # --- checkpoints ------------------------------------------------------------------------------

    STATE = (
        *("stage", "_generations", "_played", "_place", "_offered", "_owed", "_window", "_kept"),
        *("_accuracy", "_due"),
    )

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.STATE}
        return state | {"record": asdict(self.record_of), "fixed": self._fixed}

    @property
    def _fixed(self) -> dict[str, Any]:
        """Return what must not change between a checkpoint and its resumption, by its name in errors."""
        settings = {name: getattr(self._args, name) for name in FIXED}
        files = {"tasks": self._digests, "eval_tasks": sorted(self._groups)}
        return settings | {
            f"the contents of {name}": hashlib.blake2b(" ".join(digests).encode(), digest_size=8).hexdigest()
            for name, digests in files.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        record = StreamRecord.from_dict(state["record"])
        before = {"stages": record.told, **state.get("fixed", {})}  # earlier versions saved only the stages
        for name, value in {"stages": self.record_of.told, **self._fixed}.items():
            if before.get(name, value) != value:
                raise ConfigError(
                    f"resume_from_checkpoint: the checkpoint's stream had another value of {name} "
                    f"({before[name]}, now {value}). Give the same to go on, or start a run of its own from "
                    "these weights (adapter_name_or_path or model_name_or_path)."
                )
        for name in self.STATE:
            setattr(self, name, state[name])
        self.record_of = record
        self._drawn.clear()


class StreamCallback(TrainerCallback):
    """Callback that ends stages, requests their held-out evaluation and writes `stream.json`."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self._trainer.stream.finished:  # resumed after its end
            state.max_steps = state.global_step
        self._trainer.stream.write(args.output_dir)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        stream = self._trainer.stream
        if self._trainer.stage_adapters is not None:
            self._trainer.stage_adapters.note_update()
        if self._trainer._within_generation() or not stream.ended:
            return
        number, name = stream.stage + 1, stream.record_of.stages[stream.stage].name
        stream.end_stage(state.global_step)
        if self._trainer.stage_reference is not None:
            self._trainer.stage_reference.renew()
        if self._trainer.stage_adapters is not None:
            self._trainer.stage_adapters.end_stage(stream.finished)
        control.should_evaluate = self._trainer.eval_dataset is not None
        if stream.finished:
            control.should_training_stop = True
            control.should_save = args.save_strategy != SaveStrategy.NO
        if state.is_world_process_zero:
            tqdm.write(
                f"step {state.global_step}: end of stage {number} of {len(stream.stages.stages)}, {name}."
            )
        stream.write(args.output_dir)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        stream = self._trainer.stream
        if state.is_world_process_zero and stream.finished and self._trainer.stage_adapters is not None:
            names = [stage.name for stage in stream.record_of.stages]
            self._trainer.stage_adapters.save(Path(args.output_dir) / STAGES_FOLDER, names)
        if state.is_world_process_zero and stream.record_of.matrix:
            tqdm.write("Held-out greedy accuracy in percent, by stage learned and stage tested:")
            tqdm.write(matrix_text(stream.record_of))
            tqdm.write(measures_text(stream.record_of.measures))


def prompts_of(args: Any) -> int:
    """Return the number of prompts of a generation, over all ranks."""
    return args.generation_batch_size // args.num_generations


def _micro_steps(args: Any) -> int:
    return args.steps_per_generation * args.num_iterations


def _updates(args: Any) -> int:
    """Return the number of updates of a generation."""
    return _micro_steps(args) // args.gradient_accumulation_steps
