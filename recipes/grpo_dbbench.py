"""Train an agent by GRPO on a database.

    accelerate launch recipes/grpo_dbbench.py --config recipes/quickstart.yaml
    accelerate launch recipes/grpo_dbbench.py --config recipes/quickstart.yaml --tasks my.jsonl

Every key of the YAML is also an option of the command line, which wins. `--help` lists them.
"""

from __future__ import annotations

from trl import ModelConfig, get_peft_config, get_quantization_config

from trl_dbbench import DBBenchGRPOConfig, DBBenchGRPOTrainer
from trl_dbbench.cli.arguments import DatabaseArguments, RewardArguments, TaskArguments
from trl_dbbench.cli.start import load_tokenizer, model_init_kwargs, start
from trl_dbbench.episode.dataset import tasks_to_check
from trl_dbbench.runs.checkpoints import find_checkpoint

ARGUMENTS = (TaskArguments, RewardArguments, DatabaseArguments, DBBenchGRPOConfig, ModelConfig)


def main(
    tasks: TaskArguments,
    rewards: RewardArguments,
    database: DatabaseArguments,
    args: DBBenchGRPOConfig,
    model: ModelConfig,
    trainer_class: type[DBBenchGRPOTrainer] = DBBenchGRPOTrainer,
) -> DBBenchGRPOTrainer:
    checkpoint = find_checkpoint(args.output_dir, args.resume_from_checkpoint)

    # 1. the tasks as rows: a prompt and its task
    train_dataset, eval_dataset = tasks.datasets(args.protocol, args.grader)

    # 2. the model: a tokenizer with a chat template, and how to load the weights
    tokenizer = load_tokenizer(model, args, padding_side="left")
    args.model_init_kwargs = model_init_kwargs(model, args.model_init_kwargs)

    # 3. the database, the rewards, and the training
    with database.open(tasks_to_check(train_dataset, eval_dataset)) as opened:
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


if __name__ == "__main__":
    start(ARGUMENTS, main)
