"""Supervised fine-tuning on gold episodes, as a warm start before GRPO, or on episodes that were sampled.

    accelerate launch recipes/sft_dbbench.py --config recipes/sft_gold.yaml
    accelerate launch recipes/sft_dbbench.py --config recipes/sft_episodes.yaml --episodes runs/sample

Gold episodes are played by the rollout itself, and sampled ones keep their ids, so ids and masks are the same
as in GRPO; the loss is on the agent's tokens only. Every key of the YAML is also an option of the command
line, which wins.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config, get_quantization_config

from trl_dbbench import ConfigError, DatabaseArguments, TaskArguments, get_protocol
from trl_dbbench.cli.arguments import read_template_kwargs
from trl_dbbench.cli.start import load_tokenizer, model_init_kwargs, start
from trl_dbbench.data.demonstrations import Teacher, demonstrate, to_sft_dataset, with_mistakes
from trl_dbbench.data.reward_data import fitting
from trl_dbbench.engines.policy import eos_token_ids
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.errors import loading
from trl_dbbench.runs.adapters import load_base
from trl_dbbench.runs.checkpoints import find_checkpoint
from trl_dbbench.runs.export import settings_of, sft_dataset, told_by_rows
from trl_dbbench.runs.tokens import chat_with
from trl_dbbench.training.run_folder import played_as, run_folder
from trl_dbbench.utils.settings import check_number


@dataclass
class DemonstrationArguments(TaskArguments):
    """The tasks to demonstrate; none where there are `episodes`."""

    tasks: str | None = field(
        default=None,
        metadata={"help": "Tasks to demonstrate: a file, a folder of parquet files, or a hub id."},
    )


@dataclass
class ScriptArguments:
    """The data to learn from, and the layout of episodes."""

    episodes: str | None = field(
        default=None,
        metadata={
            "help": "Episodes to learn from instead of demonstrations: the folder of trl-dbbench sample or "
            "of a run, or a file of trl-dbbench export --to sft."
        },
    )
    mistakes: float = field(
        default=0.0,
        metadata={
            "help": "Share of demonstrations, 0 to 1, that begin with a statement that fails, which is not "
            "learned: they show what to do after an error."
        },
    )
    protocol: str = field(default="text", metadata={"help": "text, tools or a dotted path"})
    chat_template: str | None = field(
        default=None,
        metadata={
            "help": "Replaces the model's: a jinja file, or the name of one of TRL's, as qwen3_training."
        },
    )
    chat_template_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "Passed on to the chat template, as GRPO's: {enable_thinking: false}."},
    )
    save_dtype: str | None = field(
        default=None,
        metadata={
            "help": "Saves the weights as float32, float16 or bfloat16; as they are if left out.",
            "choices": ["float32", "float16", "bfloat16"],
        },
    )

    def __post_init__(self) -> None:
        self.chat_template_kwargs = read_template_kwargs(self.chat_template_kwargs)
        check_number("mistakes", self.mistakes)
        get_protocol(self.protocol)
        if self.chat_template is not None:
            load_chat_template(self.chat_template)


ARGUMENTS = (DemonstrationArguments, DatabaseArguments, ScriptArguments, SFTConfig, ModelConfig)


def main(
    task_args: DemonstrationArguments,
    database_args: DatabaseArguments,
    script_args: ScriptArguments,
    training_args: SFTConfig,
    model_args: ModelConfig,
    teacher: Teacher | None = None,
) -> SFTTrainer:
    checkpoint = find_checkpoint(training_args.output_dir, training_args.resume_from_checkpoint)
    if task_args.eval_tasks:
        raise ConfigError(
            "eval_tasks: fine-tuning plays no episodes. Leave it out, and measure the trained model by "
            f"trl-dbbench eval {training_args.output_dir} --tasks {task_args.eval_tasks}"
        )
    if not (script_args.episodes or task_args.tasks):
        raise ConfigError("say what to learn from: tasks, which are demonstrated, or episodes.")
    for name, given in (("tasks", task_args.tasks), ("mistakes", script_args.mistakes)):
        if script_args.episodes and given:
            raise ConfigError(f"{name}: {given} is for demonstrations; leave it or episodes out.")
    tasks = [] if script_args.episodes else task_args.load()
    if teacher is None:
        whole, tasks = tasks, [task for task in tasks if task.gold.sql is not None]
        if lost := len(whole) - len(tasks):
            logging.warning(
                "%d of %d tasks have no gold SQL to demonstrate, and are left out", lost, len(whole)
            )
    protocol, mistakes = get_protocol(script_args.protocol), script_args.mistakes
    opening = task_args.opening(protocol, tasks) if tasks else None
    tokenizer = load_tokenizer(model_args, training_args, script_args.chat_template)
    options = model_init_kwargs(model_args, training_args.model_init_kwargs)
    with loading(f"the model '{model_args.model_name_or_path}'"):
        model = load_base(
            model_args.model_name_or_path,
            quantization_config=get_quantization_config(model_args),
            trust_remote_code=training_args.trust_remote_code,
            **options,
        )

    eos_ids = eos_token_ids(model.generation_config, tokenizer)
    if script_args.episodes:
        notes: list[str] = []
        dataset = sft_dataset(script_args.episodes, tokenizer, eos_ids, notes)
        if (played := settings_of(script_args.episodes)) is not None:
            tokenizer.chat_template = chat_with(played, tokenizer, eos_ids).chat_template  # to be saved
        else:
            told = {"protocol": script_args.protocol} | told_by_rows(script_args.episodes)
            played = played_as(**told, chat_template=tokenizer.chat_template)
        logging.info(" ".join([f"{len(dataset)} episodes to learn from.", *notes]))
    else:
        chat = ChatFormat(tokenizer, protocol, eos_ids, script_args.chat_template_kwargs)
        with database_args.open(tasks) as database:
            episodes = demonstrate(
                tasks,
                chat,
                database,
                system_prompt=opening,
                teacher=teacher or with_mistakes(mistakes, training_args.seed),
            )
            played = played_as(
                script_args.protocol,
                [len(episode.turns) for episode in episodes],
                database=database.describe(),
                dialect=database.dialect.name,
                system_prompt=opening,
                schema=task_args.schema,
                chat_template=chat.chat_template,
                chat_template_kwargs=script_args.chat_template_kwargs or {},
            )
        tokenizer.chat_template = chat.chat_template  # to be saved
        right = [episode for episode in episodes if episode.right]
        logging.info("%d demonstrations, %d of them right", len(episodes), len(right))
        if teacher is None and len(right) < len(episodes):
            logging.warning("The others are left out; trl-dbbench validate says why.")
            episodes = right
        dataset = to_sft_dataset(episodes, imitate_errors=not mistakes)

    cut = list[str]()
    rows = fitting((("", row) for row in dataset), training_args.max_length, cut)
    for note in cut:
        logging.warning(note)
    if not rows:
        raise ConfigError("nothing is left to learn from; see the messages before this one.")
    dataset = Dataset.from_list([row for _, row in rows])
    trainer = SFTTrainer(
        model=model,
        args=training_args,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
    )
    with run_folder(trainer, checkpoint, played):
        trainer.train(resume_from_checkpoint=checkpoint)
        if script_args.save_dtype:
            trainer.model.to(getattr(torch, script_args.save_dtype))
        trainer.save_model(training_args.output_dir)
    trainer.accelerator.print(f"The model is in {training_args.output_dir}.")
    return trainer


if __name__ == "__main__":
    start(ARGUMENTS, main)
