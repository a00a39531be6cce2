"""GRPO on a database: TRL's trainer, with its generation replaced by multi-turn episodes.

What changes and what stays:

```
TRL                                        here
_get_train_sampler(...)                ->  super, over tasks in an order of `training/samplers.py`
_generate_and_score_completions(rows)  ->  chooses rows (`training/dynamic_sampling.py`; some were played already,
                                           `training/async_rollouts.py`), super, logs the episodes
  _generate(prompts)                   ->  super, whose rollout_func is ours: greedy runs, then samples
  _calculate_rewards(...)              ->  super, whose parts are kept with each episode (`training/assign_advantages.py`)
  advantages                               TRL's, or those that `advantage` names (`advantages/registry.py`)
  KL                                       TRL's, or that of `kl_reference`, `kl_in_reward` (`training/kl.py`)
  loss, optimizer                          TRL's own, the loss over rows that were played (`training/loss.py`), and
                                           compared with who played them (`training/importance_sampling.py`)
```

Checkpoints from which a run goes on exactly, and SIGTERM, are a base class's (`training/resume.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
from accelerate.utils import gather_object
from datasets import Dataset
from peft import PeftConfig
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context

from trl_dbbench.database import Database
from trl_dbbench.engines.base import open_backend
from trl_dbbench.engines.policy import TrainedPolicy
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.episode.types import Engine, Episode, Rules, Sampling, Start
from trl_dbbench.rewards.models import prepare_reward_models
from trl_dbbench.rewards.registry import describe_reward
from trl_dbbench.runs.adapters import load_trainable
from trl_dbbench.runs.few_shot import Shots
from trl_dbbench.runs.metrics import drop_repeated_rows, episode_metrics, refined_metrics
from trl_dbbench.runs.records import Phase, episode_record
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Task
from trl_dbbench.training.alarms import AlarmCallback, alarm_metrics
from trl_dbbench.training.async_rollouts import AheadGRPOTrainer, Batch
from trl_dbbench.training.callbacks import (
    EpisodeLogCallback,
    GreedyEvalCallback,
    HeldOutCallback,
    MetricsLogCallback,
    PlainProgressCallback,
    RolloutProgressCallback,
)
from trl_dbbench.training.config import DBBenchGRPOConfig
from trl_dbbench.training.model_card import refine_card
from trl_dbbench.training.resume import replaced
from trl_dbbench.training.samplers import TaskSampler
from trl_dbbench.training.unsupported import check_arguments
from trl_dbbench.utils.ranks import together

Callback = TypeVar("Callback", bound=TrainerCallback)


class DBBenchGRPOTrainer(AheadGRPOTrainer):
    """Trainer for GRPO on DB-Bench tasks.

    Example:

    ```python
    with open_database("auto") as database:
        trainer = DBBenchGRPOTrainer(
            model="Qwen/Qwen2.5-0.5B-Instruct",
            reward_funcs=[OutcomeReward()],
            args=DBBenchGRPOConfig(output_dir="out"),
            train_dataset=to_dataset(load_tasks("tasks.jsonl")),
            database=database,
        )
        trainer.train()
    ```

    Args:
        model, reward_funcs, args, train_dataset, eval_dataset, processing_class, callbacks, peft_config,
        **kwargs:
            As in [`~trl.GRPOTrainer`]. Datasets come from `to_dataset`; reward functions get `episode`, a
            list of `rollout.Episode`, and may give a list for an episode, one value for each turn.
        database:
            Where the episodes run. The caller opens and closes it.

    Raises:
        ConfigError: if an argument cannot work (`training/unsupported.py`), the tokenizer has no usable template, a
            prompt does not fit the model, a name is not known, or `task_sampling: skill` finds no skill.
        EngineError: if rollouts need servers and none answers.
        TaskError: if a dataset does not come from `to_dataset`.
    """

    _tag_names = ["trl", "grpo", "dbbench"]  # noqa: RUF012 - TRL's own declaration
    _name = "GRPO on DB-Bench"
    config_cls = DBBenchGRPOConfig

    args: DBBenchGRPOConfig

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Callable | list[Callable],
        args: DBBenchGRPOConfig,
        train_dataset: Dataset,
        eval_dataset: Dataset | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        peft_config: PeftConfig | None = None,
        *,
        database: Database,
        **kwargs: Any,
    ):
        check_arguments(model, args, train_dataset, eval_dataset, peft_config, kwargs)
        if not isinstance(reward_funcs, list):
            reward_funcs = [reward_funcs]
        init_kwargs = args.model_init_kwargs
        if args.adapter_name_or_path is not None:
            model = load_trainable(model, args, peft_config, kwargs.pop("quantization_config", None))
            peft_config = init_kwargs = None  # TRL has nothing to load
        with replaced(args, model_init_kwargs=init_kwargs):
            super().__init__(
                model=model,
                reward_funcs=reward_funcs,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                callbacks=callbacks,
                peft_config=peft_config,
                **kwargs,
            )
        # set here and not passed on: TRL's warning that it may change is for those who do not pin TRL
        self.rollout_func = self._rollout
        if args.chat_template is not None:  # the saved model has it too
            self._tokenizer.chat_template = load_chat_template(args.chat_template)
        policy = TrainedPolicy(self)
        self.backend = open_backend(args, policy)
        self._check_ahead()
        contexts = filter(None, [policy.context, *self.backend.contexts])
        self.player = Player.of(
            self._tokenizer,
            database,
            protocol=args.protocol,
            observation_characters=args.observation_characters or None,
            eos_token_ids=self.eos_token_ids,
            template_kwargs=self.chat_template_kwargs,
            grader=args.grader,
            rules=Rules(
                args.max_turns, args.max_turn_tokens, args.max_completion_length, min(contexts, default=None)
            ),
        )
        prepare_reward_models(self, self.player.chat.protocol)
        for dataset in filter(None, (train_dataset, eval_dataset)):
            self.player.check_dataset(dataset)
        self.shots = Shots.of(self)
        self._order_tasks(train_dataset)
        self._add_callbacks()
        self._rows: list[dict[str, Any]] = []

    def _add_callbacks(self) -> None:
        functions = zip(self.reward_func_names, self.reward_funcs, strict=True)
        rewards = {name: describe_reward(function) for name, function in functions}
        settings = RunSettings.of(self, rewards)
        self.episode_log = EpisodeLogCallback(self.args.output_dir, settings, lambda: self.run_id)
        self.add_callback(self.episode_log)
        self.add_callback(AlarmCallback())
        if self.pop_callback(ProgressCallback) is not None:  # not where bars are off, or in a notebook
            self.add_callback(RolloutProgressCallback())
        elif self.pop_callback(PrinterCallback) is not None:
            self.add_callback(PlainProgressCallback())
        self.add_callback(MetricsLogCallback(self.args.output_dir))
        if self.args.greedy_eval != "off":
            self.add_callback(GreedyEvalCallback(self.args.greedy_eval_every))
        self.add_callback(HeldOutCallback())

    @property
    def greedy_eval(self) -> GreedyEvalCallback | None:
        """The callback that runs the greedy evaluation."""
        return self._callback(GreedyEvalCallback)

    def _callback(self, kind: type[Callback]) -> Callback | None:
        """The callback of this kind; a resumed run has another object than a new one."""
        return next((each for each in self.callback_handler.callbacks if isinstance(each, kind)), None)

    # --- what TRL calls ---------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Dataset | None = None):
        repeat = super()._get_train_sampler(dataset)
        if not self.shuffle_dataset:
            return repeat
        # at the start of an epoch `state.epoch` is its number, in a resumed run a little more
        return TaskSampler(repeat, self._order, lambda: int(self.state.epoch or 0))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._greedy = []
        self._rows = self._rows_to_play(inputs)
        output = super()._generate_and_score_completions(self._rows)
        self._record([row["episode"] for row in self._rows], "train" if self.model.training else "eval")
        return output

    def _generate(self, prompts: list):
        *ids_and_mask, _, logprobs, fields, images, tool_images = super()._generate(prompts)
        # super decodes each episode into one message; these are the policy's own, turn by turn
        completions = [episode.messages() for episode in fields["episode"]]
        return *ids_and_mask, completions, logprobs, fields, images, tool_images

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            refine_card(self)

    # --- the rollout ------------------------------------------------------------------------------

    def _rollout(self, prompts: list, trainer: GRPOTrainer) -> dict[str, Any]:
        """TRL's `rollout_func`: plays this rank's rows and returns their ids, masks and episodes."""
        episodes = [row["episode"] for row in self._rows] if self._played_already else self._play(self._rows)
        self._stop_without_database(self.player.database.gave_up)
        return {
            "prompt_ids": [episode.prompt_ids for episode in episodes],
            # TRL cannot pad an empty completion: one masked token stands in
            "completion_ids": [e.completion_ids or [self._tokenizer.eos_token_id] for e in episodes],
            "logprobs": [episode.logprobs or [0.0] for episode in episodes],
            "env_mask": [episode.mask or [0] for episode in episodes],
            "episode": episodes,
        }

    def _play(self, rows: Sequence[dict[str, Any]], part: int = 0) -> list[Episode]:
        batch = self._batch(rows, self._step, part)
        with profiling_context(self, "rollout"), self.engine() as engine:
            greedy, episodes = batch.play(self.player, engine)
        self._greedy += greedy
        return episodes

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """What plays with the current weights. All ranks enter and leave it together."""
        # where forward passes are collective, ranks cannot synchronise elsewhere; the launcher stops them all
        meet = nullcontext if self.backend.collective else together
        with self.backend.engine() as engine, meet():
            yield engine

    def _batch(self, rows: Sequence[dict[str, Any]], step: int, part: int = 0) -> Batch:
        ids: dict[str, list[int]] = {}  # copies of a prompt are rendered once
        starts: list[Start] = []
        first_row = self.accelerator.process_index * len(rows)
        for place, row in enumerate(rows, first_row):
            prompt = str(row["prompt"])
            if prompt not in ids:
                ids[prompt] = self.player.chat.prompt_ids(row["prompt"])
            sampling = Sampling(self.temperature, greedy=True)
            if self.model.training:
                where = (self.args.seed, step, place, part)[: 4 if part else 3]
                seed = np.random.SeedSequence(where).generate_state(1)[0]
                sampling = Sampling(self.temperature, self.top_p, self.top_k or 0, seed=int(seed))
            task = Task.from_json(row["task"])
            starts.append(Start(task, ids[prompt], sampling, shots=row.get("shots", ())))
        greedy = None
        if self.model.training and self.greedy_eval is not None:
            rollout = step // self._micro_steps
            greedy = self.greedy_eval.starts(starts, rollout, first_row, self.num_generations)
        return Batch(starts, greedy, self.args.greedy_eval == "separate")

    # --- what is kept of it -----------------------------------------------------------------------

    def _record(self, episodes: Sequence[Episode], phase: Phase) -> None:
        """Logs the episodes of all ranks and puts their metrics beside TRL's."""
        step = self.state.global_step
        played = gather_object([episode_record(episode, phase, step) for episode in episodes])
        if phase == "eval":
            played = drop_repeated_rows(played, self.accelerator.gradient_state, self.num_generations_eval)
        # a rank without a greedy run still takes part in the gathering
        greedy = gather_object([episode_record(episode, "greedy", step) for episode in self._greedy])
        tasks = gather_object([row["task"] for row in self._rows])
        group_size = self.num_generations if phase == "train" else self.num_generations_eval
        alarms = alarm_metrics(played, group_size, self.reward_weights.tolist(), self.player.database.dialect)
        for name, value in refined_metrics(played, alarms, self.args).items():
            self._metrics[phase][name][-1] = value  # in the place of TRL's
        choice = self._record_choice(played)
        played, tasks = [*played, *self._left_out], [*tasks, *self._left_out_tasks]
        metrics = episode_metrics(played) | alarms | choice
        if self.shots is not None:
            metrics |= self.shots.record(played, tasks, phase == "train")
        if self.accelerator.is_main_process:
            if greedy and self.greedy_eval is not None:
                metrics |= {name: [value] for name, value in self.greedy_eval.record(step, greedy).items()}
            if phase == "train" and (watching := self._callback(AlarmCallback)) is not None:
                watching.watch(played)
            self.episode_log.write([*greedy, *played], tasks)
        for name, values in metrics.items():
            self._metrics[phase][name] += values
