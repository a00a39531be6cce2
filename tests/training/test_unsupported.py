"""What TRL offers and a rollout on a database cannot use is refused, and nothing is opened before."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDataset
from peft import (
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    FalconMambaConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Mamba2Config,
    MambaConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2ForCausalLM,
    Qwen3NextConfig,
    RwkvConfig,
    get_scheduler,
    xLSTMConfig,
)
from trl import GRPOConfig

from trl_dbbench import ConfigError, DBBenchGRPOConfig, DBBenchGRPOTrainer, OutcomeReward, to_dataset
from trl_dbbench.engines.base import in_process_vllm
from trl_dbbench.engines.policy import Policy
from trl_dbbench.engines.transformers.backend import TransformersBackend
from trl_dbbench.engines.transformers.models import check_model
from trl_dbbench.runs.adapters import check_switched_off, with_adapter
from trl_dbbench.training.combinations import EXCLUSIONS, NEEDED
from trl_dbbench.training.unsupported import (
    BY_EVALUATIONS,
    REFUSED_SETTINGS,
    REFUSED_VALUES,
    TRACKERS,
    check_positions,
    default_of,
)

# Before you list a new field of TRL or transformers here, find out what it does to a rollout on a database.

WORKS = """
# the model and its reference
model_init_kwargs trust_remote_code disable_dropout cast_lm_head_to_fp32 router_aux_loss_coef beta
# prompts, groups and generations
num_generations num_generations_eval max_completion_length shuffle_dataset pad_to_multiple_of
generation_batch_size steps_per_generation temperature top_p top_k chat_template_kwargs
ds3_gather_for_generation
# vLLM
use_vllm vllm_mode vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port
vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size vllm_enable_sleep_mode vllm_model_impl
# advantages and the loss
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
num_iterations epsilon epsilon_high delta loss_type importance_sampling_level reward_weights
multi_objective_aggregation scale_rewards mask_truncated_completions top_entropy_quantile entropy_coef
use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
off_policy_mask_threshold use_bias_correction_kl
# updates
learning_rate per_device_train_batch_size num_train_epochs max_steps lr_scheduler_type
lr_scheduler_kwargs warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon
optim_target_modules gradient_accumulation_steps max_grad_norm seed full_determinism
# precision, memory and speed
bf16 fp16 tf32 activation_checkpointing activation_checkpointing_kwargs
gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend
torch_compile_mode use_liger_kernel liger_kernel_config torch_empty_cache_steps use_cpu
dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
dataloader_multiprocessing_context accelerator_config
# ranks
ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend
ddp_timeout fsdp fsdp_config deepspeed local_rank
# logs
log_completions num_completions_to_print log_unique_prompts log_completions_hub_repo logging_strategy
logging_steps logging_first_step log_on_each_node logging_nan_inf_filter log_level log_level_replica
disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
debug skip_memory_metrics
# evaluation
eval_strategy eval_steps eval_delay per_device_eval_batch_size eval_on_start
# checkpoints and the hub
output_dir save_only_model save_strategy save_steps save_on_each_node save_total_limit
load_best_model_at_end metric_for_best_model greater_is_better resume_from_checkpoint
restore_callback_states_from_checkpoint push_to_hub hub_token hub_private_repo hub_model_id
hub_strategy hub_always_push hub_revision
"""

WITHOUT_MEANING = """
# of images, of metrics that are computed from logits, of losses that are not GRPO's
log_multimodal prediction_loss_only eval_do_concat_batches eval_use_gather_object
eval_accumulation_steps include_for_metrics batch_eval_metrics label_names average_tokens_across_devices
# its samplers know no lengths
length_column_name
# the engine sets its own; scripts read these, trainers do not
use_cache do_train do_eval do_predict
# TRL refuses them itself, with words of its own
auto_find_batch_size parallelism_config
"""

OTHER_VALUES: dict[str, Any] = {
    "generation_kwargs": {"num_beams": 2},
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "vllm_structured_outputs_regex": "[0-9]+",
    "cache_implementation": "static",
    "transformers_continuous_batching_config": {"max_memory_percent": 0.3},
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_cap": 2.0,
    "max_tool_calling_iterations": 5,
    "train_sampling_strategy": "sequential",
    "data_seed": 3,
    "label_smoothing_factor": 0.1,
    "neftune_noise_alpha": 5.0,
    "include_num_input_tokens_seen": "all",
    "ref_model_mixup_alpha": 0.5,
    "ref_model_sync_steps": 8,
}
"""Switches are turned over."""


def names(table: str) -> list[str]:
    return [name for line in table.splitlines() if not line.startswith("#") for name in line.split()]


def config(output_dir: Path, **settings: Any) -> DBBenchGRPOConfig:
    return DBBenchGRPOConfig(output_dir=str(output_dir), use_cpu=True, bf16=False, **settings)


# --- settings -------------------------------------------------------------------------------------


def test_every_setting_of_trl_has_been_decided_on() -> None:
    refused = [name for name in REFUSED_SETTINGS if "." not in name]
    assert sorted([*names(WORKS), *names(WITHOUT_MEANING), *refused]) == sorted(
        field.name for field in fields(GRPOConfig)
    )


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("name", REFUSED_SETTINGS)
def test_a_setting_that_cannot_work_is_refused(name: str, tmp_path: Path) -> None:
    value = OTHER_VALUES.get(name, not default_of(name))
    owner, _, last = name.rpartition(".")
    settings = {owner: {last: value}} if owner else {name: value}
    with pytest.raises(ConfigError) as refused:
        config(tmp_path, **settings)
    assert str(refused.value).startswith(f"{name}={value!r} "), "what was given"
    assert str(refused.value).endswith(f". {REFUSED_SETTINGS[name].remedy}"), "what to do"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr_scheduler_type", "greedy"),
        *(
            ("optim", name)
            for name in ("lomo", "adalomo", "apollo_adamw_layerwise", "galore_adamw_layerwise")
        ),
        *(("optim", name) for name in ("galore_adamw_8bit_layerwise", "galore_adafactor_layerwise")),
    ],
)
def test_a_value_that_cannot_work_is_refused(name: str, value: str, tmp_path: Path) -> None:
    why, remedy = REFUSED_VALUES[name][value]
    with pytest.raises(ConfigError) as refused:
        config(tmp_path, eval_strategy="steps", eval_steps=1, **{name: value})
    assert str(refused.value) == f"{name}: {value} {why}. {remedy}"


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("name", ["every_n_layers", "offload"])
def test_checkpointing_that_the_first_rollout_would_end_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} would not outlast the first rollout"):
        config(tmp_path, gradient_checkpointing_kwargs={name: 2})


def test_their_defaults_are_not_refused(tmp_path: Path) -> None:
    config(tmp_path, **{name: default_of(name) for name in REFUSED_SETTINGS if "." not in name})


IN_PROCESS = {
    "vllm_gpu_memory_utilization": 0.8,
    "vllm_max_model_length": 4096,
    "vllm_tensor_parallel_size": 2,
    "vllm_enable_sleep_mode": True,
    "vllm_model_impl": "transformers",
}
SERVER = {
    "vllm_server_base_url": "http://10.0.0.7:8000",
    "vllm_server_host": "10.0.0.7",
    "vllm_server_port": 9000,
}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_settings_of_vllm_in_this_process_go_with_it_alone(name: str, tmp_path: Path) -> None:
    setting = {name: IN_PROCESS[name]}
    for without in (
        {},
        {"vllm_server_urls": ["http://10.0.0.7:8000"]},
        {"use_vllm": True, "vllm_mode": "server"},
    ):
        with pytest.raises(
            ConfigError, match=f"^{name} is a setting of vLLM in this process.*Set use_vllm: true"
        ):
            config(tmp_path, **setting, **without)
    for asked in ({"use_vllm": True}, {"use_vllm": True, "vllm_mode": "colocate"}, {"engine": "vllm"}):
        assert in_process_vllm(config(tmp_path, **setting, **asked))


@pytest.mark.parametrize("name", [*SERVER, "vllm_mode"])
def test_settings_of_a_server_go_with_vllm_mode_server_alone(name: str, tmp_path: Path) -> None:
    setting = {name: SERVER.get(name, "server")}
    needed = "use_vllm" if name == "vllm_mode" else "vllm_mode: server"
    with pytest.raises(ConfigError, match=f"^{name}: {setting[name]} is used only with {needed}; set that"):
        config(tmp_path, **setting)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, "http://0.0.0.0:8000"),
        ({"vllm_server_host": "10.0.0.7", "vllm_server_port": 9000}, "http://10.0.0.7:9000"),
        ({"vllm_server_base_url": "http://10.0.0.7:8000/"}, "http://10.0.0.7:8000"),
    ],
)
def test_vllm_mode_server_names_one_server_as_in_trl(settings, address: str, tmp_path: Path) -> None:
    args = config(tmp_path, use_vllm=True, vllm_mode="server", **settings)
    assert args.vllm_server_urls == [address]
    assert not in_process_vllm(args)


def test_two_engines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use_vllm: true and engine: transformers name two engines"):
        config(tmp_path, use_vllm=True, engine="transformers")


def test_servers_that_would_not_be_asked(tmp_path: Path) -> None:
    urls = ["http://10.0.0.8:8000"]
    with pytest.raises(
        ConfigError,
        match=r"^engine: transformers and vllm_server_urls: \['http://10.0.0.8:8000'\] exclude each",
    ):
        config(tmp_path, engine="transformers", vllm_server_urls=urls)
    trls = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://10.0.0.7:8000/"}
    with pytest.raises(
        ConfigError, match=r"vllm_server_urls: .*8:8000.* and vllm_server_base_url: .* different"
    ):
        config(tmp_path, vllm_server_urls=urls, **trls)
    same = ["http://10.0.0.7:8000"]
    assert config(tmp_path, vllm_server_urls=same, **trls).vllm_server_urls == same


@pytest.mark.parametrize("correction", ["token_tis", "sequence_tis"])
def test_a_truncation_without_a_bound(correction: str, tmp_path: Path) -> None:
    """torch.clamp refused it after the first rollout."""
    unbounded = {"rollout_correction": correction, "vllm_importance_sampling_clip_max": None}
    with pytest.raises(
        ConfigError, match=f"rollout_correction: {correction} needs a bound, .*; set one of them"
    ):
        config(tmp_path, **unbounded)
    config(tmp_path, vllm_importance_sampling_clip_min=0.5, **unbounded)


def test_a_mode_that_trl_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vllm_mode.*'local'.*server, colocate"):
        config(tmp_path, use_vllm=True, vllm_mode="local")


def test_vllm_that_is_not_installed(trainer_with, tiny_model, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("trl_dbbench.engines.vllm.in_process.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"vLLM is not installed here: pip install 'trl-dbbench\[vllm\]'"):
        trainer_with(model=str(tiny_model), args=config(tmp_path / "run", use_vllm=True))


# --- arguments: the model does not exist, so that to load it would be another error -----------------


@pytest.fixture
def trainer_with(sqlite_database, demo_tasks, tmp_path):
    def make(**given: Any) -> DBBenchGRPOTrainer:
        arguments = {
            "model": str(tmp_path / "no-such-model"),
            "reward_funcs": OutcomeReward(),
            "args": config(tmp_path / "run"),
            "train_dataset": to_dataset(demo_tasks[:4]),
            "database": sqlite_database,
        }
        return DBBenchGRPOTrainer(**arguments | given)

    return make


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one number.
        b: the other.

    Returns:
        The sum.
    """
    return a + b


@pytest.mark.parametrize(
    ("name", "value"), [("scale_rewards", "none"), ("multi_objective_aggregation", "normalize_then_sum")]
)
def test_how_trl_scales_rewards_goes_with_its_own_advantage(name, value, tmp_path):
    config(tmp_path, **{name: value})
    with pytest.raises(
        ConfigError, match=f"{name} has no effect on advantage: rloo, .* take advantage: grpo"
    ):
        config(tmp_path, advantage="rloo", **{name: value})


def test_what_trl_refuses_is_one_line(trainer_with, tiny_model, tmp_path):
    with pytest.raises(ConfigError, match=r"Number of reward weights \(2\) must match number of reward"):
        trainer_with(model=tiny_model, args=config(tmp_path, reward_weights=[1.0, 0.5]))


def test_the_output_layer_in_fp32_with_an_adapter_and_tied_weights(trainer_with, tiny_model, tmp_path):
    """TRL looked for the embeddings in the wrong module and ended in an AttributeError."""
    cast = config(tmp_path, cast_lm_head_to_fp32=True)
    with pytest.raises(ConfigError, match="cast_lm_head_to_fp32: TRL cannot cast the output layer"):
        trainer_with(model=tiny_model, args=cast, peft_config=LoraConfig())
    trainer_with(model=tiny_model, args=cast)


def test_two_rewards_of_one_name(trainer_with, tiny_model):
    """Their values would be one column."""
    rewards = [lambda episode, **_: [1.0] * len(episode) for _ in range(2)]
    with pytest.raises(ConfigError, match=r"two reward functions are named '<lambda>', .* its own name"):
        trainer_with(model=tiny_model, reward_funcs=rewards)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tools", [add], "train on the observations too.*set protocol: tools"),
        ("environment_factory", object, "train on the observations too.*give it as database="),
        ("rollout_func", print, "replaces the rollout on the database.*set engine to the dotted path"),
    ],
)
def test_what_would_replace_the_rollout(trainer_with, name, value, message):
    with pytest.raises(ConfigError, match=f"{name}= cannot be given to DBBenchGRPOTrainer: .*{message}"):
        trainer_with(**{name: value})


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
@pytest.mark.parametrize("kind", [dict, DatasetDict, IterableDataset])
def test_datasets_other_than_one_of_known_length(trainer_with, demo_tasks, name, kind):
    rows: Dataset = to_dataset(demo_tasks[:4])
    given = rows.to_iterable_dataset() if kind is IterableDataset else kind({"easy": rows})
    with pytest.raises(ConfigError, match=rf"{name} is a {kind.__name__}; allowed is one datasets\.Dataset"):
        trainer_with(**{name: given})


def test_without_a_dataset(trainer_with):
    with pytest.raises(ConfigError, match="train_dataset is a NoneType; allowed is one"):
        trainer_with(train_dataset=None)


def test_settings_of_trls_own_trainer(trainer_with, tmp_path):
    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(ConfigError, match="args is a GRPOConfig; give a DBBenchGRPOConfig"):
        trainer_with(args=args)


def test_a_process_that_sees_several_gpus(trainer_with, tmp_path):
    """TRL would divide the model over them."""
    args = config(tmp_path)
    args._n_gpu = 2
    with pytest.raises(ConfigError, match=r"this process sees 2 GPUs.*CUDA_VISIBLE_DEVICES=0"):
        trainer_with(args=args)


def test_an_adapter_that_is_not_trained(trainer_with, tiny_model, tmp_path):
    """PEFT loads it so; with gradient checkpointing a training would run to its end and change nothing."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig())
    model.save_pretrained(tmp_path)
    frozen = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path)
    with pytest.raises(ConfigError, match=r"no weight of the model is trainable.*is_trainable=True"):
        trainer_with(model=frozen)


PROMPT_LEARNING = [
    PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
]
KINDS = [config.peft_type.value for config in PROMPT_LEARNING]


@pytest.mark.parametrize("adapter", PROMPT_LEARNING, ids=KINDS)
def test_prompt_learning(trainer_with, tiny_model, adapter):
    message = rf"of the type {adapter.peft_type.value} \(prompt learning\) would sample from another policy"
    with pytest.raises(ConfigError, match=message):
        trainer_with(peft_config=adapter)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), replace(adapter))
    with pytest.raises(ConfigError, match=message):
        trainer_with(model=model)
    with pytest.raises(ConfigError, match=message):  # an evaluation
        TransformersBackend(Policy(model, AutoTokenizer.from_pretrained(tiny_model)))


@pytest.mark.parametrize("adapter", [{"init_lora_weights": "pissa"}, {"bias": "lora_only"}])
@pytest.mark.parametrize(
    "settings", [{"beta": 0.1}, {"beta": 0.1, "kl_in_reward": True}, {"advantage": "prime"}], ids=str
)
def test_a_base_that_its_adapter_changes(trainer_with, tiny_model, adapter, settings):
    """PiSSA takes the largest singular values out of the base's weights: without the adapter nothing is right."""
    config = LoraConfig(r=4, target_modules=["q_proj"], **adapter)
    message = f"^{'advantage: prime' if 'advantage' in settings else 'beta'} needs the base model without its adapter"
    with pytest.raises(ConfigError, match=message):
        trainer_with(
            peft_config=config, args=DBBenchGRPOConfig(output_dir="unused", use_cpu=True, **settings)
        )


def test_an_adapter_that_begins_at_random_when_it_is_loaded(trainer_with, tiny_model, tmp_path):
    """Loaded again, it is another policy: in a resumed run, an evaluation and a merge."""
    config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa_niter_4")
    ids, message = torch.arange(5, 25)[None], "begins at random whenever the adapter is loaded"
    with pytest.raises(ConfigError, match=message):
        trainer_with(peft_config=config)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path)
    assert not torch.allclose(model(ids).logits, again(ids).logits, atol=0.1), "what is refused"
    with pytest.raises(ConfigError, match=message):
        with_adapter(AutoModelForCausalLM.from_pretrained(tiny_model), str(tmp_path))


def test_a_base_that_its_adapter_changes_and_that_nothing_needs(tiny_model):
    config = LoraConfig(init_lora_weights="olora", target_modules=["q_proj"])
    for settings in ({}, {"beta": 0.1, "kl_reference": "rollout"}):
        check_switched_off(config, DBBenchGRPOConfig(output_dir="unused", use_cpu=True, **settings))
    config = LoraConfig(init_lora_weights="gaussian", target_modules=["q_proj"])
    check_switched_off(config, DBBenchGRPOConfig(output_dir="unused", use_cpu=True, beta=0.1))


STATE_SPACE = [MambaConfig, Mamba2Config, FalconMambaConfig, RwkvConfig, xLSTMConfig]
"""transformers 5.24 hands the states of all but RWKV by the argument that other models have for keys and values."""


@pytest.mark.parametrize("config", STATE_SPACE, ids=lambda c: c.model_type)
def test_state_space_models(trainer_with, tmp_path, config: type[PretrainedConfig]):
    """There are no weights in the folder."""
    name = f"{config.__name__.removesuffix('Config')}ForCausalLM"
    config(architectures=[name]).save_pretrained(tmp_path / "model")
    message = f"{name} cannot play episodes: its forward pass takes no keys and values of what came before"
    with pytest.raises(ConfigError, match=message):
        trainer_with(model=str(tmp_path / "model"))


def test_a_state_space_model_that_is_loaded_already(trainer_with, tokenizer):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(MambaConfig(num_hidden_layers=1, hidden_size=8))
    for use in (lambda: trainer_with(model=model), lambda: TransformersBackend(Policy(model, tokenizer))):
        with pytest.raises(ConfigError, match="MambaForCausalLM cannot play episodes"):
            use()


def test_hybrids_and_adapters_that_change_layers_are_no_such_models(tiny_model):
    layers = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_experts": 2, "num_experts_per_tok": 1}
    with torch.device("meta"):
        check_model(AutoModelForCausalLM.from_config(Qwen3NextConfig(**layers, **sizes)))
    check_model(get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig()))


def test_a_model_that_passes_on_what_it_gets_can_play() -> None:
    """As a class does that only looks at the arguments of the model it extends."""

    class Looking(Qwen2ForCausalLM):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    check_model(Looking)


# --- trackers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_is_told_at_once(name, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_dbbench.training.unsupported.find_spec", lambda module: None)
    message = (
        rf"report_to: {name} needs a package that is not there: pip install 'trl-dbbench\[{name}\]'\. Without a "
        r"tracker \(report_to: none\) all metrics are in metrics\.jsonl of output_dir\."
    )
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=name)


def test_a_tracker_that_nobody_knows(tmp_path):
    with pytest.raises(
        ConfigError, match="unknown report_to 'wandbb'; allowed: none, wandb, tensorboard, trackio"
    ):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=["wandbb"])
    for nothing in ("none", []):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=nothing)


def test_remote_code_is_trusted_in_one_place(tmp_path: Path) -> None:
    """In model_init_kwargs alone it would count for the weights, and not for tokenizer and config."""
    kwargs = {"trust_remote_code": True}
    with pytest.raises(ConfigError, match="Set trust_remote_code: true beside model_init_kwargs"):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, model_init_kwargs=kwargs)


def test_combinations_are_of_settings_that_exist():
    listed = [(some, needed) for some, needed in NEEDED.items()] + [each[:2] for each in EXCLUSIONS]
    settings = {setting for both in listed for each in both for setting in each.split("; ")}
    assert {each.partition(": ")[0] for each in settings} <= {each.name for each in fields(DBBenchGRPOConfig)}


# --- what goes by a measure of evaluations ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {"load_best_model_at_end": True},
        {"lr_scheduler_type": "reduce_lr_on_plateau"},
        {"save_strategy": "best"},
    ],
    ids=str,
)
def test_the_best_model_is_the_most_accurate(setting: dict[str, Any], tmp_path: Path) -> None:
    """The loss of an evaluation's one greedy sample is always 0, and so the first checkpoint was the best."""
    saved = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "save_strategy": "steps"}
    saved |= {"use_cpu": True, "bf16": False, **setting}
    args = DBBenchGRPOConfig(output_dir=str(tmp_path), **saved)
    assert (args.metric_for_best_model, args.greater_is_better) == ("eval_accuracy_void_wrong", True)
    other = DBBenchGRPOConfig(
        output_dir=str(tmp_path),
        metric_for_best_model="eval_reward",
        greater_is_better=True,
        **saved,
    )
    assert other.metric_for_best_model == "eval_reward"
    with pytest.raises(ConfigError, match="metric_for_best_model: loss says nothing of the model"):
        DBBenchGRPOConfig(output_dir=str(tmp_path), metric_for_best_model="loss", **saved)


@pytest.mark.parametrize("name", BY_EVALUATIONS)
def test_what_goes_by_evaluations_needs_some(name: str, tmp_path: Path) -> None:
    """`save_strategy: best` without one saved no checkpoint at all."""
    value = BY_EVALUATIONS[name]
    message = f"^{name}: {str(value).lower()} goes by evaluations .* Set eval_strategy: steps, and eval_steps"
    for nothing in ({}, {"eval_strategy": "no"}):
        with pytest.raises(ConfigError, match=message):
            config(tmp_path, **{name: value}, **nothing)


@pytest.mark.parametrize("better", ["greater", "less"])
def test_the_learning_rate_falls_where_the_measure_no_longer_improves(better: str, tmp_path: Path) -> None:
    """It fell while the accuracy rose: transformers' schedule waits for a fall of any measure."""
    settings = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1}
    if better == "less":
        settings |= {"metric_for_best_model": "eval_turns", "greater_is_better": False}
    args = config(tmp_path, lr_scheduler_kwargs={"patience": 0}, **settings)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = get_scheduler(
        args.lr_scheduler_type, optimizer, scheduler_specific_kwargs=args.lr_scheduler_kwargs
    )
    rates = []
    for accuracy in (0.2, 0.5, 0.8, 0.8):
        schedule.step(accuracy if better == "greater" else 1 - accuracy)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1.0, 1.0, 1.0, 0.1])
    wrong = "min" if better == "greater" else "max"
    with pytest.raises(ConfigError, match=f"mode: {wrong} contradicts greater_is_better.* Leave mode out"):
        config(tmp_path, lr_scheduler_kwargs={"mode": wrong}, **settings)


@pytest.mark.parametrize(
    "name",
    [
        "max_grad_norm",
        "learning_rate",
        "logging_steps",
        "seed",
        "per_device_train_batch_size",
        "epsilon",
        "beta",
    ],
)
def test_a_number_of_trls_that_is_left_empty(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"{name} is empty; give it a value, or leave it out for its default"
    ):
        DBBenchGRPOConfig(output_dir=str(tmp_path), **{name: None})


def test_learned_positions_are_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32))
    with pytest.raises(ConfigError, match="has a table of learned positions"):
        check_positions(model)


def test_the_context_of_longrope_ends_where_its_factors_change() -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 1e4}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    config = Phi3Config(
        **sizes,
        vocab_size=32,
        pad_token_id=0,
        max_position_embeddings=131_072,
        original_max_position_embeddings=4096,
        rope_parameters=rope,
    )
    assert Policy(SimpleNamespace(config=config), None).context == 4096
