"""`DBBenchGRPOConfig`: TRL's `GRPOConfig` plus what a rollout with a database needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from trl import GRPOConfig

from trl_dbbench.advantages.estimators import grpo
from trl_dbbench.advantages.registry import AdvantageFunction, check_needs, get_advantage
from trl_dbbench.engines.base import server_addresses
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.few_shot import DEFAULT_WAY, WAYS, check_few_shot
from trl_dbbench.training.alarms import check_alarms
from trl_dbbench.training.importance_sampling import (
    MODES,
    NO_CORRECTION,
    check_correction,
    uses_rollout_logprobs,
)
from trl_dbbench.training.kl import check_reference
from trl_dbbench.training.samplers import check_task_sampling
from trl_dbbench.training.unsupported import check_settings, check_values, use_new_names
from trl_dbbench.utils.console import shows_bars
from trl_dbbench.utils.lookup import check_choice

CHOICES = {
    "greedy_eval": ("batch", "separate", "off"),
    "shared_prefix": ("auto", "off"),
    "kl_reference": ("base", "rollout"),
    "task_sampling": ("shuffle", "skill", "frontier"),
    "rollout_correction": (NO_CORRECTION, *MODES),
}


class _Single(int):
    """One sample a prompt, for advantages without groups: TRL would refuse it as less than 2."""

    def __lt__(self, other: int) -> bool:
        return False


@dataclass
class DBBenchGRPOConfig(GRPOConfig):
    r"""
    Configuration of [`DBBenchGRPOTrainer`].

    Only what differs from [`~trl.GRPOConfig`] is listed. `mask_truncated_completions` leaves out episodes
    that ran out of tokens or ended in a turn that was cut off. Settings that rollouts cannot use are
    refused; `training/unsupported.py` says why.

    Args:
        protocol (`str`, *optional*, defaults to `"text"`):
            How agent and database talk: `"text"`, `"tools"`, or the dotted path of your own (see
            `protocol.AgentProtocol`).
        chat_template (`str`, *optional*):
            Replaces the model's chat template: the path of a jinja file, or the name of one of TRL's
            (`qwen3_training`). The saved model has it too. Left out, the model's own is used, or TRL's
            variant of it for training where the own one drops the thoughts of earlier turns.
        adapter_name_or_path (`str`, *optional*):
            Trains this adapter further. `beta` then keeps the policy close to the adapter as it was, as TRL
            does, not to the model without it.
        max_turns (`int`, *optional*, defaults to `3`):
            Turns of an episode at most.
        max_turn_tokens (`int`, *optional*, defaults to `512`):
            Tokens that the agent may write in one turn.
        max_completion_length (`int`, *optional*, defaults to `2048`):
            Tokens of an episode after its prompt, observations included.
        observation_characters (`int`, *optional*, defaults to `800`):
            Longer observations are cut and marked. `0` cuts nothing.
        greedy_eval (`str`, *optional*, defaults to `"batch"`):
            Greedy run of each prompt before its sampled update, with the weights that the update starts
            from: `"batch"` decodes it beside the samples, at little cost; `"separate"` in a pass of its own,
            which leaves training bit-equal to training without; `"off"` does without.
        greedy_eval_every (`int`, *optional*, defaults to `1`):
            The greedy run precedes every so many rollouts, beginning with the first.
        advantage (`str`, *optional*, defaults to `"grpo"`):
            What each token gets of its episode's reward: `"grpo"`, TRL's own, another name of
            `docs/credit.md`, or the dotted path of your own function (see `advantages.AdvantageBatch`).
        advantage_args (`dict`, *optional*):
            Keyword arguments of the advantage, such as `{gamma: 0.9}`.
        few_shot (`int`, *optional*, defaults to `0`):
            So many right episodes of other tasks stand before the question, as earlier turns of the prompt;
            fewer where they do not fit the context. See `docs/training.md`.
        few_shot_memory (`str`, *optional*):
            With `few_shot`, where they come from: the `output_dir` of a run, or a JSONL file of episodes.
        few_shot_by (`str`, *optional*, defaults to `"bm25"`):
            With `few_shot`, which of them are shown: those most like the task by the words of question,
            schema and skills (`"bm25"`) or by their skills (`"skill"`), or any (`"random"`).
        few_shot_update (`bool`, *optional*, defaults to `False`):
            With `few_shot`, right episodes of the run itself join the memory, the last one of each task
            (experience replay).
        grader (`str`, *optional*):
            Judges the answers to all questions, instead of the grader that each task names: a name from
            `grading.GRADERS`, or the dotted path of your own function.
        engine (`str`, *optional*):
            What generates: `"transformers"`, the model in this process; `"vllm"`, the servers of
            `vllm_server_urls`; or the dotted path of your own (see `engines.base.Backend`). Left out, vLLM
            where servers are named, else transformers.
        use_rollout_logprobs (`bool`, *optional*, defaults to `False`):
            Take the old log-probabilities of the loss from the rollout, instead of TRL's own scoring pass
            (or of a ratio of 1 where there is none).
        rollouts_ahead (`int`, *optional*, defaults to `0`):
            So many batches are played, on vLLM servers, while an earlier one is trained on: 0, 1 or 2. Their
            weights are so many generations old (see `docs/models.md`).
        rollout_correction (`str`, *optional*, defaults to `"none"`):
            What becomes of tokens that the policy would choose otherwise by now: `"token_tis"`,
            `"token_mask"`, `"sequence_tis"` or `"sequence_mask"` (see `training/importance_sampling.py`), bounded by TRL's
            `vllm_importance_sampling_clip_max` and `_clip_min`; `"none"` leaves it to the loss's clipping.
        shared_prefix (`str`, *optional*, defaults to `"auto"`):
            `"auto"` computes a prompt once for all its episodes of a batch in the forward passes of training,
            where that is known to be right; `"off"` computes it for each. With dropout, `"auto"` draws once
            for them too.
        reference_model_name_or_path (`str`, *optional*):
            A frozen model of its own as the KL reference. Without it, and with LoRA, the reference is the
            model with its adapter off. Needs `beta` above 0.
        kl_reference (`str`, *optional*, defaults to `"base"`):
            What `beta` keeps the policy close to: `"base"`, the model that TRL takes or
            `reference_model_name_or_path`; `"rollout"`, the policy that played the episodes, by its own
            log-probabilities.
        kl_in_reward (`bool`, *optional*, defaults to `False`):
            Take `beta` times the log ratio of an episode's sampled tokens, policy over reference, from its
            reward, instead of adding the KL to the loss.
        task_sampling (`str`, *optional*, defaults to `"shuffle"`):
            How the next training task is found: `"shuffle"` takes every task once an epoch, in random order;
            `"skill"` draws a skill, each as likely as another, then a task of it; `"frontier"` takes those
            that the agent is likely to solve now and then, by how it does in the run (see
            `docs/training.md`). An epoch has as many places as there are tasks in each case.
        sampled_skills (`list[str]`, *optional*):
            With `task_sampling: skill`, the skills to draw from; all that the tasks have if left out.
        min_tasks_per_skill (`int`, *optional*, defaults to `1`):
            With `task_sampling: skill`, skills with fewer tasks are left out.
        single_skill (`bool`, *optional*, defaults to `False`):
            With `task_sampling: skill`, only tasks that have one skill and no other.
        dynamic_sampling (`bool`, *optional*, defaults to `False`):
            Play further prompts in the place of groups whose episodes all have the same reward, which teach
            nothing (DAPO).
        dynamic_sampling_rounds (`int`, *optional*, defaults to `3`):
            With `dynamic_sampling`, so often at most; what is still missing then is trained on as it is.
        vllm_server_urls (`list[str]`, *optional*):
            Addresses of vLLM servers that generate instead of the model in this process, such as
            `http://10.0.0.7:8000`. With LoRA, the adapter is saved under `output_dir` before each rollout and
            loaded into the servers, which must see that folder under the same path. Full weights are sent
            over NCCL by TRL's client (`vllm_group_port` and the ports after it, one a server).
        alarm_window (`int`, *optional*, defaults to `10`):
            An alarm compares the mean of so many logged values, one every `logging_steps` updates.
        alarm_invalid_actions (`float`, *optional*, defaults to `0.3`):
            Warn when more than this share of the turns cannot be parsed (0 to 1; 1 disables the alarm).
        alarm_answers_without_query (`float`, *optional*, defaults to `0.3`):
            Warn when more than this share of the answers come without a statement before them (0 to 1; 1
            disables the alarm).
        alarm_groups_without_spread (`float`, *optional*, defaults to `0.9`):
            Warn when more than this share of the groups have one reward for all their episodes (0 to 1; 1
            disables the alarm).
        alarm_errors (`float`, *optional*, defaults to `0.3`):
            Warn when more than this share of the statements fail with one class of errors (0 to 1; 1 disables
            the alarm).
        alarm_void (`float`, *optional*, defaults to `0.05`):
            Warn when more than this share of the episodes is void as their environment failed (0 to 1; 1
            disables the alarm).
        alarm_distinct_sql (`float`, *optional*, defaults to `0.05`):
            Warn when less than this share of the pairs of a group's episodes executed different SQL (0 to 1;
            0 disables the alarm).
        alarm_entropy (`float`, *optional*, defaults to `0.005`):
            Warn when the policy's entropy, in nats per token, is below this (0 disables the alarm).
        num_generations_eval (`int`, *optional*, defaults to `1`):
            Evaluation is greedy, so one run of a prompt says it all.
    """

    protocol: str = field(
        default="text", metadata={"help": "How agent and database talk: text, tools or a dotted path."}
    )
    chat_template: str | None = field(
        default=None,
        metadata={
            "help": "Replaces the model's: a jinja file, or the name of one of TRL's, as qwen3_training."
        },
    )
    adapter_name_or_path: str | None = field(
        default=None, metadata={"help": "An adapter that is trained further: a folder or a hub id."}
    )
    max_turns: int = field(default=3, metadata={"help": "Turns of an episode at most."})
    max_turn_tokens: int = field(
        default=512, metadata={"help": "Tokens that the agent may write in one turn."}
    )
    max_completion_length: int = field(
        default=2048, metadata={"help": "Tokens of an episode after its prompt, observations included."}
    )
    observation_characters: int = field(
        default=800, metadata={"help": "Longer observations are cut and marked. 0 cuts nothing."}
    )
    greedy_eval: str = field(
        default="batch",
        metadata={
            "help": "Greedy run of each prompt before its update: in the samples' batch, in a pass of its "
            "own, or off.",
            "choices": list(CHOICES["greedy_eval"]),
        },
    )
    greedy_eval_every: int = field(
        default=1, metadata={"help": "The greedy run precedes every so many rollouts."}
    )
    advantage: str = field(
        default="grpo",
        metadata={"help": "What each token gets of its episode's reward: a name or a dotted path."},
    )
    advantage_args: dict | str | None = field(
        default=None,
        metadata={"help": "Keyword arguments of the advantage: {gamma: 0.9}; as JSON on the command line."},
    )
    few_shot: int = field(
        default=0, metadata={"help": "So many right episodes of other tasks stand before the question."}
    )
    few_shot_memory: str | None = field(
        default=None, metadata={"help": "With few_shot: a run's output_dir, or a JSONL file of episodes."}
    )
    few_shot_by: str = field(
        default=DEFAULT_WAY, metadata={"help": "With few_shot: which are shown.", "choices": list(WAYS)}
    )
    few_shot_update: bool = field(
        default=False, metadata={"help": "With few_shot: right episodes of the run join the memory."}
    )
    grader: str | None = field(
        default=None,
        metadata={
            "help": "Judges the answers to all questions: a name or a dotted path; left out, each task's own."
        },
    )
    engine: str | None = field(
        default=None,
        metadata={
            "help": "What generates: transformers, vllm or a dotted path; by default vllm if it has servers."
        },
    )
    use_rollout_logprobs: bool = field(
        default=False, metadata={"help": "Take the old log-probabilities of the loss from the rollout."}
    )
    rollouts_ahead: int = field(
        default=0,
        metadata={"help": "Batches that vLLM servers play while an earlier one is trained on: 0 to 2."},
    )
    rollout_correction: str = field(
        default=NO_CORRECTION,
        metadata={
            "help": "How the loss corrects for older weights in the rollout, by importance sampling.",
            "choices": list(CHOICES["rollout_correction"]),
        },
    )
    shared_prefix: str = field(
        default="auto",
        metadata={
            "help": "Training computes a prompt once for its episodes (auto), or for each (off).",
            "choices": list(CHOICES["shared_prefix"]),
        },
    )
    reference_model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "A frozen model as the KL reference, instead of the model with its adapter off."},
    )
    kl_reference: str = field(
        default="base",
        metadata={
            "help": "What beta keeps the policy close to: base, or rollout (the policy that played).",
            "choices": list(CHOICES["kl_reference"]),
        },
    )
    kl_in_reward: bool = field(
        default=False,
        metadata={"help": "Take beta times an episode's log ratio from its reward, not from the loss."},
    )
    task_sampling: str = field(
        default="shuffle",
        metadata={
            "help": "How the next task is found: shuffle, skill (draw a skill, then a task of it), or "
            "frontier (one that the agent solves now and then).",
            "choices": list(CHOICES["task_sampling"]),
        },
    )
    sampled_skills: list[str] | None = field(
        default=None, metadata={"help": "With task_sampling skill: the skills to draw from; left out, all."}
    )
    min_tasks_per_skill: int = field(
        default=1, metadata={"help": "With task_sampling skill: skills with fewer tasks are left out."}
    )
    single_skill: bool = field(
        default=False, metadata={"help": "With task_sampling skill: only tasks that have one skill."}
    )
    dynamic_sampling: bool = field(
        default=False,
        metadata={"help": "Play further prompts in the place of groups without spread in their rewards."},
    )
    dynamic_sampling_rounds: int = field(
        default=3, metadata={"help": "With dynamic_sampling: so often at most."}
    )
    vllm_server_urls: list[str] | None = field(
        default=None,
        metadata={
            "help": "vLLM servers that generate instead of the model in this process. With LoRA they "
            "must see output_dir under the same path, to load the adapter from it."
        },
    )
    alarm_window: int = field(
        default=10, metadata={"help": "Logged values whose mean an alarm compares with its threshold."}
    )
    alarm_invalid_actions: float = field(
        default=0.3, metadata={"help": "Warn above this share of unreadable turns. 1 disables the alarm."}
    )
    alarm_answers_without_query: float = field(
        default=0.3,
        metadata={"help": "Warn above this share of answers without a query. 1 disables the alarm."},
    )
    alarm_groups_without_spread: float = field(
        default=0.9,
        metadata={"help": "Warn above this share of groups with one reward. 1 disables the alarm."},
    )
    alarm_errors: float = field(
        default=0.3,
        metadata={
            "help": "Warn above this share of statements with one class of errors. 1 disables the alarm."
        },
    )
    alarm_void: float = field(
        default=0.05, metadata={"help": "Warn above this share of void episodes. 1 disables the alarm."}
    )
    alarm_distinct_sql: float = field(
        default=0.05,
        metadata={
            "help": "Warn below this share of a group's pairs with different SQL. 0 disables the alarm."
        },
    )
    alarm_entropy: float = field(
        default=0.005, metadata={"help": "Warn below this entropy, in nats per token. 0 disables the alarm."}
    )
    num_generations_eval: int | None = field(
        default=1, metadata={"help": "Evaluation is greedy, so one run of a prompt says it all."}
    )

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "advantage_args"]

    def __post_init__(self):
        single = self.num_generations == 1
        self.num_generations: int = _Single(1) if single else self.num_generations
        if vars(self)["disable_tqdm"] is None and not shows_bars():
            self.disable_tqdm = True
        check_values(self)
        use_new_names(self)
        super().__post_init__()
        self.num_generations = int(self.num_generations)
        for name in ("max_turns", "max_turn_tokens", "max_completion_length", "greedy_eval_every"):
            if (getattr(self, name) or 0) < 1:
                raise ConfigError(f"{name} must be at least 1, is {getattr(self, name)}.")
        for name, allowed in CHOICES.items():
            if getattr(self, name) is False and "off" in allowed:
                setattr(self, name, "off")  # as YAML reads a bare `off`
            check_choice(name, getattr(self, name), allowed)
        get_protocol(self.protocol)
        if self.chat_template is not None:
            load_chat_template(self.chat_template)
        advantage = self.advantage_function()
        if single:
            check_needs(self.advantage, advantage, "groups")
        check_reference(self)
        if self.observation_characters < 0:
            raise ConfigError(
                f"observation_characters must be 0 (no limit) or more, is {self.observation_characters}."
            )
        if self.temperature <= 0:
            raise ConfigError(
                f"temperature must be above 0, is {self.temperature}; GRPO needs rollouts that differ."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, is {self.top_p}.")
        check_few_shot(self.few_shot, self.few_shot_memory, self.few_shot_by, self.few_shot_update)
        check_task_sampling(self)
        if self.vllm_server_urls is not None:
            self.vllm_server_urls = server_addresses(self.vllm_server_urls)
        check_alarms(self)
        check_settings(self)
        check_correction(self)

    def __getstate__(self) -> dict[str, object]:  # training_args.bin is pushed to the hub
        return vars(self) | {"hub_token": None}

    @property
    def needs_rollout_logprobs(self) -> bool:
        """Whether something is trained on the rollout's log-probabilities, so that engines must know them."""
        return uses_rollout_logprobs(self)

    def advantage_function(self) -> AdvantageFunction | None:
        """What gives each token its advantage; `None` leaves what TRL computes. Another object each time.

        Raises:
            ConfigError: if there is none of that name, or it does not take its arguments.
        """
        function = get_advantage(self.advantage, self.advantage_args)
        return grpo if function is None and self.kl_in_reward else function  # TRL knows no penalties
