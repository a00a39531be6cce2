"""Train an agent by TRL's own GRPOTrainer, with our databases as environments of its tool loop.

    accelerate launch recipes/environment_dbbench.py --config recipes/qwen2.5-7b-environment.yaml

The tasks, the database, the judge and the rewards are those of `grpo_dbbench.py`; everything else is TRL's.
docs/integrations.md says what that lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import GRPOConfig, GRPOTrainer, ModelConfig, get_peft_config, get_quantization_config

from trl_dbbench.cli.arguments import DatabaseArguments, RewardArguments, TaskArguments
from trl_dbbench.cli.start import load_tokenizer, model_init_kwargs, start
from trl_dbbench.episode.dataset import tasks_to_check
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.episode.types import Rules
from trl_dbbench.integrations.environment import KINDS, environment_reward, environments
from trl_dbbench.runs.checkpoints import find_checkpoint
from trl_dbbench.training.run_folder import played_as, run_folder


@dataclass
class EnvironmentArguments:
    """Use of the environment."""

    protocol: str = field(
        default="tools",
        metadata={"help": "tools, or tools_sql for answers that are SQL.", "choices": list(KINDS)},
    )
    grader: str | None = field(
        default=None, metadata={"help": "Judges all answers; left out, the one that each task names."}
    )
    max_turns: int = field(default=Rules.max_turns, metadata={"help": "Tool calls of an episode."})


ARGUMENTS = (
    *(TaskArguments, RewardArguments, DatabaseArguments),
    *(EnvironmentArguments, GRPOConfig, ModelConfig),
)


def main(
    tasks: TaskArguments,
    rewards: RewardArguments,
    database: DatabaseArguments,
    environment: EnvironmentArguments,
    args: GRPOConfig,
    model: ModelConfig,
) -> GRPOTrainer:
    checkpoint = find_checkpoint(args.output_dir, args.resume_from_checkpoint)
    train_dataset, eval_dataset = tasks.datasets(environment.protocol, environment.grader)
    to_play = list(tasks_to_check(train_dataset, eval_dataset))
    args.model_init_kwargs = model_init_kwargs(model, args.model_init_kwargs)
    if args.max_tool_calling_iterations is None:
        args.max_tool_calling_iterations = environment.max_turns
    with (
        database.open(to_play) as opened,
        environments(
            opened, environment.protocol, grader=environment.grader, max_turns=environment.max_turns
        ) as new_environment,
    ):
        trainer = GRPOTrainer(
            model=model.model_name_or_path,
            environment_factory=new_environment,
            reward_funcs=[environment_reward(each) for each in rewards.load(opened)],
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=load_tokenizer(model, args, padding_side="left"),
            quantization_config=get_quantization_config(model),
            peft_config=get_peft_config(model),
        )
        played = played_as(
            environment.protocol,
            [environment.max_turns],
            database=opened.describe(),
            dialect=opened.dialect.name,
            grader=environment.grader,
            system_prompt=tasks.opening(
                get_protocol(environment.protocol, grader=environment.grader), to_play
            ),
            schema=tasks.schema,
            chat_template_kwargs=args.chat_template_kwargs or {},
            # TRL has no limit of a turn's tokens
            max_turn_tokens=args.max_completion_length,
            max_completion_length=args.max_completion_length,
        )
        with run_folder(trainer, checkpoint, played):
            trainer.train(resume_from_checkpoint=checkpoint)
            trainer.save_model(args.output_dir)
        trainer.accelerator.print(f"The model is in {args.output_dir}.")
    return trainer


if __name__ == "__main__":
    start(ARGUMENTS, main)
