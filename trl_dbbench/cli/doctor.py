"""Pre-flight checks of a recipe on this machine: seconds of checks before hours of training.

```
ok    settings: 61 keys, read by grpo_dbbench.py
ok    packages: Python 3.11.7, trl 1.16.0, ...
FAIL  database: Docker does not answer ... Start it ...
```

A `note` is worth a look but may be fine. A check that fails does not stop the others, unless the settings
cannot be read.
"""

from __future__ import annotations

import math
import os
import re
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.utils import logging
from transformers.utils.versions import require_version
from trl import ModelConfig, get_peft_config

from trl_dbbench.cli import bundled as shipped
from trl_dbbench.cli.arguments import RewardArguments, TaskArguments
from trl_dbbench.cli.start import RecipeParser, model_init_kwargs
from trl_dbbench.data.generate.fresh import SCHEME
from trl_dbbench.database import database_for, open_database
from trl_dbbench.database.open import DEFAULT_IMAGE, IMAGE_VARIABLE, databases_of
from trl_dbbench.database.server.docker import connect_to_docker
from trl_dbbench.engines.base import in_process_vllm, settings_asked
from trl_dbbench.engines.policy import Policy
from trl_dbbench.engines.transformers.backend import TransformersBackend
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import AgentProtocol, get_protocol
from trl_dbbench.episode.types import Episode, Rules
from trl_dbbench.errors import ConfigError, DatabaseError, DBBenchError, EngineError, loading, one_line
from trl_dbbench.evaluation.evaluate import evaluate
from trl_dbbench.harness.program import Programs
from trl_dbbench.rewards.registry import find_reward
from trl_dbbench.runs.adapters import adapter_settings, check_is_model
from trl_dbbench.runs.few_shot import Memory, load_memory
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Task, load_tasks
from trl_dbbench.training.memory import (
    REMEDIES,
    Place,
    Sizes,
    adapter_config,
    bytes_of,
    gb,
    longest_prompt,
    plan,
    quantized_bits,
)
from trl_dbbench.training.unsupported import wants_bf16
from trl_dbbench.utils.files import check_folder
from trl_dbbench.utils.memory import total_memory
from trl_dbbench.utils.settings import as_list

TASKS = 4
"""Tasks of the quickstart that `play_shipped` plays."""

FRESH_TASKS = 8
"""Tasks examined of an endless source (`generate://...`)."""

LIMITS = ("max_turns", "max_turn_tokens", "max_completion_length")

LARGEST_DIFFERENCE = 1e-3
"""Largest allowed difference between a token's log-probabilities in the rollout and in a training forward; a
few 1e-6 are usual on a CPU in fp32."""


def unmet() -> dict[str, str]:
    """Return this package's unmet requirements, each with what is installed instead."""
    try:
        wanted = [each.replace(" ", "") for each in requires("trl-dbbench") or [] if "extra ==" not in each]
    except PackageNotFoundError:  # run from a folder that is not installed
        return {}
    found = {}
    for each in wanted:
        try:
            require_version(each)
        except PackageNotFoundError:
            found[each] = "missing"
        except ImportError:
            found[each] = f"{version(re.split('[<>=!~]', each)[0])} is installed"
    return found


def play_shipped() -> str:
    """Play tasks of the quickstart with its model, on the CPU and the embedded database; return a summary."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads only wait for each other with a model this small
    logging.disable_progress_bar()
    try:
        model, episodes = _played(shipped.read_recipe(shipped.recipes()["quickstart"]))
        difference = largest_difference(model, episodes)
    except Exception as error:  # an untested version can raise anything
        raise EngineError(
            "no episode can be played with the installed versions of trl, transformers and torch: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error
    finally:
        torch.set_num_threads(threads)
    for episode in episodes:
        if episode.fault is not None:
            raise EngineError(f"the embedded database fails with the installed versions: {episode.fault}")
    if not difference <= LARGEST_DIFFERENCE:  # true for NaN, too
        raise EngineError(
            "with the installed versions of trl, transformers and torch, a rollout computes something else "
            f"than a training forward: log-probabilities differ by {difference:.2g}, allowed is "
            f"{LARGEST_DIFFERENCE:g}"
        )
    right = sum(episode.right for episode in episodes)
    return (
        f"the quickstart's model plays {len(episodes)}, {right} of them right; log-probabilities of rollouts "
        f"and training forwards agree up to {difference:.1g}"
    )


def _played(recipe: Mapping[str, Any]) -> tuple[PreTrainedModel, list[Episode]]:
    folder = shipped.shipped("recipes")
    name = folder / recipe["model_name_or_path"]
    policy = Policy(
        AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32), AutoTokenizer.from_pretrained(name)
    )
    tasks = load_tasks(folder / recipe["eval_tasks"])[:TASKS]
    with open_database(recipe["database"]) as database:
        player = Player.of(
            policy.tokenizer,
            database,
            protocol=recipe["protocol"],
            eos_token_ids=policy.eos_token_ids,
            rules=Rules(**{limit: recipe[limit] for limit in LIMITS}),
        )
        backend = TransformersBackend(policy)
        played = evaluate(tasks, player, backend, system_prompt=recipe["system_prompt"], progress=False)
    return policy.model, played.episodes


@torch.no_grad()
def largest_difference(model: PreTrainedModel, episodes: Sequence[Episode]) -> float:
    """Return the largest difference between the sampled tokens' log-probabilities in the rollout and in one
    forward pass over the whole episode, without a cache."""
    found = []
    for episode in episodes:
        ids = torch.tensor([[*episode.prompt_ids, *episode.completion_ids]])
        start = len(episode.prompt_ids)
        logits = model(ids, use_cache=False).logits[0, start - 1 : -1]  # (T, V)
        computed = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
        sampled = torch.tensor(episode.mask, dtype=torch.bool)
        found.append((computed - torch.tensor(episode.logprobs))[sampled].abs())
    return torch.cat(found).max().item()  # NaN if any of them is


SHOWN_PACKAGES = ("trl", "transformers", "peft", "accelerate", "torch")
FULL = 0.9
"""Share of a device's memory above which the memory check is a note instead of ok."""


@dataclass(frozen=True)
class Finding:
    """One line of the output: a check and its result."""

    check: str
    status: Literal["ok", "note", "FAIL"]
    text: str

    def __str__(self) -> str:
        return f"{self.status:<5} {self.check}: {' '.join(self.text.split())}"


@dataclass(frozen=True)
class Case:
    """A recipe to check: its settings with defaults, accelerate's configuration, and the number of ranks."""

    given: Namespace
    accelerate: dict[str, Any]
    ranks: int

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or the default if the recipe has none of that name or leaves it empty."""
        found = getattr(self.given, name, None)
        return default if found is None else found

    @property
    def task_arguments(self) -> TaskArguments:
        """The recipe's task settings; `tasks` is empty if it has none."""
        names = [field.name for field in fields(TaskArguments)]
        given = {name: value for name in names if (value := self.get(name)) is not None}
        return TaskArguments(**{"tasks": "", **given})

    @property
    def model_name(self) -> str:
        return str(self.get("model_name_or_path", ""))

    @property
    def load_options(self) -> dict[str, Any]:
        """Options with which a training loads the tokenizer and the configuration."""
        revision, trusted = self.get("model_revision"), bool(self.get("trust_remote_code"))
        return {"revision": revision, "trust_remote_code": trusted}

    @cached_property
    def config(self) -> Any:
        """The model's configuration; `None` if the hub does not provide it. Cached, because a hub that does
        not answer takes half a minute."""
        name = self.model_name
        if Path(name).is_dir():
            check_is_model(name)
        try:
            return AutoConfig.from_pretrained(name, **self.load_options)
        except (OSError, ValueError) as error:
            if Path(name).is_dir():
                raise ConfigError(f"the model '{name}' cannot be loaded: {error}") from None
            try:
                validate_repo_id(name)
            except HFValidationError:
                raise ConfigError(
                    f"the model '{name}' is neither a folder nor a hub id such as owner/name."
                ) from None
            return None

    @cached_property
    def protocol(self) -> AgentProtocol:
        return get_protocol(self.get("protocol", "text"), grader=self.get("grader"))

    @cached_property
    def shown(self) -> Memory:
        """Few-shot episodes that prompts can show from the start."""
        path = self.get("few_shot_memory")
        return load_memory(path, self.protocol) if path and self.get("few_shot") else Memory()

    @cached_property
    def model(self) -> ModelConfig:
        return ModelConfig(**{each.name: getattr(self.given, each.name) for each in fields(ModelConfig)})


def examine(
    recipe: Path, options: Sequence[str], num_processes: int | None = None, config_file: str | None = None
) -> Iterator[Finding]:
    """Check everything that a recipe needs; yield each finding as it is made.

    The arguments are those of `bundled.launch_command`.
    """
    script = shipped.script_of(recipe)
    command = shipped.launch_command(recipe, options, num_processes, config_file)
    accelerate = shipped.read_recipe(Path(command[command.index("--config_file") + 1]))
    sys.path.insert(0, str(script.parent))  # as Python does for a script
    parser = RecipeParser(runpy.run_path(str(script), run_name="recipe")["ARGUMENTS"])
    yield _checked("settings", lambda: _settings(parser, ["--config", str(recipe), *options], script), parser)
    try:
        given = parser.parse_known_args(list(options))[0]
    except ConfigError:  # already reported for the settings, without which nothing else can be checked
        return
    case = Case(given, accelerate, num_processes or accelerate.get("num_processes") or 1)
    tasks: list[Task] = []
    checks: dict[str, Callable[[], str | Finding]] = {
        "packages": lambda: _packages(case),
        "episodes": play_shipped,
        "data": lambda: _data(case, tasks),
        "model": lambda: _model(case),
        "database": lambda: _database(case, tasks),
        "memory": lambda: _memory(case, tasks),
    }
    for name, check in checks.items():
        yield _checked(name, check, parser)


def _checked(name: str, check: Callable[[], str | Finding], parser: RecipeParser) -> Finding:
    try:
        with parser.saying_where():
            found = check()
    except Exception as error:  # our own, or a library's about one of the settings
        told = isinstance(error, DBBenchError | ValueError | OSError)
        return Finding(name, "FAIL", str(error) if told else f"{type(error).__name__}: {error}")
    return found if isinstance(found, Finding) else Finding(name, "ok", found)


def _settings(parser: RecipeParser, words: list[str], script: Path) -> str:
    for each in parser.parse_args_and_config(words, fail_with_unknown_args=True):
        if isinstance(each, TrainingArguments):
            check_folder(each.output_dir, "output_dir")
        if isinstance(each, RewardArguments):
            each.outcome_reward()
            for name in as_list(each.reward_funcs):
                find_reward(name)
        if (harness := getattr(each, "harness", None)) is not None:
            Programs(harness).close()  # imports the user's module in a process of its own
    return f"read by {script.name}"


# --- packages -------------------------------------------------------------------------------------


def _packages(case: Case) -> str:
    missing = unmet() | dict.fromkeys(_extras(case), "missing")
    if missing:
        told = ", ".join(f"{name} ({found})" for name, found in missing.items())
        quoted = " ".join(f"'{name}'" for name in missing)
        raise ConfigError(
            f"missing, or of a version that was not tried: {told}. Install: pip install {quoted}"
        )
    python = ".".join(map(str, sys.version_info[:3]))
    return f"Python {python}, " + ", ".join(f"{name} {version(name)}" for name in SHOWN_PACKAGES)


def _extras(case: Case) -> Iterator[str]:
    """Yield the packages that these settings need and that are not installed."""
    bits = case.get("load_in_4bit") or case.get("load_in_8bit")
    optimizer, attention = str(case.get("optim", "")), str(case.get("attn_implementation", ""))
    loads_vllm = in_process_vllm(settings_asked(case.get))
    needs = {
        "bitsandbytes": bool(bits) or "8bit" in optimizer or "paged" in optimizer,
        "deepspeed": bool(case.get("deepspeed")) or case.accelerate.get("distributed_type") == "DEEPSPEED",
        "vllm": loads_vllm or (bool(case.get("vllm_server_urls")) and not case.get("use_peft")),
        "vllm_bnb_plugin": loads_vllm and bool(bits),
        "flash_attn": attention.startswith("flash_attention_2"),
        "liger_kernel": bool(case.get("use_liger_kernel")),
        **dict.fromkeys(("mysql_mimic", "starlette", "uvicorn"), case.get("harness") is not None),
    }
    yield from (
        name.replace("_", "-") for name, needed in needs.items() if needed and find_spec(name) is None
    )
    trackers = set(as_list(case.get("report_to", [])))
    yield from sorted(trackers - {"none", "all", *get_available_reporting_integrations()})


# --- data -----------------------------------------------------------------------------------------


def _data(case: Case, tasks: list[Task]) -> str:
    """Read the training data; append the tasks that will be played to `tasks`."""
    told, arguments = [], case.task_arguments
    for key, what in (("tasks", "tasks"), ("eval_tasks", "held-out tasks")):
        name = getattr(arguments, key)
        if key == "tasks" and name and name.startswith(SCHEME):
            tasks += map(arguments.fresh().task, range(FRESH_TASKS))
            told.append(f"{what} without end, {name}")
        elif name:
            loaded = arguments.read(name, getattr(arguments, f"{key}_split"))
            tasks += loaded
            told.append(f"{len(loaded):,} {what} in {name}")
    for run in as_list(case.get("episodes", [])):
        if not Path(run).is_file():  # sft also reads files of episodes
            RunSettings.read(run)
        told.append(f"episodes in {run}")
    if case.shown:
        told.append(f"{len(case.shown):,} episodes to show in {case.get('few_shot_memory')}")
    for key in ("pairs", "steps"):
        for file in as_list(case.get(key, [])):
            if not Path(file).is_file():
                raise ConfigError(f"no file of {key} at '{file}'. Name a .jsonl or .parquet file.")
            told.append(f"{key} in {file}")
    if not told:
        raise ConfigError("the recipe names nothing to learn from; give it tasks: or episodes:.")
    return ", ".join(told)


# --- model ----------------------------------------------------------------------------------------


def _model(case: Case) -> str | Finding:
    name, config = case.model_name, case.config
    if config is None:
        return Finding(
            *("model", "note"),
            f"'{name}' is not on this machine, and the hub does not give it: no network, HF_HUB_OFFLINE, "
            f"no such model, or one that wants a login (hf auth login). To see which: hf download {name}",
        )
    with loading(f"the tokenizer of '{name}'"):
        tokenizer = AutoTokenizer.from_pretrained(name, **case.load_options)
    if tokenizer.chat_template is None and not case.get("chat_template"):
        raise ConfigError(
            f"the tokenizer of '{name}' has no chat template. Take an instruction-tuned model, or set "
            "chat_template."
        )
    if (adapter := case.get("adapter_name_or_path")) is not None:
        adapter_settings(adapter, get_peft_config(case.model))
    text = f"{name}, {config.model_type}, with a chat template"
    half = wants_bf16(case.given) or bytes_of(case.get("dtype", "auto"), config) == 2
    cpu = torch.cpu.get_capabilities()
    lacks_bf16 = cpu.get("architecture") == "x86_64" and not (cpu.get("avx512_bf16") or cpu.get("amx_bf16"))
    if case.get("use_cpu", False) and half and lacks_bf16:
        slow = (
            "this CPU has no instructions for bfloat16: --dtype float32 --bf16 false is several times faster"
        )
        return Finding("model", "note", f"{text}; {slow}")
    return text


# --- database -------------------------------------------------------------------------------------


def _database(case: Case, tasks: Sequence[Task]) -> str | Finding:
    """Open the training's database, without pulling an image for it."""
    spec = case.get("database")
    if spec is None:
        return "none is needed"
    spec = database_for(tasks, spec)
    given = case.get("docker_image")
    image = given or os.environ.get(IMAGE_VARIABLE) or DEFAULT_IMAGE
    starts = {"auto", "docker"}.intersection(databases_of(spec))
    if starts and _has_to_pull(image, starts.pop()):
        return Finding(
            *("database", "note"),
            f"Docker answers; the first start pulls the image {image}. To see if it can: docker pull {image}",
        )
    with open_database(
        spec, docker_image=given, patience=10, require_accounts=bool(case.get("require_accounts"))
    ) as database:
        said = database.describe()
    if spec == "auto" and "SQLite" in said:
        return Finding("database", "note", f"auto comes to {said}: neither Docker nor mysqld is there")
    return said


def _has_to_pull(image: str, spec: str) -> bool:
    from docker.errors import DockerException, ImageNotFound

    try:
        with closing(connect_to_docker()) as client:
            client.images.get(image)
    except ImageNotFound:
        return True
    except DatabaseError:
        if spec == "docker":
            raise
    except DockerException:  # starting the server gives a better message
        pass
    return False


# --- memory ---------------------------------------------------------------------------------------


def _memory(case: Case, tasks: Sequence[Task]) -> str | Finding:
    name, config = case.model_name, case.config
    if config is None:
        return Finding("memory", "note", f"what {name} needs can be told when its config.json is there")
    with loading(f"the adapter '{case.get('adapter_name_or_path')}'"):
        adapter = get_peft_config(case.model) or adapter_config(case.get("adapter_name_or_path"))
    sizes = Sizes.of(config, adapter, trust_remote_code=case.load_options["trust_remote_code"])
    asked = {name: True for name in ("load_in_4bit", "load_in_8bit") if case.get(name)}
    nested = {"bnb_4bit_use_double_quant": case.get("use_bnb_nested_quant")}
    try:
        bits = quantized_bits(asked | nested if asked else None, getattr(config, "quantization_config", None))
    except ValueError as error:
        return Finding("memory", "note", f"what {name} needs cannot be told: {error}")
    given, mixed = case.get("model_init_kwargs"), case.accelerate.get("mixed_precision", "no") != "no"
    loaded_with = model_init_kwargs(case.model, given if isinstance(given, dict) else None)
    place = Place(
        there=_memory_there(case),
        on_cpu=case.get("use_cpu", False),
        value_bytes=bytes_of(str(loaded_with["dtype"] or "auto"), config),
        lora=adapter is not None,
        bits=bits,
        ranks=case.ranks,
        sharing=_sharing(case),
        full_precision=mixed and case.accelerate.get("distributed_type") == "FSDP",
        master=mixed and case.accelerate.get("distributed_type") == "DEEPSPEED",
    )
    planned = plan(case.given, config, sizes, _prompt_tokens(case, tasks), place)
    text = (
        f"{sizes.parameters:,} parameters, {sizes.trained:,} of them trained, need about {gb(planned.total)} "
        f"on each rank ({planned})"
    )
    gpus = torch.cuda.device_count()
    if not case.get("use_cpu", False) and gpus < case.ranks:
        raise ConfigError(
            f"{text}. The recipe wants {case.ranks} GPU{'s' * (case.ranks > 1)}, PyTorch sees "
            f"{gpus or 'none'}. Give fewer by --num-processes; a small model also trains with "
            "--use_cpu true --bf16 false."
        )
    text += f", of {gb(place.there)}"
    if planned.total > place.there:
        raise ConfigError(
            f"{text}. {REMEDIES}, with use_peft, or with the weights shared among GPUs: --config-file fsdp2."
        )
    return Finding("memory", "note", f"{text}: nearly full") if planned.total > FULL * place.there else text


def _memory_there(case: Case) -> float:
    """Return the bytes of memory that one rank has; infinity if it would train on a GPU and there is none."""
    if case.get("use_cpu", False):
        return total_memory(torch.device("cpu")) / case.ranks
    gpus = range(min(case.ranks, torch.cuda.device_count()))
    return min((total_memory(torch.device("cuda", each)) for each in gpus), default=math.inf)


def _prompt_tokens(case: Case, tasks: Sequence[Task]) -> int:
    """Return the number of tokens of the longest prompt, few-shot episodes included."""
    if not tasks or not hasattr(case.given, "max_turns"):
        return 0
    protocol = case.protocol
    opening = case.task_arguments.opening(protocol, tasks)
    prompts = [protocol.messages(task, opening) for task in tasks]
    tokenizer = AutoTokenizer.from_pretrained(case.model_name, **case.load_options)
    return longest_prompt(
        *(case.given, case.config, prompts, case.shown), lambda text: len(tokenizer(text)["input_ids"])
    )


def _sharing(case: Case) -> tuple[int, int]:
    """Return the number of ranks that the weights are sharded over, and the number for gradients and
    optimizer."""
    kind = case.accelerate.get("distributed_type")
    stage = (case.accelerate.get("deepspeed_config") or {}).get("zero_stage")
    if kind == "FSDP" or stage == 3:
        return case.ranks, case.ranks
    return (1, case.ranks) if stage in (1, 2) else (1, 1)
