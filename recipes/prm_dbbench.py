"""Train a process reward model on the episodes of a run, to say of each turn whether it was a good step.

    accelerate launch recipes/prm_dbbench.py --config recipes/prm_quickstart.yaml

It is a causal language model, trained by TRL's SFTTrainer to say `+` or `-` at a placeholder after each turn.
What comes out is a reward function of GRPO that scores turns: `reward_funcs: [prm:PATH]`. Every key of the
YAML is also an option of the command line, which wins. See docs/rewards.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from datasets import Dataset
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config, get_quantization_config

from trl_dbbench import ConfigError, DatabaseArguments
from trl_dbbench.cli.start import load_tokenizer, model_init_kwargs, start
from trl_dbbench.data.reward_data import (
    OF_STEPS,
    Rows,
    check_reader,
    fitting,
    played_in,
    read_settings,
    shown_by,
    steps_of_files,
    steps_of_runs,
)
from trl_dbbench.data.step_labels import label_steps
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.grading.calibration import calibration
from trl_dbbench.rewards.process import ProcessRewardModel, StepReader, step_tokens
from trl_dbbench.runs.checkpoints import find_checkpoint
from trl_dbbench.training.run_folder import played_as, run_folder
from trl_dbbench.utils.settings import as_list, check_number


@dataclass
class ScriptArguments:
    """Training data of the process reward model."""

    placeholder_token: str = field(
        metadata={"help": "Stands after each turn: a token of the vocabulary that means nothing else."}
    )
    reward_tokens: list[str] = field(
        default_factory=lambda: ["+", "-"], metadata={"help": "The tokens for a good step and for a bad one."}
    )
    episodes: list[str] = field(
        default_factory=list, metadata={"help": "Folders of runs: their sampled and greedy episodes."}
    )
    steps: list[str] = field(
        default_factory=list,
        metadata={"help": "Files with input, a text with placeholders, and label, a reward token for each."},
    )
    labels: str = field(
        default="outcome",
        metadata={
            "help": "What makes a turn of an episode a good step: outcome, state_progress, continuations, or "
            "the name of a step reward that the run recorded."
        },
    )
    continuations: int = field(
        default=4, metadata={"help": "Number of continuations played after each turn, for its label."}
    )
    continue_with: str | None = field(
        default=None,
        metadata={
            "help": "What plays them: a run's folder, a checkpoint or a model; the run itself if left out."
        },
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
        self.episodes, self.steps = as_list(self.episodes), as_list(self.steps)
        if not (self.episodes or self.steps):
            raise ConfigError("say what to learn from: episodes, which are runs, or steps.")
        step_tokens(self.placeholder_token, self.reward_tokens)
        check_number("continuations", self.continuations)
        check_number("held_out_share", self.held_out_share)
        if self.chat_template is not None:
            load_chat_template(self.chat_template)


ARGUMENTS = (ScriptArguments, DatabaseArguments, SFTConfig, ModelConfig)


def main(
    script: ScriptArguments, database: DatabaseArguments, args: SFTConfig, model: ModelConfig
) -> SFTTrainer:
    checkpoint = find_checkpoint(args.output_dir, args.resume_from_checkpoint)
    tokenizer = load_tokenizer(model, args, script.chat_template)

    # 1. labelled turns as ids, as the model will read episodes when it is a reward
    settings, notes = read_settings(script.episodes, OF_STEPS), list[str]()
    tokens = step_tokens(script.placeholder_token, script.reward_tokens)
    reader = StepReader(tokenizer, tokens, shown_by(settings))
    check_reader(reader, settings)
    steps = list(steps_of_files(script.steps, reader, tokens))
    if settings is not None:
        played = played_in(script.episodes, notes)
        labels = label_steps(
            played,
            settings,
            script.labels,
            open_database=partial(database.open, [task for _, task in played]),
            k=script.continuations,
            model=script.continue_with or script.episodes[0],
            seed=args.seed,
        )
        steps += steps_of_runs(played, labels, settings, reader)
    rows = Rows.of(fitting(steps, args.max_length, notes), script.held_out_share, args.seed)
    for note in notes:
        logging.warning(note)
    if not rows.train:
        raise ConfigError(
            "no labelled turns to train on. Name runs by `episodes:`, or files with input and label by "
            "`steps:`."
        )
    logging.info("%d episodes to train on, %d held out", len(rows.train), len(rows.held_out))

    # 2. the training
    args.model_init_kwargs = model_init_kwargs(model, args.model_init_kwargs)
    trainer = SFTTrainer(
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
        if trainer.accelerator.is_main_process:
            tokens.write(Path(args.output_dir), labels=script.labels)

    # 3. how far it can be believed
    asked = [reader.labelled_steps(row) for row in rows.held_out]
    good = [label for _, labels in asked for label in labels]
    if good:
        scorer = ProcessRewardModel(args.output_dir, trainer.model, reader)
        ids = [(row["input_ids"], places) for row, (places, _) in zip(rows.held_out, asked, strict=True)]
        p = [each for values in scorer.score_ids(ids) for each in values]
        tasks = [task for task, (places, _) in zip(rows.tasks, asked, strict=True) for _ in places]
        found = calibration(p, good, tasks)
        share = f"{100 * found.base_rate:.1f} % of them good"
        trainer.accelerator.print(f"Held out, {found.n} turns of {found.tasks} tasks, {share}: {found}.")
    trainer.accelerator.print(f"The process reward model is in {args.output_dir}: prm:{args.output_dir}")
    return trainer


if __name__ == "__main__":
    start(ARGUMENTS, main)
