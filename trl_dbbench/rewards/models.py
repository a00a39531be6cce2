"""Reward models read what the policy read: the same roles, tools and settings of the chat template.

TRL renders `Episode.messages` for modules that it calls itself; the trainer tells it the tools. `model:PATH`
and `prm:PATH` of a YAML (`rewards/learned.py`) render themselves.
"""

from __future__ import annotations

from torch import nn
from trl import GRPOTrainer

from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.templates import check_shows_episodes
from trl_dbbench.rewards.learned import LearnedReward
from trl_dbbench.rewards.registry import plain


def prepare_reward_models(trainer: GRPOTrainer, protocol: AgentProtocol) -> None:
    """Tell reward functions that read conversations (`LearnedReward`) how the policy reads them.

    Raises:
        ConfigError: if a reward model's chat template cannot show an episode.
    """
    shown = {**trainer.chat_template_kwargs, "tools": protocol.tools}
    models = zip(
        trainer.reward_func_names, trainer.reward_funcs, trainer.reward_processing_classes, strict=True
    )
    remedy = "Give reward_processing_classes a tokenizer whose chat_template can."
    for name, function, tokenizer in models:
        if isinstance(function, nn.Module):
            check_shows_episodes(name, tokenizer, protocol.observation_role, shown, remedy=remedy)
        elif isinstance(own := plain(function), LearnedReward):
            own.read_as(protocol, trainer.chat_template_kwargs, trainer.accelerator.device)
