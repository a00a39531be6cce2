"""Trains an agent by GRPO on a database.

    accelerate launch recipes/grpo_dbbench.py --config recipes/quickstart.yaml
    accelerate launch recipes/grpo_dbbench.py --config recipes/quickstart.yaml --tasks my.jsonl --database docker

Every key of the YAML is also an option of the command line, which wins. `--help` lists them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoTokenizer
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_dbbench import (
    OUTCOME_PRESETS,
    ConfigError,
    DBBenchGRPOConfig,
    DBBenchGRPOTrainer,
    OutcomeReward,
    load_reward_functions,
    load_tasks,
    open_database,
    to_dataset,
)
from trl_dbbench.errors import user_errors
from trl_dbbench.ranks import end
from trl_dbbench.resume import find_checkpoint
from trl_dbbench.stopping import EXIT_STATUS, stop_with_launcher


@dataclass
class ScriptArguments:
    """What the recipe adds to the trainer's own arguments."""

    tasks: str = field(metadata={"help": "Training tasks: a file, a folder of parquet, or a hub id."})
    tasks_split: str | None = field(default=None, metadata={"help": "The split of a hub id or folder."})
    eval_tasks: str | None = field(default=None, metadata={"help": "Held-out tasks, for eval_strategy."})
    database: str = field(
        default="auto",
        metadata={"help": "auto, docker, local, sqlite or mysql+pymysql://user:password@host:port"},
    )
    docker_image: str | None = field(
        default=None,
        metadata={"help": "The image that docker and auto start; $TRL_DBBENCH_DOCKER_IMAGE, else mysql:8.4."},
    )
    database_patience: float = field(
        default=300.0,
        metadata={
            "help": "Seconds that a database which does not answer is waited for; then the run saves and ends."
        },
    )
    require_accounts: bool = field(
        default=False,
        metadata={"help": "Refuse a server on which agents cannot have accounts of their own."},
    )
    system_prompt: str | None = field(
        default=None,
        metadata={"help": "Replaces the protocol's system prompt: a text, or a file that holds it."},
    )
    reward_funcs: list[str] = field(
        default_factory=lambda: ["outcome"],
        metadata={"help": "outcome, execution, format, or dotted paths of functions that take `episode`."},
    )
    outcome_preset: str = field(
        default="greedy_then_grpo",
        metadata={"help": "Values of the outcome reward.", "choices": list(OUTCOME_PRESETS)},
    )
    outcome_right: float | None = field(default=None, metadata={"help": "Replaces the preset's value."})
    outcome_wrong: float | None = field(default=None, metadata={"help": "Replaces the preset's value."})
    outcome_turn_limit: float | None = field(default=None, metadata={"help": "Replaces the preset's value."})
    outcome_invalid_action: float | None = field(
        default=None, metadata={"help": "Replaces the preset's value."}
    )


def main(script_args: ScriptArguments, training_args: DBBenchGRPOConfig, model_args: ModelConfig) -> None:
    logging.basicConfig(level=logging.INFO if training_args.process_index == 0 else logging.WARNING)
    for http_client in ("httpx", "httpx2"):  # a line for each request
        logging.getLogger(http_client).setLevel(logging.WARNING)

    checkpoint = find_checkpoint(training_args.output_dir, training_args.resume_from_checkpoint)
    tasks = load_tasks(script_args.tasks, script_args.tasks_split)
    eval_tasks = load_tasks(script_args.eval_tasks) if script_args.eval_tasks else None
    system_prompt = read_system_prompt(script_args.system_prompt)
    dataset = to_dataset(tasks, training_args.protocol, system_prompt)
    model_name = model_args.model_name_or_path
    tokenizer = load_tokenizer(model_name, training_args)
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }

    with open_database(
        script_args.database,
        docker_image=script_args.docker_image,
        patience=script_args.database_patience,
        require_accounts=script_args.require_accounts,
    ) as database:
        trainer = DBBenchGRPOTrainer(
            model=model_name,
            reward_funcs=load_reward_functions(
                script_args.reward_funcs, database=database, outcome=outcome_reward(script_args)
            ),
            args=training_args,
            train_dataset=dataset,
            eval_dataset=to_dataset(eval_tasks, training_args.protocol, system_prompt)
            if eval_tasks
            else None,
            processing_class=tokenizer,
            quantization_config=get_quantization_config(model_args),
            peft_config=get_peft_config(model_args),
            database=database,
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        if trainer.stopped:
            state = trainer.state
            trainer.accelerator.print(
                f"SIGTERM ended the run after step {state.global_step} of {state.max_steps}. Start it again with "
                "--resume_from_checkpoint true to go on from there."
            )
        else:
            trainer.save_model(training_args.output_dir)
            trainer.accelerator.print(
                f"The model is in {training_args.output_dir}, every episode in {trainer.episode_log.path}."
            )
            if training_args.push_to_hub:
                trainer.push_to_hub()
    end(trainer)  # not before the database's end, which still needs the process group
    if trainer.stopped:
        raise SystemExit(EXIT_STATUS)


def outcome_reward(script_args: ScriptArguments) -> OutcomeReward:
    """The preset, with the values that the YAML replaces."""
    preset = OUTCOME_PRESETS[script_args.outcome_preset]
    names = ("right", "wrong", "turn_limit", "invalid_action")
    given = {name: getattr(script_args, f"outcome_{name}") for name in names}
    return OutcomeReward(
        **{name: getattr(preset, name) if given[name] is None else given[name] for name in names}
    )


def read_system_prompt(text_or_file: str | None) -> str | None:
    if text_or_file and "\n" not in text_or_file and text_or_file.endswith((".txt", ".md")):
        try:
            return Path(text_or_file).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the system prompt cannot be read: {error}") from None
    return text_or_file


def load_tokenizer(model_name: str, training_args: DBBenchGRPOConfig):
    try:
        return AutoTokenizer.from_pretrained(
            model_name, padding_side="left", trust_remote_code=training_args.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model '{model_name}' cannot be loaded: {error}") from None


if __name__ == "__main__":
    stop_with_launcher()
    with user_errors(ValueError, FileNotFoundError):
        parser = TrlParser((ScriptArguments, DBBenchGRPOConfig, ModelConfig))
        arguments = parser.parse_args_and_config(fail_with_unknown_args=True)
    with user_errors():
        main(*arguments)
