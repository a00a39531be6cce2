"""Trains an agent by GRPO on a database.

    accelerate launch recipes/grpo_dbbench.py --config recipes/quickstart.yaml
    accelerate launch recipes/grpo_dbbench.py --config recipes/quickstart.yaml --tasks my.jsonl

Every key of the YAML is also an option of the command line, which wins. `--help` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import AutoTokenizer
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_dbbench import ConfigError, DBBenchGRPOConfig, DBBenchGRPOTrainer
from trl_dbbench.arguments import DatabaseArguments, RewardArguments, TaskArguments
from trl_dbbench.checkpoints import find_checkpoint
from trl_dbbench.errors import user_errors
from trl_dbbench.files import check_not_misspelled
from trl_dbbench.stopping import ordered_end, set_up_logging

ARGUMENTS = (TaskArguments, RewardArguments, DatabaseArguments, DBBenchGRPOConfig, ModelConfig)


def main(
    tasks: TaskArguments,
    rewards: RewardArguments,
    database: DatabaseArguments,
    args: DBBenchGRPOConfig,
    model: ModelConfig,
    trainer_class: type[DBBenchGRPOTrainer] = DBBenchGRPOTrainer,
) -> DBBenchGRPOTrainer:
    set_up_logging(args.process_index)
    checkpoint = find_checkpoint(args.output_dir, args.resume_from_checkpoint)

    # 1. the tasks as rows: a prompt, and the task that it is of
    train_dataset, eval_dataset = tasks.datasets(args.protocol)

    # 2. the model: a tokenizer with a chat template, and how to load the weights
    check_not_misspelled(model.model_name_or_path, "model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model.model_name_or_path, padding_side="left", trust_remote_code=args.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model '{model.model_name_or_path}' cannot be loaded: {error}") from None
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }

    # 3. the database, the rewards that it gives, and the training
    with database.open() as opened:
        trainer = trainer_class(
            model=model.model_name_or_path,
            reward_funcs=rewards.load(opened),
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            quantization_config=get_quantization_config(model),
            peft_config=get_peft_config(model),
            database=opened,
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        if not trainer.stopped:
            trainer.save_model(args.output_dir)
            trainer.accelerator.print(
                f"The model is in {args.output_dir}, every episode in {trainer.episode_log.path}."
            )
            if args.push_to_hub:
                trainer.push_to_hub()
    return trainer


def start(arguments: Sequence[type], main: Callable[..., DBBenchGRPOTrainer]) -> None:
    """Reads the command line and its YAML into these dataclasses, and trains."""
    with ordered_end() as ended:  # of all ranks, and after SIGTERM
        with user_errors(ValueError, FileNotFoundError):
            given = TrlParser(arguments).parse_args_and_config(fail_with_unknown_args=True)
        with user_errors():
            ended(main(*given))


if __name__ == "__main__":
    start(ARGUMENTS, main)
