"""Supervised fine-tuning on gold episodes, as a warm start before GRPO, or on episodes that were sampled.

    accelerate launch recipes/sft_dbbench.py --config recipes/sft_tiny.yaml
    accelerate launch recipes/sft_dbbench.py --config recipes/sft_episodes.yaml --episodes runs/sample

Gold episodes are played by the rollout itself, and sampled ones have their own ids, so ids and masks are
those of GRPO; the loss is on the agent's tokens only. Every key of the YAML is also an option of the command
line, which wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config

from trl_dbbench import ConfigError, DatabaseArguments, TaskArguments, get_protocol
from trl_dbbench.cli.arguments import read_template_kwargs
from trl_dbbench.cli.start import load_tokenizer, model_init_kwargs, start
from trl_dbbench.data.demonstrations import Habits, demonstrate, execute_actions, gold_actions, to_sft_dataset
from trl_dbbench.data.multi_teacher import multi_actions
from trl_dbbench.data.sql_teacher import sql_actions
from trl_dbbench.data.tiny_model import make_tiny_model
from trl_dbbench.database import Database
from trl_dbbench.engines.policy import eos_token_ids
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.protocol import AgentProtocol, Answer, Operation
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.errors import loading
from trl_dbbench.runs.checkpoints import find_checkpoint
from trl_dbbench.runs.export import settings_of, sft_dataset
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.skills import NAMED
from trl_dbbench.training.run_folder import played_as, run_folder
from trl_dbbench.utils.lookup import check_choice, check_share, look_up

TEACHERS = {"gold": gold_actions, "multi": multi_actions, "sql": sql_actions}
TEXTS = 2_000
"""Tasks whose episodes the tiny model's tokenizer learns words from."""


@dataclass
class DemonstrationArguments(TaskArguments):
    """The tasks to demonstrate; none where there are `episodes`."""

    tasks: str | None = field(
        default=None, metadata={"help": "Tasks to demonstrate: a file, a folder of parquet, or a hub id."}
    )


@dataclass
class ScriptArguments:
    """What the recipe adds: what to learn from, and the tiny model."""

    episodes: str | None = field(
        default=None,
        metadata={
            "help": "Learns from these, in the place of demonstrations: the folder of trl-dbbench sample or "
            "of a run, or a file of trl-dbbench export --to sft."
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
    teacher: str = field(
        default="gold",
        metadata={
            "help": "Who writes the demonstrations: gold (the gold SQL), multi (for tasks of level multi, "
            "turn by turn), sql (the gold SQL as the answer) or a dotted path."
        },
    )
    bad_habits: float = field(
        default=0.0,
        metadata={"help": "Share of demonstrations with a mistake, for a model that GRPO can mend."},
    )
    bad_habit_skills: list[str] = field(
        default_factory=list,
        metadata={"help": "Only demonstrations of these skills have mistakes; all if empty."},
    )
    save_dtype: str | None = field(
        default=None,
        metadata={
            "help": "Saves the weights as float32, float16 or bfloat16; as they are if left out.",
            "choices": ["float32", "float16", "bfloat16"],
        },
    )
    tiny_hidden_size: int = field(default=128, metadata={"help": "Of the model that `tiny-random` makes."})
    tiny_layers: int = field(default=4, metadata={"help": "Of the model that `tiny-random` makes."})

    def __post_init__(self) -> None:
        self.chat_template_kwargs = read_template_kwargs(self.chat_template_kwargs)
        get_protocol(self.protocol)
        look_up("teacher", self.teacher, TEACHERS)
        check_share("bad_habits", self.bad_habits)
        for skill in self.bad_habit_skills:
            check_choice("bad_habit_skills", skill, NAMED)
        if self.chat_template is not None:
            load_chat_template(self.chat_template)


ARGUMENTS = (DemonstrationArguments, DatabaseArguments, ScriptArguments, SFTConfig, ModelConfig)


def gold_texts(tasks: Sequence[Task], protocol: AgentProtocol) -> list[str]:
    """What the agent writes where it executes the gold SQL and answers."""
    texts = []
    for task in tasks:
        rows = list(task.gold.answer or [])
        texts += [
            str(protocol.write(Operation(task.gold.sql or ""))),
            str(protocol.write(Answer(str(rows)))),
        ]
    return texts


def taught_texts(
    tasks: Sequence[Task], protocol: AgentProtocol, database: Database, habits: Habits, teacher: Callable
) -> list[str]:
    """What the agent writes and reads where it does as the teacher."""
    texts = []
    for task in tasks:
        actions = teacher(task, protocol, database, habits)
        texts += [str(protocol.write(action)) for action in actions]
        texts += [protocol.observe(result) for result in execute_actions(database, task, actions)]
    return texts


def make_model_for(texts: list[str], script_args: ScriptArguments, training_args: SFTConfig) -> str:
    """The folder of a tiny model of random weights, whose tokenizer is made for these texts."""
    if not texts:
        raise ConfigError("tiny-random makes its tokenizer of tasks: name a model for episodes.")
    folder = make_tiny_model(
        Path(training_args.output_dir) / "tiny-random",
        texts,
        hidden_size=script_args.tiny_hidden_size,
        num_layers=script_args.tiny_layers,
        seed=training_args.seed,
    )
    return str(folder)


def main(
    task_args: DemonstrationArguments,
    database_args: DatabaseArguments,
    script_args: ScriptArguments,
    training_args: SFTConfig,
    model_args: ModelConfig,
) -> SFTTrainer:
    checkpoint = find_checkpoint(training_args.output_dir, training_args.resume_from_checkpoint)
    if task_args.eval_tasks:
        raise ConfigError(
            "eval_tasks: fine-tuning plays no episodes. Leave it out, and measure the trained model by "
            f"trl-dbbench eval {training_args.output_dir} --tasks {task_args.eval_tasks}"
        )
    if not (script_args.episodes or task_args.tasks):
        raise ConfigError("say what to learn from: tasks, which are demonstrated, or episodes.")
    tasks = [] if script_args.episodes else task_args.load()
    protocol = get_protocol(script_args.protocol)
    opening = task_args.opening(script_args.protocol, tasks[0]) if tasks else None
    teacher = look_up("teacher", script_args.teacher, TEACHERS)
    habits = Habits(script_args.bad_habits, frozenset(script_args.bad_habit_skills), training_args.seed)
    if model_args.model_name_or_path == "tiny-random":
        texts = [m["content"] for task in tasks for m in protocol.messages(task, opening)]
        texts += gold_texts(tasks, protocol)
        if teacher is not gold_actions:  # it writes more than the gold SQL, and reads what comes of it
            with database_args.open(tasks) as database:
                texts += taught_texts(tasks[:TEXTS], protocol, database, habits, teacher)
        model_args.model_name_or_path = make_model_for(texts, script_args, training_args)
    tokenizer = load_tokenizer(model_args, training_args, script_args.chat_template)
    options = model_init_kwargs(model_args, training_args.model_init_kwargs)
    with loading(f"the model '{model_args.model_name_or_path}'"):
        model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **options)

    eos_ids = eos_token_ids(model.generation_config, tokenizer)
    if script_args.episodes:
        notes: list[str] = []
        dataset = sft_dataset(script_args.episodes, tokenizer, eos_ids, notes)
        played = settings_of(script_args.episodes) or played_as(
            script_args.protocol, chat_template=tokenizer.chat_template
        )
        logging.info(" ".join([f"{len(dataset)} episodes to learn from.", *notes]))
    else:
        chat = ChatFormat(tokenizer, protocol, eos_ids, script_args.chat_template_kwargs)
        with database_args.open(tasks) as database:
            episodes = demonstrate(
                tasks,
                chat,
                database,
                system_prompt=opening,
                habits=habits,
                teacher=teacher,
            )
            played = played_as(
                script_args.protocol,
                [len(episode.turns) for episode in episodes],
                database=database.describe(),
                dialect=database.dialect.name,
                system_prompt=opening,
                chat_template=chat.chat_template,
                chat_template_kwargs=script_args.chat_template_kwargs or {},
            )
        right = sum(episode.right for episode in episodes)
        logging.info("%d demonstrations, %d of them right", len(episodes), right)
        dataset = to_sft_dataset(episodes)

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
