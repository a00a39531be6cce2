"""Chat templates: a tokenizer's own, one from a file or from TRL, and variants that keep earlier thoughts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from trl import apply_chat_template

from trl_dbbench.episode.tool_calls import THOUGHT_FIELDS, THOUGHTS
from trl_dbbench.errors import ConfigError

TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError)
"""Errors that rendering a template can raise."""

THOUGHT_SWITCHES = ("enable_thinking", "thinking")
"""Arguments of templates that switch thoughts on and off."""

_KEEP_THOUGHTS = {
    "preserve_thinking": "true",
    "keep_past_thinking": "true",
    "clear_thinking": "false",
    "drop_thinking": "false",
    "truncate_history_thinking": "false",
}
"""Arguments of templates, and the value with which each keeps the thoughts of earlier turns."""

_READS_THOUGHTS = re.compile(rf"""[.'"](?:{"|".join(THOUGHT_FIELDS)})\b""")


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return the texts of a tokenizer's control tokens, such as those around messages."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return {token for token in special | {*tokenizer.all_special_tokens} if len(token.strip()) > 1}


def as_data(text: str, marks: Iterable[str]) -> str:
    """Break up each of these marks in a text by a space after its first character."""
    for mark in marks:
        if mark in text:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text


def load_chat_template(name_or_path: str) -> str:
    """Return the text of a jinja file, or of TRL's template of that name (`qwen3_training`).

    Raises:
        ConfigError: if it is neither, or the file cannot be read.
    """
    bundled = {path.name.removesuffix(".jinja"): path for path in bundled_templates()}
    path = bundled.get(name_or_path, Path(name_or_path))
    try:
        return path.read_text(encoding="utf-8-sig")
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


def keeping_variants(template: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of templates that may keep the thoughts which this one drops.

    First comes the template with its own arguments set inside it, so that they hold wherever the saved model
    is served; then TRL's variants for training, of all families.
    """
    known = {name: value for name, value in _KEEP_THOUGHTS.items() if re.search(rf"\b{name}\b", template)}
    if known:
        named = ", ".join(f"{name}: {value}" for name, value in known.items())
        set_first = "".join(f"{{%- set {name} = {value} %}}" for name, value in known.items())
        yield f"the model's own with {named}", set_first + template
    for path in sorted(bundled_templates(), key=lambda path: path.name):
        if path.name.endswith("_training.jinja"):
            yield f"TRL's {path.name.removesuffix('.jinja')}", path.read_text(encoding="utf-8")


def knows_thoughts(template: str) -> bool:
    """Return whether a template mentions marks or fields of thoughts."""
    marks = (mark for pair in THOUGHTS for mark in pair)
    return any(mark in template for mark in marks) or bool(_READS_THOUGHTS.search(template))


def check_shows_episodes(
    name: str, tokenizer: Any, observation_role: str, template_kwargs: dict[str, Any], *, remedy: str
) -> None:
    """Raise ConfigError for a reward model that has no tokenizer, or no chat template that shows an episode.

    Args:
        template_kwargs: arguments of the template, including `tools`.
        remedy: advice for the user.
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
