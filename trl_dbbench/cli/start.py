"""Start of every recipe: command line and YAML, tokenizer, and loading of weights.

```
recipe: sft                     script that the YAML is for (read by `trl-dbbench train`)
tasks: tiny/train.jsonl         relative to the working directory, else to the YAML's folder
output_dir: runs/{TIMESTAMP}    relative to the working directory; {TIMESTAMP} becomes the start time
```

Paths on the command line are relative to the working directory only.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape, glob
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer, TrainingArguments
from trl import ModelConfig, TrlParser

from trl_dbbench.cli.bundled import SCRIPT_KEY, is_there, read_recipe, with_paths
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.errors import ConfigError, DBBenchError, loading, user_errors, why_not_loaded
from trl_dbbench.runs.adapters import check_is_model
from trl_dbbench.runs.checkpoints import whole_checkpoints
from trl_dbbench.training.lost_ranks import limit_waiting, naming_lost_ranks
from trl_dbbench.training.stopping import ordered_end, set_up_logging
from trl_dbbench.training.unsupported import check_values, use_new_names, wants_bf16
from trl_dbbench.utils.cpu import spare_page_faults
from trl_dbbench.utils.files import check_folder, check_not_misspelled
from trl_dbbench.utils.lookup import check_choice, nearest, unknown
from trl_dbbench.utils.ranks import Ranks
from trl_dbbench.utils.settings import check_numbers, only_type, written_types

logger = logging.getLogger(__name__)

TIMESTAMP = "{TIMESTAMP}"
STAMP_FORMAT = "%Y%m%d-%H%M%S"
STAMP = r"\d{8}-\d{6}"


def start(arguments: Sequence[type], main: Callable[..., Trainer]) -> None:
    """Read the command line and its YAML into these dataclasses, and run `main` on them.

    A user's error ends the program with one line; SIGTERM ends all ranks together.

    Args:
        arguments: dataclasses, in the order in which `main` takes them; one is a `TrainingArguments`.
        main: trains, and returns the trainer.
    """
    with ordered_end() as ended:
        use_one_gpu()
        parser = RecipeParser(arguments)
        with user_errors(ValueError, TypeError, OSError), parser.saying_where():
            given = parser.parse_args_and_config(fail_with_unknown_args=True)
            for each in given:
                if isinstance(each, TrainingArguments):
                    set_up_logging(each.process_index)
                    limit_waiting(each.ddp_timeout)
                    spare_page_faults(each.device)
                    put_timestamp(each)
                    check_folder(each.output_dir, "output_dir")
        # an ImportError names a package that only some settings need
        with user_errors(ImportError), parser.saying_where(), naming_lost_ranks():
            try:
                ended(main(*given))
            except SafetensorError as error:  # TRL's trainers load models given by name
                raise ConfigError(f"{why_not_loaded(error)}.") from None


def use_one_gpu() -> None:
    """Hide all GPUs but one from a process that trains alone, unless CUDA_VISIBLE_DEVICES is set.

    With several, transformers would train on all of them with `nn.DataParallel`, which TRL rejects.
    """
    count = torch.cuda.device_count()  # asks the driver without initialising a GPU
    alone = int(os.environ.get("WORLD_SIZE", 1)) == 1
    if count > 1 and alone and "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        print(
            f"Training on GPU 0 of {count}. CUDA_VISIBLE_DEVICES chooses another; trl-dbbench train "
            f"--num-processes {count} trains on all.",
            file=sys.stderr,
        )


BEFORE_AND_AFTER = {"eval_strategy": "steps", "eval_steps": "0.9999999", "eval_on_start": "true"}
"""Default evaluation schedule: before training, and after the last step, given as a share of all steps."""


OR_BOOLEAN = ("resume_from_checkpoint", "scale_rewards")
"""Settings that are declared as texts but may also be true or false."""


class RecipeParser(TrlParser):
    """TRL's parser, for YAMLs as shown in the docstring of this module.

    Without an `eval_strategy`, `eval_tasks` are played before training and after it.
    """

    def __init__(self, arguments: Iterable[type]):
        super().__init__(arguments, allow_abbrev=False)  # a typo must not pass for another option
        self.folder = Path()
        self.missing: list[str] = []
        self.needed = [action.dest for action in self._actions if action.required]
        self.types = {name: of for kind in self.dataclass_types for name, of in written_types(kind).items()}
        self.in_yaml: dict[str, Any] = {}

    def parse_args_and_config(self, args: Iterable[str] | None = None, **options: Any) -> tuple[Any, ...]:
        given = sys.argv[1:] if args is None else args
        args = [part for each in given for part in re.split("(?<=^--config)=", each, maxsplit=1)]
        if "--config" in args:
            path = Path(*args[args.index("--config") + 1 :][:1])
            read_recipe(path)  # if it is not YAML, TRL's parser would end in a traceback
            self.folder = path.parent
        self.in_yaml = {}
        try:
            return super().parse_args_and_config(args, **options)
        except ValueError as error:
            found = re.search(
                r"(?:not used by the HfArgumentParser|arguments from config file): (\[.*\])", str(error)
            )
            if found is None:
                raise
            raise ConfigError(self._unknown_keys(ast.literal_eval(found[1]))) from None

    def _unknown_keys(self, words: Sequence[str]) -> str:
        keys = [word.lstrip("-").partition("=")[0] for word in words if word.startswith("--")] or words
        known = sorted(action.dest for action in self._actions)
        said = []
        for key in keys:
            near = nearest(key.replace("-", "_"), known)
            said.append(f"unknown setting {key!r}{f'; nearest: {near}' if near else ''}")
        return f"{'. '.join(said)}. --help lists all settings."

    def set_defaults_with_config(self, **config: Any) -> list[str]:
        config.pop(SCRIPT_KEY, None)
        for action in self._actions:
            if action.choices and config.get(action.dest) is False:  # YAML reads `no` or `off` as false
                meant = (each for each in ("no", "off") if each in action.choices)
                config[action.dest] = next(meant, False)
            value, only = config.get(action.dest), only_type(self.types.get(action.dest, ""))
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if action.nargs == "+" and (number or isinstance(value, str)):
                value = config[action.dest] = [value]  # a list of one, as on the command line
            if isinstance(value, float) and value.is_integer() and only is int:
                config[action.dest] = int(value)
            if isinstance(value, list) and only is float:
                config[action.dest] = [_as_float(each) for each in value]
            if number and only is str and not isinstance(value, list):
                config[action.dest] = str(value)  # a name made of digits, such as a run's or a folder's
        self.in_yaml = config
        return super().set_defaults_with_config(**with_paths(config, self._locate))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, rest = super().parse_known_args(args, namespace)
        if any(issubclass(kind, TrainingArguments) for kind in self.dataclass_types):
            use_new_names(found)
        if isinstance(scale := getattr(found, "scale_rewards", None), str):
            # declared as a text, so argparse leaves true and false as texts, which TRL refuses in a step
            found.scale_rewards = {"true": True, "false": False}.get(scale.lower(), scale)
        return found, rest

    def parse_args_into_dataclasses(self, args: Sequence[str] = (), **options: Any) -> tuple[Any, ...]:
        named = [each.removeprefix("--").partition("=")[0].replace("-", "_") for each in args]
        known, given = {action.dest for action in self._actions}, {*named, *self.in_yaml}
        for name in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):
            if {name, new := name.replace("gradient", "activation")} <= given:
                raise ConfigError(f"{name} is the older name of {new}; give one of them.")
        of_lora = ("lora_", "use_dora", "use_rslora")
        lora = [each for each in sorted(known & given) if each.startswith(of_lora)]
        if lora and not {"use_peft", "adapter_name_or_path"} & given:
            raise ConfigError(
                f"{lora[0]} is used only with use_peft: true; set that, or false to train all weights."
            )
        more: list[str] = []
        if ("eval_tasks" in named or self.in_yaml.get("eval_tasks")) and "eval_strategy" in known - given:
            for name, value in BEFORE_AND_AFTER.items():
                more += [] if name in given else [f"--{name}", value]
        args = [*args, *more]
        found = self.parse_known_args(args)[0]
        if "--eval_steps" in more:  # for the checks: no setting can rely on the one evaluation after training
            found.eval_strategy = "no"
        self._check(found)
        parsed = super().parse_args_into_dataclasses(args=args, **options)
        for each in parsed:
            target = getattr(each, "lora_target_modules", None)
            if isinstance(target, str) and target.isidentifier():
                # TRL takes a list of one as a text, and PEFT takes a text as a pattern of a whole path
                each.lora_target_modules = [target]
        return parsed

    def _check(self, found: Namespace) -> None:
        """Raise ConfigError for an invalid value, before any dataclass is built from it.

        Argparse checks choices for the command line, but not for the YAML.
        """
        texts = {name for name, of in self.types.items() if only_type(of) is str} - {*OR_BOOLEAN}
        texts -= {action.dest for action in self._actions if action.choices}
        for name, value in self.in_yaml.items():
            if value is None and name in self.needed and getattr(found, name) is None:
                raise ConfigError(f"{name} is empty in the YAML. Give it a value.")
            one_value = not re.search("list|Any|Sequence", self.types.get(name, "Any"), re.I)
            if isinstance(value, list) and one_value and getattr(found, name) == value:
                raise ConfigError(f"{name} takes one value; the YAML gives a list, {value}.")
            if name in texts and isinstance(value, bool | dict):
                raise ConfigError(f"{name} must be a text, is {value!r}; in a YAML a bare no is False.")
        for action in self._actions:
            if action.choices and action.dest in self.in_yaml:
                values = getattr(found, action.dest)
                for value in values if isinstance(values, list) else [values]:
                    if value is not None:
                        check_choice(action.dest, getattr(value, "value", value), action.choices)
        if ModelConfig in self.dataclass_types:
            _check_quantized(found)
        for kind in self.dataclass_types:
            check_numbers(found, kind)
            if issubclass(kind, TrainingArguments):
                check_values(found, kind)
                if not (wants_bf16(found) or found.fp16):
                    # with bf16 and fp16 both false, accelerate's configuration would decide
                    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)

    def _locate(self, path: str) -> str:
        path = os.path.expanduser(path)  # noqa: PTH111 - may be a text such as a system prompt
        if is_there(path):
            return path
        if is_there(self.folder / path):
            return str(self.folder / path)
        self.missing.append(path)
        return path

    @contextmanager
    def saying_where(self) -> Iterator[None]:
        """Add the folders that were searched to an error about a path in the YAML."""
        try:
            yield
        except DBBenchError as error:
            named = next((each for each in self.missing if f"'{each}'" in str(error)), None)
            if named is None or self.folder.resolve() == Path.cwd():
                raise
            raise type(error)(
                f"{error} As a path, the YAML's '{named}' leads nowhere from the working directory, "
                f"{Path.cwd()}, nor from the YAML's folder, {self.folder.resolve()}."
            ) from None

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError; argparse would print every option before the message."""
        choice = re.match(r"argument --(\w+)\S*: invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        if choice is not None:
            allowed = [each.strip("' ") for each in choice[3].split(",")]
            message = unknown(choice[1], choice[2], allowed)
        raise ConfigError(f"{message}. --help lists all options.")


def _as_float(value: Any) -> Any:
    """Return the number in a text, or the value as it is: YAML reads 1e-1 as text, and argparse does not
    convert a list's elements."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def _check_quantized(found: Namespace) -> None:
    """Raise ConfigError for settings of 4 or 8 bits with which transformers cannot load or train a model."""
    for name in ("bnb_4bit_quant_type", "use_bnb_nested_quant"):
        if getattr(found, name) != getattr(ModelConfig, name) and not found.load_in_4bit:
            raise ConfigError(f"{name} is used only with load_in_4bit: true; set that, or leave it out.")
    bits = next((name for name in ("load_in_4bit", "load_in_8bit") if getattr(found, name)), None)
    if bits and not found.use_peft and not getattr(found, "adapter_name_or_path", None):
        raise ConfigError(
            f"{bits}: quantized weights stay as they are, and nothing else is trained. Set use_peft: true."
        )
    if bits == "load_in_4bit" and found.dtype in (None, "auto"):
        raise ConfigError(
            f"load_in_4bit: dtype {found.dtype!r} does not say what to compute in. Set dtype: bfloat16."
        )


# --- what recipes load ----------------------------------------------------------------------------


def load_tokenizer(
    model: ModelConfig, args: Any, chat_template: str | None = None, **options: Any
) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer.

    Args:
        args: the trainer's arguments, for their `trust_remote_code`.
        chat_template: replaces the tokenizer's own: a jinja file, or the name of one of TRL's.
        **options: passed on to `AutoTokenizer.from_pretrained`.
    """
    name = model.model_name_or_path
    if name is None:
        raise ConfigError("say which model to train: model_name_or_path, a folder or a hub id.")
    check_not_misspelled(name)
    check_is_model(name)
    with loading(f"the model '{name}'"):
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=model.model_revision, trust_remote_code=args.trust_remote_code, **options
        )
    if chat_template is not None:
        tokenizer.chat_template = load_chat_template(chat_template)
    return tokenizer


def model_init_kwargs(model: ModelConfig, given: dict[str, Any] | None) -> dict[str, Any]:
    """Return the keyword arguments that load the weights: the model's settings, overridden by the setting
    `model_init_kwargs`.

    Raises:
        ConfigError: if `given` has a key of `OWN_SETTINGS`: those settings apply to more than the weights.
    """
    for name in (name for name in OWN_SETTINGS if name in (given or {})):
        raise ConfigError(
            f"model_init_kwargs: {name} does not count for all that is loaded. Leave it out and set "
            f"{OWN_SETTINGS[name]}."
        )
    return {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(given or {}),
    }


OWN_SETTINGS = {"revision": "model_revision", "torch_dtype": "dtype"}
"""Arguments of `from_pretrained` -> the recipe settings that replace them."""


# --- a folder for each start ----------------------------------------------------------------------


def put_timestamp(args: TrainingArguments) -> None:
    """Replace `{TIMESTAMP}` in `output_dir` and `run_name` by the time, the same on all ranks.

    With `resume_from_checkpoint: true` it is the time of the last run with a complete checkpoint, so that the
    same command resumes that run; if there is none, it is the current time. If `resume_from_checkpoint` is a
    checkpoint's folder, it is the time in that folder's name.
    """
    if TIMESTAMP not in f"{args.output_dir}{args.run_name}":
        return
    stamp = _stamp_to_resume(args) or time.strftime(STAMP_FORMAT)
    stamp = Ranks().from_main(stamp)  # transformers has set up the process group with the arguments
    for name in ("output_dir", "run_name"):
        if value := getattr(args, name):
            setattr(args, name, value.replace(TIMESTAMP, stamp))
    if Ranks().is_main:
        logger.info("The run's folder is %s.", args.output_dir)


def _stamp_to_resume(args: TrainingArguments) -> str | None:
    """Return the time of the run to resume; `None` to start a new one."""
    asked = args.resume_from_checkpoint
    if asked in (None, False, "", "false", "False") or TIMESTAMP not in args.output_dir:
        return None
    before, _, after = str(Path(args.output_dir).absolute()).partition(TIMESTAMP)
    run = re.compile(f"{re.escape(before)}({STAMP}){re.escape(after)}")
    if asked not in (True, "true", "True"):
        named = run.match(str(Path(str(asked)).absolute()))
        return named[1] if named else None
    folders = glob(f"{escape(before)}*{escape(after)}")  # noqa: PTH207 - Path.glob takes no absolute pattern
    stamps = [
        named[1] for each in folders if (named := run.fullmatch(each)) and whole_checkpoints(Path(each))
    ]
    return max(stamps, default=None)
