"""Chat templates: a tokenizer's own, from a file, or bundled with TRL."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from trl import apply_chat_template
from trl.chat_template_utils import get_training_chat_template

from trl_dbbench.errors import ConfigError

TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError)
"""Errors that rendering a template can raise."""


def load_chat_template(name_or_path: str) -> str:
    """Return the text of a jinja file, or of TRL's template of that name (`qwen3_training`).

    Raises:
        ConfigError: if it is neither, or the file cannot be read.
    """
    bundled = {path.name.removesuffix(".jinja"): path for path in bundled_templates()}
    path = bundled.get(name_or_path, Path(name_or_path))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the chat_template {name_or_path!r} cannot be read: {error}. Give the path of a jinja file, or "
            f"the name of one of TRL's: {', '.join(sorted(bundled))}."
        ) from None


def bundled_templates() -> list[Any]:
    """Return the template files of the installed TRL."""
    return [path for path in (files("trl") / "chat_templates").iterdir() if path.name.endswith(".jinja")]


def own_template(tokenizer: PreTrainedTokenizerBase, tools: list[dict[str, Any]] | None) -> str:
    """Return a tokenizer's own template; if it has several and there are tools, the one for tools.

    Raises:
        ConfigError: if it has none.
    """
    try:
        return tokenizer.get_chat_template(tools=tools)
    except ValueError:
        raise ConfigError(
            f"the tokenizer of '{tokenizer.name_or_path}' has no chat template. Take an instruction-tuned "
            "model, or name a template with `chat_template:`, a jinja file or one of TRL's, such as qwen3."
        ) from None


def training_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return TRL's training variant of a tokenizer's template, if TRL has one."""
    try:
        return get_training_chat_template(tokenizer)
    except TEMPLATE_ERRORS:
        return None


def check_shows_episodes(
    name: str, tokenizer: Any, observation_role: str, template_kwargs: dict[str, Any], *, remedy: str
) -> None:
    """Raise for a reward model whose chat template cannot show an episode.

    Args:
        name: the model's, for the error's text.
        template_kwargs: arguments of the template, including `tools`.
        remedy: advice for the user.

    Raises:
        ConfigError: if it has no tokenizer, or its template refuses a role or leaves a message out.
    """
    turns = [
        ("system", "RULES"),
        ("user", "QUESTION"),
        ("assistant", "STATEMENT"),
        (observation_role, "OBSERVATION"),
        ("assistant", "ANSWER"),
    ]
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
