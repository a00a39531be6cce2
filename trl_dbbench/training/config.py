"""`DBBenchGRPOConfig`: TRL's `GRPOConfig` plus the settings of rollouts on a database."""

# ruff: noqa: RUF009 - `option` makes a field
from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar

from trl import GRPOConfig

from trl_dbbench.advantages.estimators import grpo
from trl_dbbench.advantages.registry import AdvantageFunction, check_needs, get_advantage
from trl_dbbench.engines.base import server_addresses, servers_asked
from trl_dbbench.episode.chat import HISTORIES
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.few_shot import DEFAULT_WAY, WAYS, check_few_shot
from trl_dbbench.tasks.stages import ORDERS
from trl_dbbench.training.combinations import check_combinations
from trl_dbbench.training.importance_sampling import MODES, NO_CORRECTION, compares_with_rollout
from trl_dbbench.training.samplers import check_task_sampling
from trl_dbbench.training.stage_adapters import WAYS as ADAPTER_WAYS
from trl_dbbench.training.stage_adapters import check_stage_adapters
from trl_dbbench.training.stream import REPLAY_SIZE, REPLAYS, check_stream
from trl_dbbench.training.unsupported import check_settings, check_values, use_new_names
from trl_dbbench.utils.console import shows_bars
from trl_dbbench.utils.lookup import check_choice
from trl_dbbench.utils.settings import check_numbers, option, written_types

ACCURACY = "eval_accuracy_void_wrong"
"""Evaluation metric that selects the best model."""


class _Single(int):
    """A `num_generations` of 1, for advantages without groups, that passes TRL's check for at least 2."""

    def __lt__(self, other: int) -> bool:
        return False


@dataclass
class DBBenchGRPOConfig(GRPOConfig):
    """Configuration of [`DBBenchGRPOTrainer`]: TRL's [`~trl.GRPOConfig`] plus the options below.

    Settings that rollouts cannot use (`training/unsupported.py`) and invalid combinations
    (`training/combinations.py`) raise ConfigError.
    """

    # --- episodes ---
    protocol: str = option(
        "text",
        "How agent and database talk: text, tools, text_sql, tools_sql, or the dotted path of your own "
        "(episode.protocol.AgentProtocol).",
    )
    chat_template: str | None = option(
        None,
        "Replaces the model's chat template, in the saved model too: a jinja file, or the name of one of "
        "TRL's, as qwen3_training. Left out: the model's own, or one with the same prompts that keeps "
        "earlier thoughts if the model's drops them.",
    )
    adapter_name_or_path: str | None = option(
        None,
        "An adapter to train further: a folder or a hub id. beta then keeps the policy close to this "
        "adapter.",
    )
    harness: str | None = option(
        None,
        "A program of yours that plays the episodes by calling a chat API: the dotted path of a function, "
        "my_agent.py:run, or a command line (docs/harness.md).",
    )
    harness_seconds: float = option(300.0, "Time limit of a program, in seconds.")
    history: str = option(
        "kept",
        "What a turn reads of earlier ones: all as it was written (kept), or what the chat template shows "
        "(template), as where it drops thoughts; then an episode is trained as several sequences.",
        HISTORIES,
    )
    compaction_tokens: int | None = option(
        None, "Compact prompt and earlier turns where they have more tokens than this; left out, never."
    )
    compaction: str = option(
        "drop",
        "With compaction_tokens: the agent no longer reads the oldest turns (drop), or it writes a summary, "
        "which is trained too, and continues from that (summary).",
        ("drop", "summary"),
    )
    max_turns: int = option(3, "Maximum number of turns of an episode.")
    max_turn_tokens: int = option(512, "Maximum number of tokens that the agent may write in a turn.")
    max_completion_length: int = option(
        2048, "Maximum number of tokens of an episode after its prompt, observations included."
    )
    observation_characters: int = option(800, "Longer observations are cut and marked. 0 cuts nothing.")
    grader: str | None = option(
        None, "Judges the answers to all questions: a name or a dotted path; left out, each task's own."
    )

    # --- greedy evaluation ---
    greedy_eval: str = option(
        "batch",
        "Greedy run of each prompt before its update, with the weights the update starts from: in the "
        "samples' batch (batch), in a pass of its own, which leaves training bit-equal to training without "
        "(separate), or off.",
        ("batch", "separate", "off"),
    )
    greedy_eval_every: int = option(1, "Rollouts from one greedy run to the next; the first has one.")
    num_generations_eval: int | None = option(
        1, "Samples of a prompt in an evaluation. It is greedy, so one is enough."
    )

    # --- advantages ---
    advantage: str = option(
        "grpo", "What each token gets of its episode's reward: a name (docs/credit.md) or a dotted path."
    )
    advantage_args: dict | str | None = option(
        None, "Keyword arguments of the advantage: {gamma: 0.9}; as JSON on the command line."
    )

    # --- few-shot ---
    few_shot: int = option(
        0,
        "Number of right episodes of other tasks shown before the question, as earlier turns; fewer where "
        "they do not fit.",
    )
    few_shot_memory: str | None = option(
        None, "With few_shot: where they come from, a run's output_dir or a JSONL file of episodes."
    )
    few_shot_by: str = option(
        DEFAULT_WAY,
        "With few_shot: those most like the task by words (bm25) or skills (skill), the latest right ones "
        "(latest), or any (random).",
        WAYS,
    )
    few_shot_update: bool = option(
        False, "With few_shot: right episodes of the run join the memory, the last one of each task."
    )

    # --- engine ---
    engine: str | None = option(
        None,
        "What generates: transformers, vllm or the dotted path of your own (engines.base.Backend); left "
        "out, vllm with use_vllm or vllm_server_urls.",
    )
    vllm_server_urls: list[str] | None = option(
        None,
        "Addresses of vLLM servers that generate, as http://10.0.0.7:8000. With LoRA they must see "
        "output_dir under the same path, to load the adapter from it; full weights are sent over NCCL.",
    )
    vllm_server_timeout: float = option(600.0, "Seconds to wait for vLLM servers when none of them answers.")
    rollouts_ahead: int = option(
        0,
        "Batches that vLLM servers play ahead while an earlier one is trained on, 0 to 2. The weights that "
        "play a batch are up to this many batches old.",
    )
    max_concurrent_episodes: int | None = option(
        None,
        "Episodes that the transformers engine plays at a time; the others wait for one to end. Left out: "
        "as many as fit into the free memory.",
    )
    use_rollout_logprobs: bool = option(
        False, "Take the old log-probabilities of the loss from the rollout, not from TRL's scoring."
    )
    rollout_correction: str = option(
        NO_CORRECTION,
        "How the loss corrects for older weights in the rollout, by importance sampling, within "
        "vllm_importance_sampling_clip_min and _max; none leaves it to the loss's clipping.",
        (NO_CORRECTION, *MODES),
    )
    shared_prefix: str = option(
        "auto",
        "Training computes a prompt once for all its episodes, where that is known to be right (auto), or "
        "once for each (off). auto also draws the prompt's dropout once for all.",
        ("auto", "off"),
    )
    max_tokens_per_forward: int | None = option(
        None,
        "Maximum number of tokens in a forward and backward pass, padding included: a micro-batch is divided "
        "into such parts, with the same loss and gradient. A longer row is a part of its own. Left out: as "
        "many as fit into the free memory.",
    )

    # --- KL ---
    reference_model_name_or_path: str | None = option(
        None, "A frozen model as the KL reference, instead of the model with its adapter off. Needs beta."
    )
    kl_reference: str = option(
        "base",
        "What beta keeps the policy close to: TRL's reference or reference_model_name_or_path (base), the "
        "policy that played (rollout), or with stream the one before the stage (stage).",
        ("base", "rollout", "stage"),
    )
    kl_in_reward: bool = option(
        False, "Take beta times an episode's log ratio from its reward, instead of adding the KL to the loss."
    )

    # --- tasks ---
    task_sampling: str = option(
        "shuffle",
        "How the next task is chosen: each once an epoch (shuffle), by drawing a skill and then a task of it "
        "(skill), or with a preference for tasks that the agent sometimes solves (frontier).",
        ("shuffle", "skill", "frontier"),
    )
    sampled_skills: list[str] | None = option(
        None, "With task_sampling skill: the skills to draw from; left out, all."
    )
    min_tasks_per_skill: int = option(1, "With task_sampling skill: skills with fewer tasks are left out.")
    single_skill: bool = option(False, "With task_sampling skill: only tasks that have one skill.")
    stream: list[str] | None = option(
        None,
        "Train on one stage of tasks after another (docs/lifelong.md): skills, operations, databases, file, "
        "or names of skills or operations in their order.",
    )
    stream_order: str = option(
        "fixed",
        "With stream: the order of the stages: fixed, random, difficulty (fewest skills a task first), or "
        "mixed: one stage of all tasks.",
        ORDERS,
    )
    stage_steps: int | None = option(None, "With stream: maximum number of updates of a stage.")
    stage_tasks: int | None = option(
        None, "With stream: maximum number of tasks of a stage; with stream: file, its size."
    )
    stage_accuracy: float | None = option(
        None, "With stream: greedy accuracy over the last 32 tasks, 0 to 1, at which a stage ends."
    )
    stage_adapters: str = option(
        "one",
        "With stream: one adapter for all stages, or an adapter for each, which plays its stage's held-out "
        "tasks (each) or is merged with the others by PEFT (linear, ties, dare_linear).",
        ADAPTER_WAYS,
    )
    replay: float = option(0.0, "With stream: share of the prompts that come from earlier stages, 0 to 1.")
    replay_size: int = option(
        REPLAY_SIZE, "With replay: number of earlier tasks that are kept, drawn at random."
    )
    replay_by: str = option(
        "uniform",
        "With replay: all kept tasks equally often (uniform), or more often those that were solved less when "
        "last played (accuracy).",
        REPLAYS,
    )
    dynamic_sampling: bool = option(
        False, "Play further prompts in place of groups whose episodes all have the same reward (DAPO)."
    )
    dynamic_sampling_rounds: int = option(
        3, "With dynamic_sampling: maximum number of rounds of further prompts."
    )

    # --- alarms ---
    alarm_window: int = option(10, "Logged values whose mean an alarm compares with its threshold.")
    alarm_invalid_actions: float = option(
        0.3, "Warn above this share of unreadable turns. 1 disables the alarm."
    )
    alarm_answers_without_query: float = option(
        0.3, "Warn above this share of answers without a query. 1 disables the alarm."
    )
    alarm_groups_without_spread: float = option(
        0.9, "Warn above this share of groups whose rewards are all equal. 1 disables the alarm."
    )
    alarm_errors: float = option(
        0.3, "Warn if more than this share of statements fail with one class of errors. 1 disables the alarm."
    )
    alarm_void: float = option(
        0.05, "Warn above this share of episodes whose environment failed. 1 disables the alarm."
    )
    alarm_distinct_sql: float = option(
        0.05,
        "Warn below this share of a group's pairs of episodes that executed different SQL. 0 disables the "
        "alarm.",
    )
    alarm_entropy: float = option(0.005, "Warn below this entropy, in nats per token. 0 disables the alarm.")

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "advantage_args"]

    def __post_init__(self):
        self._check_fields()
        single = self.num_generations == 1
        self.num_generations: int = _Single(1) if single else self.num_generations
        if vars(self)["disable_tqdm"] is None and not shows_bars():
            self.disable_tqdm = True
        check_numbers(self, type(self))
        check_values(self)
        use_new_names(self)
        self._measure_by_accuracy()
        super().__post_init__()
        self._turn_plateau()
        self.num_generations = int(self.num_generations)
        self.vllm_server_urls = servers_asked(partial(getattr, self))
        check_settings(self)
        check_combinations(self)
        get_protocol(self.protocol)
        if self.chat_template is not None:
            load_chat_template(self.chat_template)
        advantage = self.advantage_function()
        if single:
            check_needs(self.advantage, advantage, "groups")
        check_few_shot(self.few_shot, self.few_shot_memory, self.few_shot_by, self.few_shot_update)
        check_task_sampling(self)
        check_stream(self)
        check_stage_adapters(self)
        if self.vllm_server_urls is not None:
            self.vllm_server_urls = server_addresses(self.vllm_server_urls)

    def _measure_by_accuracy(self) -> None:
        """Make accuracy the default metric for the best model and reduce_lr_on_plateau, instead of the loss.

        The evaluation loss is 0, since a single greedy sample has no advantage. With beta it is the KL alone,
        which is lowest before training.
        """
        plateau = self.lr_scheduler_type == "reduce_lr_on_plateau"
        if not (self.load_best_model_at_end or plateau or self.save_strategy == "best"):
            return
        measure = vars(self)["metric_for_best_model"]
        if measure in ("loss", "eval_loss"):
            raise ConfigError(
                f"metric_for_best_model: {measure} says nothing of the model: an evaluation's loss is 0, or "
                f"the KL alone. Leave it out for {ACCURACY}, or name another measure, such as eval_reward."
            )
        if measure is None:
            self.metric_for_best_model = ACCURACY
            self.greater_is_better = True

    def _turn_plateau(self) -> None:
        """Set the mode of reduce_lr_on_plateau by `greater_is_better`; its default always expects a fall."""
        if self.lr_scheduler_type != "reduce_lr_on_plateau":
            return
        mode = "max" if self.greater_is_better else "min"
        kwargs = vars(self)["lr_scheduler_kwargs"] or {}
        if (given := kwargs.get("mode", mode)) != mode:
            raise ConfigError(
                f"lr_scheduler_kwargs: mode: {given} contradicts greater_is_better: "
                f"{str(self.greater_is_better).lower()}, which asks for {mode}. Leave mode out."
            )
        self.lr_scheduler_kwargs = {**kwargs, "mode": mode}

    def _check_fields(self) -> None:
        """Raise ConfigError for a value that is not among its setting's choices, and for an empty one where a
        value is needed, such as `few_shot:` in a YAML. Turn a single string into a list where a list is
        expected, as the command line does."""
        types = written_types(type(self))
        for each in fields(self):
            value = getattr(self, each.name)
            ours = GRPOConfig.__dataclass_fields__.get(each.name) is not each
            number = isinstance(each.default, int | float) and not isinstance(each.default, bool)
            optional = each.default is None or "None" in types[each.name] or each.name == "top_k"
            if (ours or number) and not optional and value is None:
                raise ConfigError(
                    f"{each.name} is empty; give it a value, or leave it out for its default, "
                    f"{each.default!r}."
                )
            choices = each.metadata.get("choices", ()) if ours else ()
            if value is False and "off" in choices:
                setattr(self, each.name, "off")  # as YAML reads a bare `off`
            elif choices:
                check_choice(each.name, value, choices)
            if types[each.name] == "list[str] | None" and isinstance(value, str):
                setattr(self, each.name, [value])

    def __getstate__(self) -> dict[str, object]:  # training_args.bin is pushed to the hub
        return vars(self) | {"hub_token": None}

    @property
    def needs_rollout_logprobs(self) -> bool:
        """True if the update uses the rollout's log-probabilities, so that engines must return them."""
        return (
            compares_with_rollout(self)
            or self.rollout_correction != NO_CORRECTION
            or self.off_policy_mask_threshold is not None
            or self.kl_reference == "rollout"
            or self.kl_in_reward
        )

    def advantage_function(self) -> AdvantageFunction | None:
        """Return a new function from `get_advantage`; `None` if TRL computes the advantages."""
        function = get_advantage(self.advantage, self.advantage_args)
        return grpo if function is None and self.kl_in_reward else function  # TRL has no penalties
