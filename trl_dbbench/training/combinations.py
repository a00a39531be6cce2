"""Settings that have no effect without another one, and settings that exclude each other.

Settings are written as in YAML, with semicolons between them. `replay` alone means any value but its default,
`history: template` that value, and `advantage: vine, tree` either of the two.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from trl_dbbench.errors import ConfigError

NEEDED = {
    "compaction": "compaction_tokens",
    "harness_seconds": "harness",
    "dynamic_sampling_rounds": "dynamic_sampling",
    "few_shot_by": "few_shot",
    "kl_reference; kl_in_reward; reference_model_name_or_path": "beta",
    "stage_steps; stage_tasks; stage_accuracy; replay": "stream",
    "stream_order; stage_adapters; kl_reference: stage": "stream",
    "replay_size; replay_by": "replay",
    "sampled_skills; min_tasks_per_skill; single_skill": "task_sampling: skill",
    "vllm_mode: server": "use_vllm",
    "vllm_server_base_url; vllm_server_host; vllm_server_port": "vllm_mode: server",
    "vllm_server_timeout; vllm_group_port": "vllm_server_urls",
    "vllm_importance_sampling_clip_max; vllm_importance_sampling_clip_min": "rollout_correction",
}
"""Settings -> the one without which they have no effect."""

EXCLUSIONS = (
    # the engine
    ("engine: transformers", "vllm_server_urls", "the former generates here, and would ask no server"),
    # the KL
    ("kl_reference: rollout, stage", "reference_model_name_or_path", "the former has its own reference"),
    ("kl_in_reward", "kl_reference: rollout", "the policy that played is no distance away from itself"),
    (
        *("kl_in_reward", "advantage: process_avg_unique, vine"),
        "this advantage does not go by the rewards of whole episodes, from which the KL is taken",
    ),
    (
        *("kl_in_reward", "multi_objective_aggregation: normalize_then_sum"),
        "the KL is taken from the sum of the rewards, not from each of them",
    ),
    (
        *("kl_in_reward", "scale_rewards: batch, none"),
        "rewards are then scaled by their group; of other advantages rloo scales nothing, and reinforce_pp "
        "by the batch",
    ),
    # older weights in the rollout
    (
        *("rollout_correction", "use_rollout_logprobs"),
        "the former compares the trainer's log-probabilities before the update with the rollout's, and the "
        "latter takes the rollout's for both",
    ),
    (
        *("rollout_correction: sequence_tis, sequence_mask", "loss_type: vespo"),
        "vespo takes a weight for each token, not one for a row; set token_tis or token_mask",
    ),
    (
        *("rollouts_ahead", "dynamic_sampling; task_sampling: frontier; few_shot; stream"),
        "the latter chooses what is played by what the batches before have shown, and the former plays "
        "before that is known",
    ),
    (
        *("rollouts_ahead", "advantage: vine"),
        "vine plays on from the middle of episodes with the weights that have played them, and by then there "
        "are newer ones",
    ),
    # the order of the tasks
    ("task_sampling: skill, frontier", "shuffle_dataset: false", "the former draws at random"),
    ("stream", "task_sampling: skill, frontier; shuffle_dataset: false", "a stream says what comes next"),
    ("stream", "load_best_model_at_end", "a stream ends with what its last stage made"),
    ("stream_order: mixed", "replay; stage_adapters", "there is one stage, and nothing before it"),
    ("stage_accuracy", "greedy_eval: off", "the greedy evaluation measures it"),
    ("stage_adapters", "kl_reference: stage", "each stage starts from the same weights; set base"),
    # episodes of several sequences
    (
        *("history: template; compaction_tokens; harness", "advantage: prime, gae; use_liger_kernel"),
        "the former makes an episode several sequences, and the latter needs one",
    ),
    (
        *(
            "harness; compaction: summary",
            "advantage: vine, tree, state, turn, token_wise, process_avg_unique",
        ),
        "this advantage needs turns that the protocol reads, which the former does not have; take grpo, "
        "rloo, reinforce, reinforce_pp or weighted",
    ),
    (
        *("harness", "history: template; compaction_tokens; few_shot"),
        "a harness writes its own messages, on which the latter has no effect",
    ),
)
"""Triples (settings, settings, why): none of the first goes together with any of the second."""


def check_combinations(args: Any) -> None:
    """Raise ConfigError for a setting without one that it needs, or with one that it excludes."""
    for some, needed in NEEDED.items():
        for one in some.split("; "):
            if _is_set(args, one) and not _is_set(args, needed):
                raise ConfigError(
                    f"{_told(args, one)} is used only with {needed}; set that, or leave it out."
                )
    for some, others, why in EXCLUSIONS:
        for one, other in product(some.split("; "), others.split("; ")):
            if _is_set(args, one) and _is_set(args, other):
                both = f"{_told(args, one)} and {_told(args, other)}"
                raise ConfigError(f"{both} exclude each other: {why}. Leave one of them out.")


def _is_set(args: Any, setting: str) -> bool:
    name, _, values = setting.partition(": ")
    if not values:
        return getattr(args, name) != args.__dataclass_fields__[name].default
    return _written(getattr(args, name)) in values.split(", ")


def _told(args: Any, setting: str) -> str:
    name = setting.partition(": ")[0]
    return f"{name}: {_written(getattr(args, name))}"


def _written(value: Any) -> str:
    """Return a value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
