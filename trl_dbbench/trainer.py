"""GRPO on a database: TRL's trainer, with its generation replaced by multi-turn episodes.

What changes and what stays:

```
TRL                                        here
_get_train_sampler(...)                ->  super, over tasks in an order of `samplers.py`
_generate_and_score_completions(rows)  ->  remembers the rows' tasks, calls super, logs the episodes
  _generate(prompts)                   ->  super, whose rollout_func is ours: greedy runs, then samples
  _calculate_rewards(...)              ->  super, whose parts are kept with each episode
  advantages, loss, optimizer              TRL's own, untouched
```

Checkpoints from which a run goes on exactly, and SIGTERM, are the base class's (`resume.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import DistributedType, gather, gather_object
from datasets import Dataset
from peft import PeftConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProgressCallback, TrainerCallback
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context
from trl.models import prepare_deepspeed, prepare_fsdp, unwrap_model_for_generation
from trl.trainer.utils import add_fused_lm_head, create_model_from_path, disable_dropout_in_model

from trl_dbbench.alarms import AlarmCallback, alarm_metrics
from trl_dbbench.callbacks import EpisodeLogCallback, GreedyEvalCallback, RolloutProgressCallback
from trl_dbbench.chat import ChatFormat
from trl_dbbench.config import DBBenchGRPOConfig
from trl_dbbench.database import Database
from trl_dbbench.engines.transformers.engine import TransformersEngine, context_length
from trl_dbbench.engines.vllm.sync import VLLMSync
from trl_dbbench.errors import ConfigError, DatabaseError, TaskError
from trl_dbbench.judge import Judge
from trl_dbbench.protocol import get_protocol
from trl_dbbench.ranks import raise_on_all, together
from trl_dbbench.resume import ResumableGRPOTrainer
from trl_dbbench.rewards import describe_reward
from trl_dbbench.rollout import Engine, Episode, Rules, Sampling, Status, play_all
from trl_dbbench.runs.read import RunSettings
from trl_dbbench.samplers import Order, TaskSampler, by_skill, shuffled, skill_pools
from trl_dbbench.tasks import Task

logger = logging.getLogger(__name__)


class DBBenchGRPOTrainer(ResumableGRPOTrainer):
    """
    Trainer for GRPO on DB-Bench tasks.

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
            list of `rollout.Episode`.
        database:
            Where the episodes run. The caller opens and closes it.

    Raises:
        ConfigError: if the tokenizer has no usable chat template, a prompt does not fit the model, or
            `task_sampling: skill` finds no skill to draw.
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
        # set here and not passed on: the seam is TRL's, the warning that it may change is for those who do not
        # pin TRL to a minor version
        self.rollout_func = self._rollout
        self.database = database
        self.judge = Judge(database)
        self.chat = ChatFormat(
            self._tokenizer,
            get_protocol(args.protocol, args.observation_characters or None),
            eos_token_ids=self.eos_token_ids,
            template_kwargs=self.chat_template_kwargs,
        )
        self.vllm = VLLMSync(self, args.vllm_server_urls) if args.vllm_server_urls else None
        contexts = [context_length(self.model), *(self.vllm.contexts if self.vllm else [])]
        self.rules = Rules(
            max_turns=args.max_turns,
            max_turn_tokens=args.max_turn_tokens,
            max_completion_length=args.max_completion_length,
            context=min((length for length in contexts if length), default=None),
        )
        for dataset in (train_dataset, eval_dataset):
            if dataset is not None:
                check_prompts(dataset, self.chat, self.rules)
        self._order = self._task_order(train_dataset)
        if args.reference_model_name_or_path:
            self.ref_model = self._load_reference(args.reference_model_name_or_path)

        self.greedy_eval = GreedyEvalCallback()
        self.episode_log = EpisodeLogCallback(args.output_dir, self._run_settings())
        self.add_callback(self.episode_log)
        self.add_callback(AlarmCallback())
        if self.pop_callback(ProgressCallback) is not None:  # not where bars are off, or in a notebook
            self.add_callback(RolloutProgressCallback())
        if args.greedy_eval != "off":
            self.add_callback(self.greedy_eval)
        self._rows: list[dict[str, Any]] = []
        self._greedy: list[Episode] = []

    # --- what TRL calls ---------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Dataset | None = None):
        repeat = super()._get_train_sampler(dataset)
        if not self.shuffle_dataset:
            return repeat
        # at the start of an epoch `state.epoch` is its number, in a resumed run a little more
        return TaskSampler(repeat, self._order, lambda: int(self.state.epoch or 0))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        train = self.model.training
        self._rows, self._greedy = inputs, []
        output = super()._generate_and_score_completions(inputs)
        if train and self.args.use_rollout_logprobs:
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
        episodes: list[Episode] = [row["episode"] for row in inputs]
        for episode, advantage in zip(episodes, output["advantages"].tolist(), strict=True):
            episode.advantage = advantage
        self._record(episodes, "train" if train else "eval")
        return output

    def _generate(self, prompts: list):
        prompt_ids, completion_ids, mask, _, *rest = super()._generate(prompts)
        # super decodes each episode into one message; the turns are better to read
        completions = [episode.messages() for episode in rest[1]["episode"]]
        return prompt_ids, completion_ids, mask, completions, *rest

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        error: Exception | None = None
        try:
            rewards = super()._calculate_rewards(
                inputs, prompts, completions, completion_ids_list
            )  # (N, F), all ranks
        except Exception as raised:
            error = raised
            # super ends by gathering the rewards, where the other ranks wait
            shape = len(inputs), len(self.reward_funcs)
            rewards = gather(torch.full(shape, torch.nan, device=self.accelerator.device))
        raise_on_all(error)
        # whatever a reward function makes of it, what the environment did says nothing of the agent
        faulty = [row["episode"].status == Status.ENVIRONMENT_FAULT for row in inputs]
        rewards[gather(torch.tensor(faulty, device=rewards.device))] = torch.nan
        start = self.accelerator.process_index * len(inputs)
        for row, values in zip(inputs, rewards[start : start + len(inputs)].tolist(), strict=True):
            parts = zip(self.reward_func_names, values, strict=True)
            # TRL holds them in fp32, which has some seven digits: -0.8 comes back as -0.800000012
            row["episode"].rewards = {name: None if np.isnan(v) else float(f"{v:.7g}") for name, v in parts}
        return rewards

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        # an evaluation draws from the global generators; training goes on as if it had not been
        device = self.accelerator.device
        used = [] if device.type == "cpu" else [device]  # not all that the machine has
        with torch.random.fork_rng(used, device_type=device.type):
            return super().evaluate(*args, **kwargs)

    def _load_callback_state(self):
        super()._load_callback_state()
        for callback in self.callback_handler.callbacks:  # transformers may have put a new object there
            if isinstance(callback, GreedyEvalCallback):
                self.greedy_eval = callback

    def _task_order(self, dataset: Dataset) -> Order:
        if self.args.task_sampling == "shuffle":
            return partial(shuffled, len(dataset), self.args.seed)
        skills = [Task.from_json(line).skills for line in dataset["task"]]
        pools = skill_pools(skills, self.args.sampled_skills, self.args.min_tasks_per_skill)
        if self.accelerator.is_main_process:
            logger.info("Task sampling: %s.", pools)
        return partial(by_skill, pools, len(dataset), self.args.seed)

    # --- the rollout ------------------------------------------------------------------------------

    def _rollout(self, prompts: list, trainer: GRPOTrainer) -> dict[str, Any]:
        """TRL's `rollout_func`: plays this rank's rows and returns their ids, masks and episodes."""
        train = self.model.training
        tasks = [Task.from_json(row["task"]) for row in self._rows]
        rendered = {str(prompt): prompt for prompt in prompts}  # copies of a prompt are rendered once
        ids = {text: self.chat.prompt_ids(prompt) for text, prompt in rendered.items()}
        prompt_ids = [ids[str(prompt)] for prompt in prompts]
        rows = range(len(tasks))
        sampled = [(row, self._sampling(row, train)) for row in rows]
        greedy = [(row, Sampling(self.temperature, greedy=True)) for row in self._first_copies(len(tasks))]
        # where a rollout's forward is a collective, ranks cannot meet elsewhere: there the launcher ends the others
        meet = nullcontext if self.vllm is None and self._forward_is_collective() else together
        with self._engine() as engine, meet():

            def run(plan: Sequence[tuple[int, Sampling]]) -> list[Episode]:
                return self._play(
                    [tasks[row] for row, _ in plan],
                    [prompt_ids[row] for row, _ in plan],
                    [sampling for _, sampling in plan],
                    engine,
                )

            if not train or self.args.greedy_eval == "off":
                episodes = run(sampled)
            elif self.args.greedy_eval == "separate":
                self._greedy, episodes = run(greedy), run(sampled)
            else:
                both = run(greedy + sampled)
                self._greedy, episodes = both[: len(greedy)], both[len(greedy) :]
        self._stop_without_database(train)
        return {
            "prompt_ids": prompt_ids,
            # TRL cannot pad an empty completion; where an environment failed before the first turn, one
            # masked token stands in
            "completion_ids": [
                episode.completion_ids or [self._tokenizer.eos_token_id] for episode in episodes
            ],
            "logprobs": [episode.logprobs or [0.0] for episode in episodes],
            # nothing is trained where the environment failed: neither the KL term nor a mean over tokens sees it
            "env_mask": [
                [0] * max(1, len(episode.mask))
                if episode.status == Status.ENVIRONMENT_FAULT
                else episode.mask
                for episode in episodes
            ],
            "episode": episodes,
        }

    def _stop_without_database(self, train: bool) -> None:
        """Ends the run, on all ranks, if one of them has waited for its database in vain.

        Raises:
            DatabaseError: says how to go on.
        """
        reasons = gather_object([self.database.gave_up])
        reason = next((each for each in reasons if each is not None), None)
        if reason is None:
            return
        saved = ""
        if train:
            self._save_checkpoint(self.model, trial=None)
            saved = (
                f" Step {self.state.global_step} is saved in {self.args.output_dir}: start again with "
                "resume_from_checkpoint: true when the database is back."
            )
        raise DatabaseError(
            f"{reason}. The database was waited for as long as database_patience allows, and is still away.{saved}"
        )

    def _play(
        self,
        tasks: Sequence[Task],
        prompts: Sequence[list[int]],
        samplings: Sequence[Sampling],
        engine: Engine,
    ) -> list[Episode]:
        return play_all(
            tasks,
            prompts,
            samplings,
            engine=engine,
            chat=self.chat,
            database=self.database,
            judge=self.judge,
            rules=self.rules,
        )

    def _first_copies(self, rows: int) -> list[int]:
        """This rank's rows that are the first of their prompt's `num_generations` copies.

        The copies of a prompt may lie on several ranks; the greedy run is played by the first one's.
        """
        start = self.accelerator.process_index * rows
        return [row for row in range(rows) if (start + row) % self.num_generations == 0]

    def _sampling(self, row: int, train: bool) -> Sampling:
        if not train:
            return Sampling(self.temperature, greedy=True)
        rank_row = self.accelerator.process_index * len(self._rows) + row
        seed = int(np.random.SeedSequence((self.args.seed, self._step, rank_row)).generate_state(1)[0])
        return Sampling(self.temperature, self.top_p, self.top_k or 0, seed=seed)

    @contextmanager
    def _engine(self) -> Iterator[Engine]:
        if self.vllm is not None:
            with profiling_context(self, "rollout"):
                yield self.vllm.engine_of_current_weights()
            return
        with (
            profiling_context(self, "rollout"),
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as model,
            self._dist.summon_full_params(self.model_wrapped, recurse=False),
        ):
            yield TransformersEngine(
                model,
                self.eos_token_ids,
                self._tokenizer.pad_token_id,
                autocast=self.accelerator.autocast,
                device=self.accelerator.device,
                any_rank=self._any_rank if self._forward_is_collective() else None,
            )

    def _forward_is_collective(self) -> bool:
        plugin = self.accelerator.state.deepspeed_plugin
        zero3 = plugin is not None and plugin.zero_stage == 3
        return self.accelerator.num_processes > 1 and (
            zero3 or self.accelerator.distributed_type == DistributedType.FSDP
        )

    # --- what is kept of it -----------------------------------------------------------------------

    def _record(self, episodes: Sequence[Episode], phase: str) -> None:
        """Logs the episodes of all ranks and puts their metrics beside TRL's."""
        step = self.state.global_step
        played = gather_object([{"phase": phase, "step": step, **e.to_dict()} for e in episodes])
        if phase == "eval":
            played = played[: self._rows_of_evaluation(len(played))]
        # a rank without a greedy run still takes part in the gathering
        greedy = gather_object([{"phase": "greedy", "step": step, **e.to_dict()} for e in self._greedy])
        tasks = gather_object([row["task"] for row in self._rows])
        group_size = self.num_generations if phase == "train" else self.num_generations_eval
        metrics = episode_metrics(played) | alarm_metrics(played, group_size, self.reward_weights.tolist())
        if greedy and self.accelerator.is_main_process:
            metrics |= {name: [value] for name, value in self.greedy_eval.record(step, greedy).items()}
        if self.accelerator.is_main_process:
            self.episode_log.write([*greedy, *played], tasks)
        for name, values in metrics.items():
            self._metrics[phase][name] += values

    def _run_settings(self) -> RunSettings:
        functions = zip(self.reward_func_names, self.reward_funcs, strict=True)
        return RunSettings(
            self.args.protocol,
            self.args.observation_characters,
            self.rules.max_turns,
            self.rules.max_completion_length,
            self.rules.context,
            self.database.describe(),
            self.database.dialect,
            self.database.limits,
            {name: describe_reward(function) for name, function in functions},
        )

    def _rows_of_evaluation(self, gathered: int) -> int:
        """How many of all ranks' rows count: accelerate fills up the last batch with rows of the first."""
        loader = self.accelerator.gradient_state
        over = max(0, loader.remainder) * self.num_generations_eval % gathered
        return over if loader.end_of_dataloader and over else gathered

    def _load_reference(self, name_or_path: str) -> PreTrainedModel:
        """A frozen model, made ready as TRL makes its own reference ready."""
        kwargs = {"dtype": self.model.dtype, **(self.args.model_init_kwargs or {}), "device_map": None}
        model = create_model_from_path(name_or_path, **kwargs)
        if model.get_input_embeddings().weight.shape[0] < len(self._tokenizer):
            raise ConfigError(
                f"the reference model '{name_or_path}' has a smaller vocabulary than the tokenizer of the trained "
                "model; the two must share one."
            )
        disable_dropout_in_model(model)
        add_fused_lm_head(
            model, temperature=self.temperature, cast_lm_head_to_fp32=self.args.cast_lm_head_to_fp32
        )
        if self.is_deepspeed_enabled:
            return prepare_deepspeed(model, self.accelerator)
        if self.is_fsdp_enabled:
            return prepare_fsdp(model, self.accelerator)
        return self.accelerator.prepare_model(model, evaluation_mode=True)


def episode_metrics(episodes: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """What is logged as a mean: a value for each of a batch's episodes, in the form of `Episode.to_dict`.

    The mean over them all is right where the batches' means would not be: an evaluation's last batch may be smaller.

    `accuracy` leaves out episodes whose environment failed; `status/...` are shares of all episodes;
    `sql/mean_seconds` has a value for each statement, `database/retries` one for the batch, its sum.
    """
    turns = [turn for episode in episodes for turn in episode["turns"]]
    values = {
        **{f"status/{status}": [float(e["status"] == status) for e in episodes] for status in Status},
        "turns/mean": [float(len(episode["turns"])) for episode in episodes],
        "database/retries": [sum(episode["retries"] for episode in episodes)],
        "accuracy": [float(e["right"]) for e in episodes if e["status"] != Status.ENVIRONMENT_FAULT],
        "sql/mean_seconds": [turn["sql_seconds"] for turn in turns if turn["sql_seconds"] is not None],
    }
    return {name: each for name, each in values.items() if each}  # of an empty list TRL would log None


def check_prompts(dataset: Dataset, chat: ChatFormat, rules: Rules) -> None:
    """Finds what would fail in the middle of a run.

    Raises:
        TaskError: if the rows have no `task`.
        ConfigError: if a prompt leaves the model no room for a turn.
    """
    if not {"prompt", "task"} <= set(dataset.column_names):
        raise TaskError(
            f"the dataset has the columns {dataset.column_names}, needed are 'prompt' and 'task'. "
            "Make it with trl_dbbench.to_dataset(load_tasks(...))."
        )
    if rules.context is None:
        return
    for messages, line in zip(dataset["prompt"], dataset["task"], strict=True):
        # a token has at least one character, so short prompts need no tokenizer; the template's own
        # tokens and tool descriptions are counted as 1,000
        if (
            sum(len(message["content"].encode()) for message in messages) + 1_000 < rules.context
            and not chat.protocol.tools
        ):
            continue
        rules.check_prompt(Task.from_json(line).id, len(chat.prompt_ids(messages)))
