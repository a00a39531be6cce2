"""GRPO on a database: TRL's trainer, with its generation replaced by multi-turn episodes.

One step is `_generate_and_score_completions`. Its parts:

```
choose rows       dynamic_sampling.py; async_rollouts.py plays batches ahead
play              TRL's own method, with our `rollout_func`; `episode/player.py` plays the episodes
leave out         loss.py masks rows whose environment failed
KL                kl.py, for `kl_reference` and `kl_in_reward`
advantages        assign_advantages.py, for `advantage`
record            runs/metrics.py, alarms.py and callbacks.py
```

TRL computes the loss over the rows that were played. `trl_settings` sets the attributes that TRL reads during
a step or a loss. The base class handles exact resume and SIGTERM (`resume.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
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

from trl_dbbench.advantages.registry import check_needs, note
from trl_dbbench.database import Database
from trl_dbbench.engines.base import engine_of, open_backend
from trl_dbbench.engines.policy import (
    TrainedPolicy,
    count_positions_by_row,
    evaluating,
    forward_is_collective,
    keep_one_hook,
)
from trl_dbbench.engines.shared_prompts import FOLLOWS, SharedPrompts, Tokens
from trl_dbbench.engines.token_trees import follows_of, lay_out_trees, score_sequences
from trl_dbbench.episode.dataset import rows_to_check, task_in
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.episode.types import Engine, Episode, Rules, Sampling, Start, check_harness
from trl_dbbench.errors import ConfigError
from trl_dbbench.harness import played_by
from trl_dbbench.rewards.registry import (
    describe_reward,
    gives_no_steps,
    prepare_reward_models,
    with_step_rewards,
)
from trl_dbbench.runs.adapters import load_trainable
from trl_dbbench.runs.few_shot import Shots
from trl_dbbench.runs.metrics import drop_repeated_rows, episode_metrics, refined_metrics
from trl_dbbench.runs.records import Phase, episode_record
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.training.alarms import AlarmCallback, alarm_metrics
from trl_dbbench.training.assign_advantages import assign, note_rewards, without_rows
from trl_dbbench.training.async_rollouts import AsyncRollouts, Starts, UnderWay, staleness
from trl_dbbench.training.callbacks import (
    EpisodeLogCallback,
    GreedyEvalCallback,
    HeldOutCallback,
    MetricsLogCallback,
    PlainProgressCallback,
    RolloutProgressCallback,
)
from trl_dbbench.training.config import DBBenchGRPOConfig
from trl_dbbench.training.dynamic_sampling import Batch, Chooser, Row, put_columns, take_columns
from trl_dbbench.training.forwards import Forwards
from trl_dbbench.training.importance_sampling import (
    MODES,
    NO_CORRECTION,
    compares_with_rollout,
    known_logprobs,
)
from trl_dbbench.training.kl import StageReference, apply_kl, load_reference, without_dropout
from trl_dbbench.training.loss import FAILED, SHARES, correct_means, mask_failed, note_shares
from trl_dbbench.training.memory import check_memory
from trl_dbbench.training.model_card import refine_card
from trl_dbbench.training.resume import ResumableGRPOTrainer, replaced
from trl_dbbench.training.samplers import LiveOrder, TaskSampler, task_order
from trl_dbbench.training.stage_adapters import StageAdapters
from trl_dbbench.training.stream import Stream, StreamCallback
from trl_dbbench.training.unsupported import check_arguments, check_positions, refused_by_trl
from trl_dbbench.utils.cpu import FREE_AT_MOST, give_back_memory, leave_unpacked, spare_page_faults
from trl_dbbench.utils.ranks import raise_on_all, together

logging.getLogger(GRPOTrainer.__module__).addFilter(without_rows)


class DBBenchGRPOTrainer(ResumableGRPOTrainer):
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
            As in [`~trl.GRPOTrainer`]. Datasets come from `to_dataset`. Reward functions receive `episode`, a
            list of `episode.types.Episode`, and may return a list for an episode, with one value per turn.
        database:
            The database that episodes are played on. The caller opens and closes it.

    Raises:
        ConfigError: if an argument is not supported (`training/unsupported.py`), the tokenizer has no usable
            chat template, a prompt does not fit the model, a name is unknown, or `task_sampling: skill` finds
            no skill.
        EngineError: if rollouts need servers and none answers.
        TaskError: if a dataset does not come from `to_dataset`.
    """

    _tag_names = ["trl", "grpo", "dbbench"]  # noqa: RUF012 - TRL's own declaration
    _name = "GRPO on DB-Bench"
    config_cls = DBBenchGRPOConfig

    args: DBBenchGRPOConfig
    beta: float
    chat_template_kwargs: dict[str, Any]
    current_gradient_accumulation_steps: float
    advantage: Any
    """Advantage function; `None` for TRL's own."""
    greedy_eval: GreedyEvalCallback | None
    batch: Batch
    """Rows that this step plays and trains on."""
    rewards: torch.Tensor
    """(N, F), rewards of all ranks' episodes in the batch."""
    _follows: torch.Tensor | None = None
    """(B, T), column before each token if a row being scored is several sequences (`engines.token_trees`)."""
    _begun = False
    """True once this process has played a batch."""

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
        if not isinstance(args, self.config_cls):
            known = self.config_cls.__name__
            raise ConfigError(f"args is a {type(args).__name__}; give a {known}, which has its settings too.")
        check_arguments(model, args, train_dataset, eval_dataset, peft_config, kwargs)
        quantization = kwargs.get("quantization_config")
        rows = rows_to_check(train_dataset)
        prompts = rows["prompt"] if "prompt" in rows.column_names else ()
        check_memory(model, args, prompts, processing_class, peft_config, quantization)
        spare_page_faults(args.device)
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        init_kwargs = args.model_init_kwargs
        if args.adapter_name_or_path is not None:
            model = load_trainable(model, args, peft_config, kwargs.pop("quantization_config", None))
            peft_config = init_kwargs = None  # nothing is left for TRL to load
        self.advantage = args.advantage_function()
        if gives_no_steps(functions):
            check_needs(args.advantage, self.advantage, "step_rewards")
        if args.stream is not None and eval_dataset is not None:
            args.eval_on_start = True  # the stream's matrix begins with the accuracy before training
        own_reference = args.kl_reference == "rollout" or args.reference_model_name_or_path
        beta = 0.0 if own_reference else args.beta  # above 0, TRL would load a reference model
        # with use_vllm, TRL would start its own engine
        with refused_by_trl(), replaced(args, model_init_kwargs=init_kwargs, beta=beta, use_vllm=False):
            super().__init__(
                model=model,
                reward_funcs=[with_step_rewards(each) for each in functions],
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                callbacks=callbacks,
                peft_config=peft_config,
                **kwargs,
            )
        leave_unpacked(self.model)
        keep_one_hook(self.model)
        check_positions(self.model)
        if not any(weight.requires_grad for weight in self.model.parameters()):
            raise ConfigError(
                "no weight of the model is trainable. Give adapter_name_or_path, or load the adapter with "
                "PeftModel.from_pretrained(..., is_trainable=True)."
            )
        # set here, not passed on: TRL would warn that its interface may change, but our TRL version is pinned
        self.rollout_func = self._rollout
        self.mask_truncated_completions = False  # TRL would judge by the last id
        self.vllm_importance_sampling_mode = MODES.get(args.rollout_correction)
        self.beta = 0.0 if args.kl_in_reward else args.beta
        if args.reference_model_name_or_path:
            self.ref_model = load_reference(self, args.reference_model_name_or_path)
        for scored in filter(None, (self.model, self.ref_model)):
            count_positions_by_row(self.accelerator.unwrap_model(scored))
        if hasattr(self.advantage, "state_dict"):
            self.stateful["advantage"] = self.advantage
        if hasattr(self.advantage, "check"):
            self.advantage.check(self)
        if args.chat_template is not None:
            self._tokenizer.chat_template = load_chat_template(args.chat_template)
        policy = TrainedPolicy(self)
        self.backend = open_backend(args, policy)
        self.ahead = self._play_ahead()
        contexts = filter(None, [policy.context, *self.backend.contexts])
        self.player: Player = Player.of(
            self._tokenizer,
            database,
            protocol=args.protocol,
            observation_characters=args.observation_characters,
            eos_token_ids=self.eos_token_ids,
            template_kwargs=self.chat_template_kwargs,
            grader=args.grader,
            rules=Rules(
                *(args.max_turns, args.max_turn_tokens, args.max_completion_length),
                *(min(contexts, default=None), args.compaction_tokens, args.compaction),
            ),
            history="template" if args.harness else args.history,
        )
        if args.harness is not None:
            self.player = played_by(self.player, args.harness, args.harness_seconds)
        self._tokenizer.chat_template = self.player.chat.chat_template  # for the saved model too
        prepare_reward_models(self, self.player.chat.protocol)
        # TRL renders them for reward models
        self.chat_template_kwargs = {**self.chat_template_kwargs, "tools": self.player.chat.protocol.tools}
        for dataset in filter(None, (train_dataset, eval_dataset)):
            self.player.check_dataset(dataset)
        shots = Shots.of(self)
        order = task_order(train_dataset, args, eval_dataset)
        if isinstance(order, LiveOrder):
            self.stateful[order.name] = order
        self.stream = order if isinstance(order, Stream) else None
        if self.stream is not None:
            args.max_steps = self.stream.max_steps
        self.stage_reference = StageReference(self) if args.kl_reference == "stage" else None
        if self.stage_reference is not None:
            self.stateful["stage_reference"] = self.stage_reference
        without_dropout(self.model)
        self.stage_adapters = None
        if args.stage_adapters != "one":
            self.stage_adapters = self.stateful["stage_adapters"] = StageAdapters(self, args.stage_adapters)
        self.chooser = Chooser(args, train_dataset, order, shots, self.reward_weights, self._play_and_score)
        self.sharing = SharedPrompts(self.accelerator, compiled=args.torch_compile)
        self._check_sequences()
        self.forwards = Forwards(self, args.max_tokens_per_forward)
        if args.max_tokens_per_forward is None:
            self.stateful["forwards"] = self.forwards
        self._add_callbacks()

    def _check_sequences(self) -> None:
        if self.player.rewrites and self.aux_loss_enabled:
            raise ConfigError(
                "the load-balancing loss of experts is of plain rows, and history: template, "
                "compaction_tokens and harness make an episode several sequences; set "
                "router_aux_loss_coef: 0, or leave them out."
            )
        rewritten = self.player.rewrites and not self.shares_prompts(self.model)
        if rewritten and forward_is_collective(self.accelerator):
            raise ConfigError(
                "history: template, compaction_tokens and harness need one forward pass a sequence with "
                "this model (shared_prefix), and ranks that share the weights must have as many passes "
                "each. Leave them out, or train without FSDP and ZeRO-3."
            )

    def _play_ahead(self) -> AsyncRollouts | None:
        if not self.args.rollouts_ahead:
            return None
        if not getattr(self.backend, "detached", False):
            raise ConfigError(
                f"rollouts_ahead: {self.args.rollouts_ahead} needs an engine that goes on with older weights "
                "while the model is trained: LoRA on vLLM servers (vllm_server_urls), or a backend of your "
                "own that is `detached`. Leave it out, or name servers."
            )
        return AsyncRollouts(self.args.rollouts_ahead, self._begin)

    def _add_callbacks(self) -> None:
        functions = zip(self.reward_func_names, self.reward_funcs, strict=True)
        rewards = {name: describe_reward(function) for name, function in functions}
        settings = RunSettings.of(self, rewards)
        self.episode_log = EpisodeLogCallback(self.args.output_dir, settings, lambda: self.run_id)
        self.add_callback(self.episode_log)
        self.alarms = self.stateful["alarms"] = AlarmCallback()
        self.add_callback(self.alarms)
        if self.pop_callback(ProgressCallback) is not None:  # absent if bars are off, and in a notebook
            self.add_callback(RolloutProgressCallback())
        elif self.pop_callback(PrinterCallback) is not None:
            self.add_callback(PlainProgressCallback())
        self.add_callback(MetricsLogCallback(self.args.output_dir))
        self.greedy_eval = None
        if self.args.greedy_eval != "off":
            self.greedy_eval = self.stateful["greedy_eval"] = GreedyEvalCallback()
            self.add_callback(self.greedy_eval)
        self.add_callback(HeldOutCallback(lambda: self.best_step))
        if self.stream is not None:
            self.add_callback(StreamCallback(self))

    # --- a step -----------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[Row]) -> dict[str, Any]:
        batch = self.batch = self._choose(inputs) if self.model.training else self.chooser.held_out(inputs)
        with trl_settings(self), replaced(self, _follows=None):  # set when the episodes are played
            output = super()._generate_and_score_completions(batch.rows)
            give_back_memory(self.accelerator.device, FREE_AT_MOST)
            if self._follows is not None:
                output[FOLLOWS] = self._follows
        if self.model.training and self.args.needs_rollout_logprobs:
            logprobs = known_logprobs(output, engine_of(self.args), self._any_rank)
            if compares_with_rollout(self.args):
                output["old_per_token_logps"] = logprobs
        every = output["tool_mask"]
        mask_failed(output, batch.episodes, self.args.mask_truncated_completions, self.accelerator.gather)
        played = every.masked_fill(output[FAILED][:, None], 0)  # truncated rows count in their groups' means
        penalties = apply_kl(output, played, self.args, self.accelerator.gather, self.model.training)
        self._assign_advantages(output, penalties)
        self._record(batch)
        return output

    def _choose(self, rows: list[Row]) -> Batch:
        """Return the training batch to use instead of the data loader's rows."""
        if self.ahead is None:
            return self.chooser.choose(rows, self._step)
        generation = self._step // self._micro_steps
        steps = self.state.max_steps * self.args.gradient_accumulation_steps
        greedy, episodes, waited = self.ahead.next(generation, -(-steps // self._micro_steps))
        batch = Batch(self.chooser.rows_of(generation))
        batch.add(greedy, episodes)
        self._note_ahead(episodes, waited)
        return batch

    def _rollout(self, prompts: list, trainer: GRPOTrainer) -> dict[str, Any]:
        """Play this rank's rows; return ids, masks and episodes as TRL expects of a `rollout_func`."""
        if not self.batch.played:
            self.batch.add(*self._play(self.batch.rows))
        self._stop_without_database(self.player.database.gave_up)
        episodes = self.batch.episodes
        if not (self._begun or self.state.global_step):
            with together():
                check_harness(episodes)
        self._begun = True
        self._follows = self._follows_of(episodes)
        return {
            "prompt_ids": [episode.prompt_ids for episode in episodes],
            "completion_ids": [self._completion_ids(episode) for episode in episodes],
            "logprobs": [episode.logprobs or [0.0] for episode in episodes],
            "env_mask": [episode.mask or [0] for episode in episodes],
            "episode": episodes,
        }

    def _follows_of(self, episodes: Sequence[Episode]) -> torch.Tensor | None:
        """Return `engines.token_trees.follows_of` for these rows, padded to TRL's width."""
        columns, multiple = max(len(self._completion_ids(each)) for each in episodes), self.pad_to_multiple_of
        follows = follows_of(episodes, -(-columns // (multiple or 1)) * (multiple or 1))
        return None if follows is None else follows.to(self.accelerator.device)

    def _completion_ids(self, episode: Episode) -> list[int]:
        # TRL cannot pad an empty completion: it gets one masked token
        return episode.completion_ids or [self._tokenizer.eos_token_id]

    def _assign_advantages(self, output: dict[str, Any], penalties: torch.Tensor | float) -> None:
        """Record each episode's advantage; replace TRL's advantages if another function computes them."""
        episodes, training = self.batch.episodes, self.model.training
        if isinstance(penalties, torch.Tensor):
            scored = self.rewards.isnan().all(dim=1).logical_not().cpu()
            self._metrics["train" if training else "eval"]["kl_penalty"] += penalties[scored].tolist()
        if self.advantage is None or not training:
            note(episodes, output["advantages"])
            return
        own, of_all = assign(
            *(self.args.advantage, self.advantage, episodes, self.rewards, self.reward_weights),
            group_size=self.num_generations,
            width=output["completion_ids"].shape[1],  # as this rank's rows are padded
            penalties=penalties,
        )
        output["advantages"] = own.to(self.accelerator.device)
        for _ in of_all:
            self._logs["advantages"].pop()  # TRL's
        self._logs["advantages"].extend(of_all)

    def _record(self, batch: Batch) -> None:
        """Log the episodes of all ranks, and add their metrics to TRL's."""
        step = self.state.global_step
        phase: Phase = "train" if self.model.training else "eval"
        played = gather_object([episode_record(episode, phase, step) for episode in batch.episodes])
        if phase == "eval":
            played = drop_repeated_rows(played, self.accelerator.gradient_state, self.num_generations_eval)
        # a rank without greedy episodes must still take part
        greedy = gather_object([episode_record(episode, "greedy", step) for episode in batch.greedy])
        tasks = gather_object([row["task"] for row in batch.rows])
        group_size = self.num_generations if phase == "train" else self.num_generations_eval
        alarms = alarm_metrics(played, group_size, self.reward_weights.tolist(), self.player.database.dialect)
        for name, values in refined_metrics(played, alarms, self.args, self.reward_weights.tolist()).items():
            self._metrics[phase][name][-1:] = values  # replace TRL's
        left_out = batch.left_out_records(step)
        choice: dict[str, list[float]] = {}
        if phase == "train":
            choice |= self.stream.record_greedy(greedy) if self.stream is not None else {}
            choice |= self.chooser.record(played, left_out)
        elif self.stream is not None:
            self.stream.count_held_out(played)
        played, tasks = [*played, *left_out], [*tasks, *(row["task"] for row in batch.left_out)]
        metrics = episode_metrics(played) | alarms | choice
        if self.chooser.shots is not None:
            metrics |= self.chooser.shots.record(played, tasks, phase == "train")
        if self.accelerator.is_main_process:
            if greedy and self.greedy_eval is not None:
                metrics |= {name: [value] for name, value in self.greedy_eval.record(step, greedy).items()}
            if phase == "train":
                self.alarms.watch(played)
            self.episode_log.write([*greedy, *played], tasks)
        for name, values in metrics.items():
            self._metrics[phase][name] += values

    # --- playing ----------------------------------------------------------------------------------

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Yield the engine with the current weights. All ranks enter and leave the block together."""
        # if forward passes are collective, ranks cannot synchronise outside them: the launcher stops them all
        meet = nullcontext if self.backend.collective else together
        with self.backend.engine() as engine, meet():
            yield engine

    def _play(self, rows: Sequence[Row], part: int = 0) -> tuple[list[Episode], list[Episode]]:
        """Play this rank's rows; return the greedy episodes, and one episode per row."""
        if self.stage_adapters is not None and not self.model.training:
            return [], self._play_by_stage(rows)
        return self._play_with_one_adapter(rows, part)

    def _play_by_stage(self, rows: Sequence[Row]) -> list[Episode]:
        """Play held-out rows, each with the adapter of its stage. All ranks play a stage together."""
        assert self.stream is not None and self.stage_adapters is not None
        groups = [self.stream.stage_of(task_in(row["task"])) for row in rows]
        played: dict[int, Episode] = {}
        for group in (None, *range(len(self.stream.stages.groups))):
            places = [place for place, of_row in enumerate(groups) if of_row == group]
            if self._any_rank(bool(places)):
                with self.stage_adapters.playing(group):
                    _, episodes = self._play_with_one_adapter([rows[place] for place in places])
                played |= dict(zip(places, episodes, strict=True))
        return [played[place] for place in range(len(rows))]

    def _play_with_one_adapter(
        self, rows: Sequence[Row], part: int = 0
    ) -> tuple[list[Episode], list[Episode]]:
        starts = self._starts(rows, self._step, part)
        with profiling_context(self, "rollout"), self.engine() as engine:
            played = starts.play(self.player, engine)
        self._note_prefix_cache(engine)
        return played

    def _begin(self, generation: int, threads: ThreadPoolExecutor) -> UnderWay:
        """Start to play this rank's rows of a generation with the current weights."""
        starts = self._starts(self.chooser.rows_of(generation), generation * self._micro_steps)
        return UnderWay(starts, self.state.global_step, self.player, self.engine(), threads)

    def _starts(self, rows: Sequence[Row], step: int, part: int = 0) -> Starts:
        """Return the starts of these rows' episodes; each is seeded by the run's seed, step, row and part."""
        ids: dict[str, list[int]] = {}  # copies of a prompt are rendered once
        samples: list[Start] = []
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
            task = task_in(row["task"])
            samples.append(Start(task, ids[prompt], sampling, (), row.get("shots", ()), row["prompt"]))
        greedy = None
        due = step // self._micro_steps % self.args.greedy_eval_every == 0
        if self.model.training and self.greedy_eval is not None and due:
            # copies of a prompt may be on several ranks; the rank with the first one plays it
            firsts = [each for row, each in enumerate(samples, first_row) if row % self.num_generations == 0]
            sampling = Sampling(self.temperature, greedy=True)
            greedy = [replace(each, sampling=sampling) for each in firsts]
        return Starts(samples, greedy, self.args.greedy_eval == "separate")

    def _note_prefix_cache(self, engine: Any) -> None:
        """Logged, with vLLM in this process:

        - `rollout/cached_tokens`: share of the turns' prompt tokens that were in vLLM's prefix cache.
        """
        if hasattr(engine, "cached_tokens"):
            own = torch.tensor([[engine.cached_tokens, engine.prompt_tokens]], device=self.accelerator.device)
            cached, read = self.accelerator.gather(own).sum(dim=0).tolist()
            phase = "train" if self.model.training else "eval"
            self._metrics[phase]["rollout/cached_tokens"] += [cached / read] if read else []

    def _note_ahead(self, episodes: Sequence[Episode], waited: float) -> None:
        """Logged, with `rollouts_ahead`:

        - `ahead/staleness`: updates between the weights that sampled a token and those that its training
          starts with, averaged over a batch's tokens.
        - `ahead/waited_seconds`: seconds that the training waited for a batch that was still being played.
        """
        own = torch.tensor([*staleness(episodes, self.state.global_step), waited])
        every = self.accelerator.gather(own.to(self.accelerator.device)).view(-1, 3)
        updates, tokens, _ = every.sum(dim=0).tolist()
        self._metrics["train"]["ahead/staleness"].append(updates / max(tokens, 1))
        self._metrics["train"]["ahead/waited_seconds"].append(every[:, 2].max().item())

    # --- rewards ----------------------------------------------------------------------------------

    def _play_and_score(self, batch: Batch, part: int) -> None:
        """Play and score a batch before TRL asks for it."""
        batch.add(*self._play(batch.rows, part))
        self._stop_without_database(self.player.database.gave_up)
        rows, episodes = batch.rows, batch.episodes
        batch.rewards = self._score(
            rows,
            [row["prompt"] for row in rows],
            [episode.messages() for episode in episodes],
            [self._completion_ids(episode) for episode in episodes],
        )
        note_rewards(episodes, batch.rewards, self.reward_func_names, self.accelerator.gather)
        batch.extra = take_columns(self._pending_extra_logs, len(rows))

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        if self.batch.rewards is None:
            self.rewards = self._score(inputs, prompts, completions, completion_ids_list)
        else:
            self.rewards = self.batch.rewards.to(self.accelerator.device)
            put_columns(self._pending_extra_logs, self.batch.extra)
        if self.model.training and hasattr(self.advantage, "prepare"):
            self.advantage.prepare(self, self.batch.episodes)
        self._stop_without_database(self.player.database.gave_up)
        note_rewards(self.batch.episodes, self.rewards, self.reward_func_names, self.accelerator.gather)
        return self.rewards

    def _score(self, *batch: Any) -> torch.Tensor:
        """Call the reward functions; return (N, F), the rewards of all ranks."""
        error: Exception | None = None
        try:
            rewards = super()._calculate_rewards(*batch)
        except Exception as raised:
            error = raised
            # super gathers the rewards at its end, where the other ranks wait
            shape = len(batch[0]), len(self.reward_funcs)
            rewards = self.accelerator.gather(torch.full(shape, torch.nan, device=self.accelerator.device))
        raise_on_all(error)
        return rewards

    # --- other methods of TRL's -------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any):
        with self.ahead or nullcontext():
            return super().train(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = super().evaluate(*args, **kwargs)
        if self.stream is not None and (measured := self.stream.measured()):
            self.stream.write(self.args.output_dir)
            self.log(measured)
        return metrics

    def _prepare_for_training(self, *args: Any, **kwargs: Any):
        prepared = super()._prepare_for_training(*args, **kwargs)  # loads a checkpoint's bound
        self.forwards.settle()
        return prepared

    def _get_train_sampler(self, dataset: Dataset | None = None):
        repeat = super()._get_train_sampler(dataset)
        if not self.shuffle_dataset:
            return repeat
        # at the start of an epoch, `state.epoch` is its number, or slightly more in a resumed run
        return TaskSampler(repeat, self.chooser.order, lambda: int(self.state.epoch or 0))

    def _generate(self, prompts: list):
        self._last_loaded_step = self.state.global_step  # keeps TRL from syncing weights to vLLM
        *ids_and_mask, _, logprobs, fields, images, tool_images = super()._generate(prompts)
        # super decodes each episode into one message; these are its actual messages, turn by turn
        completions = [episode.messages() for episode in fields["episode"]]
        return *ids_and_mask, completions, logprobs, fields, images, tool_images

    def _get_per_token_logps_and_entropies(
        self,
        model,
        input_ids,
        attention_mask,
        logits_to_keep,
        batch_size=None,
        compute_entropy=False,
        **options,
    ):
        usual = super()._get_per_token_logps_and_entropies
        shares = self.shares_prompts(model)
        shared = shares and not options.get("compute_aux_loss")

        def run(tokens: Tokens, rows: int | None) -> Any:
            if tokens.follows is not None:
                return (*self._score_trees(model, tokens, rows, compute_entropy, usual), None)
            in_one_row = self.sharing.score(model, tokens, rows, compute_entropy) if shared else None
            if in_one_row:
                return (*in_one_row, None)
            return usual(model, *tokens[:3], rows, compute_entropy, **options)

        tokens = Tokens(input_ids, attention_mask, logits_to_keep, self._follows, not shares)
        shared = shared and tokens.follows is None  # each tree computes its prompt itself
        # rollouts were sampled without dropout
        with nullcontext() if torch.is_grad_enabled() else evaluating(model):
            return self.forwards.score("logprobs", run, tokens, batch_size, shared=shared)

    def _score_trees(
        self, model: Any, tokens: Tokens, rows: int | None, compute_entropy: bool, usual: Callable
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Score a batch whose episodes may be several sequences each; see `engines.token_trees`."""
        if not self.shares_prompts(model):
            return score_sequences(lambda *batch: usual(model, *batch, compute_entropy)[:2], tokens, rows)
        count = len(tokens.input_ids)
        passes = torch.arange(count).split(rows or count)
        layouts = [lay_out_trees(tokens, each.tolist()) for each in passes]
        return self.sharing.forward(model, layouts, (count, tokens.completion), compute_entropy)

    def shares_prompts(self, model: Any) -> bool:
        """Return whether a forward pass computes a prompt once for all rows that share it."""
        return self.args.shared_prefix != "off" and self.sharing.possible(model)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any):
        compute = partial(super().compute_loss, model, inputs, *args, **kwargs)
        with replaced(self, _follows=inputs.get(FOLLOWS)):
            return self.forwards.loss(model, inputs, compute) if torch.is_grad_enabled() else compute()

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not None and self._buffered_inputs is not before:
            note_shares(self._buffered_inputs, self.accelerator.gather)
        return inputs

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        with trl_settings(self, inputs):
            factor, _ = correct_means(self.loss_type, inputs.get(SHARES, (1.0, 1.0)))
            if factor != 1:
                inputs = inputs | {"advantages": inputs["advantages"] * factor}
            return super()._compute_loss(model, inputs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            refine_card(self)


@contextmanager
def trl_settings(trainer: DBBenchGRPOTrainer, micro_batch: dict[str, Any] | None = None) -> Iterator[None]:
    """Set the attributes that TRL reads to score a batch, or to compute the loss of `micro_batch`."""
    own: dict[str, Any]
    args, of_args = trainer.args, {}
    if micro_batch is None:
        training = trainer.model.training
        own = {
            # above 0, TRL scores the completions with its reference model
            "beta": 0.0 if args.kl_reference == "rollout" else args.beta,
            # TRL computes the ratio to the rollout's log-probabilities
            "use_vllm": training and args.rollout_correction != NO_CORRECTION,
        }
        if training and compares_with_rollout(args):
            # TRL would score the batch again if it is not aligned with updates; we take the rollout's values
            of_args = {"gradient_accumulation_steps": trainer._micro_steps}
    else:
        own = {"use_vllm": "importance_sampling_ratio" in micro_batch}
        own["beta"] = trainer.beta if "ref_per_token_logps" in micro_batch else 0.0
        if SHARES in micro_batch:
            factor, batches = correct_means(trainer.loss_type, micro_batch[SHARES])
            own["beta"] *= factor
            own["current_gradient_accumulation_steps"] = trainer.current_gradient_accumulation_steps * batches
    with replaced(args, **of_args), replaced(trainer, **own):
        yield
