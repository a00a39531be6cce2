"""Train a reward model on the episodes of a run, to prefer right ones to wrong ones of the same task.

    accelerate launch recipes/rm_dbbench.py --config recipes/rm_quickstart.yaml

The trainer is TRL's RewardTrainer. What comes out is a reward function of GRPO: `reward_funcs: [model:PATH]`.
Every key of the YAML is also an option of the command line, which wins. See docs/rewards.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from datasets import Dataset
from trl import ModelConfig, RewardConfig, RewardTrainer, get_peft_config, get_quantization_config

from trl_dbbench import ConfigError
from trl_dbbench.cli.start import load_tokenizer, model_init_kwargs, start
from trl_dbbench.data.reward_data import (
    Rows,
    check_reader,
    fitting,
    pairs_of_files,
    pairs_of_runs,
    read_settings,
    shown_by,
)
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.grading.calibration import pair_calibration
from trl_dbbench.rewards.learned import Reader, RewardModel
from trl_dbbench.runs.checkpoints import find_checkpoint
from trl_dbbench.training.run_folder import played_as, run_folder
from trl_dbbench.utils.settings import as_list, check_number


@dataclass
class ScriptArguments:
    """Training data of the reward model."""

    episodes: list[str] = field(
        default_factory=list, metadata={"help": "Folders of runs: their sampled and greedy episodes."}
    )
    pairs: list[str] = field(
        default_factory=list,
        metadata={"help": "Files with chosen and rejected, and prompt if there is one: texts or messages."},
    )
    pairs_per_task: int = field(
        default=8, metadata={"help": "Maximum number of pairs for each task of a run."}
    )
    held_out_share: float = field(
        default=0.1, metadata={"help": "Share of the tasks held out to measure the model."}
    )
    chat_template: str | None = field(
        default=None,
        metadata={
            "help": "Replaces the model's: a jinja file, or the name of one of TRL's, as qwen3_training."
        },
    )

    def __post_init__(self) -> None:
        self.episodes, self.pairs = as_list(self.episodes), as_list(self.pairs)
        if not (self.episodes or self.pairs):
            raise ConfigError("say what to learn from: episodes, which are runs, or pairs.")
        check_number("pairs_per_task", self.pairs_per_task)
        check_number("held_out_share", self.held_out_share)
        if self.chat_template is not None:
            load_chat_template(self.chat_template)


ARGUMENTS = (ScriptArguments, RewardConfig, ModelConfig)


def main(script: ScriptArguments, args: RewardConfig, model: ModelConfig) -> RewardTrainer:
    checkpoint = find_checkpoint(args.output_dir, args.resume_from_checkpoint)
    tokenizer = load_tokenizer(model, args, script.chat_template)

    # 1. pairs as ids, as the model will read episodes when it is a reward
    settings, notes = read_settings(script.episodes), list[str]()
    reader = Reader(tokenizer, shown_by(settings))
    check_reader(reader, settings)
    pairs = [
        *pairs_of_runs(script.episodes, reader, per_task=script.pairs_per_task, seed=args.seed, notes=notes),
        *pairs_of_files(script.pairs, reader),
    ]
    rows = Rows.of(fitting(pairs, args.max_length, notes), script.held_out_share, args.seed)
    for note in notes:
        logging.warning(note)
    if not rows.train:
        raise ConfigError(
            "no pairs to train on: a task gives some if one of its episodes is right and another wrong. Name "
            "runs by `episodes:`, or files with chosen and rejected by `pairs:`."
        )
    logging.info("%d pairs to train on, %d held out", len(rows.train), len(rows.held_out))

    # 2. the training
    model.lora_task_type = "SEQ_CLS"  # so that the score head is trained and saved with an adapter
    args.model_init_kwargs = model_init_kwargs(model, args.model_init_kwargs)
    trainer = RewardTrainer(
        model=model.model_name_or_path,
        args=args,
        train_dataset=Dataset.from_list(rows.train),
        eval_dataset=Dataset.from_list(rows.held_out) if rows.held_out else None,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    with run_folder(trainer, checkpoint, settings or played_as("text")):
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model(args.output_dir)

    # 3. how far it can be believed
    if rows.held_out:
        scorer = RewardModel(args.output_dir, trainer.model, reader)
        better = scorer.score_ids([row["chosen_ids"] for row in rows.held_out])
        worse = scorer.score_ids([row["rejected_ids"] for row in rows.held_out])
        found = pair_calibration([a - b for a, b in zip(better, worse, strict=True)], rows.tasks)
        trainer.accelerator.print(f"Held out, {found.n} pairs of {found.tasks} tasks: {found}.")
    trainer.accelerator.print(f"The reward model is in {args.output_dir}: model:{args.output_dir}")
    return trainer


if __name__ == "__main__":
    start(ARGUMENTS, main)
