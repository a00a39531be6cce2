"""Reward models read what the policy read: the same roles, tools and settings of the chat template.

TRL renders the prompt and the completion for them, which is `Episode.messages`. Only of the tools it does not
know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from trl import GRPOTrainer, apply_chat_template

from trl_dbbench.errors import ConfigError
from trl_dbbench.protocol import AgentProtocol
from trl_dbbench.templates import TEMPLATE_ERRORS


@contextmanager
def showing_tools(trainer: GRPOTrainer, protocol: AgentProtocol) -> Iterator[None]:
    """Has TRL show the protocol's tools to reward models, in `_calculate_rewards`."""
    own = trainer.chat_template_kwargs
    trainer.chat_template_kwargs = {**own, "tools": protocol.tools}
    try:
        yield
    finally:
        trainer.chat_template_kwargs = own


def check_reward_models(trainer: GRPOTrainer, protocol: AgentProtocol) -> None:
    """Finds a reward model whose chat template cannot show an episode.

    Raises:
        ConfigError: if there is one.
    """
    shown = {**trainer.chat_template_kwargs, "tools": protocol.tools}
    models = zip(
        trainer.reward_func_names, trainer.reward_funcs, trainer.reward_processing_classes, strict=True
    )
    for name, function, tokenizer in models:
        if isinstance(function, nn.Module):
            _check_template(name, tokenizer, protocol.observation_role, shown)


def _check_template(
    name: str, tokenizer: Any, observation_role: str, template_kwargs: dict[str, Any]
) -> None:
    turns = [
        ("system", "RULES"),
        ("user", "QUESTION"),
        ("assistant", "STATEMENT"),
        (observation_role, "OBSERVATION"),
        ("assistant", "ANSWER"),
    ]
    remedy = "Give reward_processing_classes a tokenizer whose chat_template can."
    if tokenizer is None:
        raise ConfigError(f"the reward model {name!r} has no tokenizer. {remedy}")
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        text = apply_chat_template({"messages": messages}, tokenizer, **template_kwargs)["text"]
    except TEMPLATE_ERRORS as error:
        raise ConfigError(
            f"the chat template of the reward model {name!r} cannot render an observation in the role "
            f"{observation_role!r}: {error}. {remedy}"
        ) from None
    if lost := [content for _, content in turns if content not in text]:
        raise ConfigError(
            f"the chat template of the reward model {name!r} does not show the {lost[0].lower()} of an "
            f"episode. {remedy}"
        )
