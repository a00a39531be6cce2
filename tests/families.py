"""Tokenizers of model families: the chat template of each, and the special tokens that its models have.

TRL bundles the templates of many; those of other families are written here as their model cards lay them out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from trl_dbbench.episode.templates import bundled_templates, load_chat_template

SPECIAL = re.compile(
    r"<[|｜][^<>\s|｜]+[|｜]?>|<[\w]+\|>|\[/?[A-Z_]+\]|<(?:start|end)_of_\w+>|<(?:image|sop|bos)>"
)
NOT_SPECIAL = re.compile(r"</?(?:tool_call|tool_response|think|arg_key|arg_value)>")
"""Added tokens of Qwen and those after it that are not marked as special, so that decoding keeps them."""


@dataclass(frozen=True)
class Family:
    """`ends` are the tokens that end a turn, as the models' generation configs list them; `more` special tokens that
    the template does not name."""

    template: str
    ends: tuple[str, ...]
    bos: str | None = None
    more: tuple[str, ...] = ()


ENDS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "cohere": (("<|END_OF_TURN_TOKEN|>",), "<BOS_TOKEN>"),
    "deepseek": (("<｜end▁of▁sentence｜>",), "<｜begin▁of▁sentence｜>"),
    "diffusion_gemma": (("<eos>", "<turn|>", "<|tool_response>"), "<bos>"),
    "gemma4": (("<eos>", "<turn|>", "<|tool_response>"), "<bos>"),
    "gemma": (("<eos>", "<end_of_turn>"), "<bos>"),
    "glm4moe": (("<|endoftext|>", "<|user|>", "<|observation|>"), None),
    "gptoss": (("<|return|>", "<|endoftext|>", "<|call|>"), "<|startoftext|>"),
    "idefics3": (("<end_of_utterance>",), "<|begin_of_text|>"),
    "lfm2": (("<|im_end|>",), "<|startoftext|>"),
    "llama3": (("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), "<|begin_of_text|>"),
    "llava_next": (("</s>",), "<s>"),
    "muse_glimmer": (("<|eot|>",), "<|begin_of_text|>"),
    "nemotron": (("<|im_end|>",), "<s>"),
    "phi3": (("<|end|>", "<|endoftext|>", "<|assistant|>"), "<s>"),
    "qwen": (("<|im_end|>", "<|endoftext|>"), None),
    "smolvlm": (("<end_of_utterance>",), "<|im_start|>"),
}
"""The beginning of a template's name -> the tokens that end a turn, and the one that begins a text."""

# a call's form and its roles are what these show; each prints its tools as JSON
_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('Tool call IDs should be of length 9!') }}{% endif %}"
    "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.tool_calls %}CALLS{{ eos_token }}"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
_JSON_CALLS = '[TOOL_CALLS] [{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{% endfor %}]'
_NAMED_CALLS = "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"

GRANITE3 = (
    "{% for m in messages %}<|start_of_role|>{{ 'tool_response' if m.role == 'tool' else m.role }}<|end_of_role|>"
    "{% if m.tool_calls %}<|tool_call|>{{ m.tool_calls | map(attribute='function') | list | tojson }}"
    "{% else %}{{ m.content }}{% endif %}<|end_of_text|>\n"
    "{% if loop.first and tools %}<|start_of_role|>tools<|end_of_role|>{{ tools | tojson }}<|end_of_text|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
PHI4_MINI = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.tool_calls %}<|tool_call|>{{ m.tool_calls | map(attribute='function') | list | tojson }}<|/tool_call|>"
    "{% else %}{{ m.content }}{% endif %}"
    "{% if loop.first and tools %}<|tool|>{{ tools | tojson }}<|/tool|>{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FENCED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.first %}"
    + _TOOLS
    + "{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}```json\n{{ c.function | tojson }}\n```{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OTHERS = {
    "mistral": Family(MISTRAL.replace("CALLS", _JSON_CALLS), ("</s>",), "<s>", ("[IMG]", "[PREFIX]")),
    "mistral_args": Family(MISTRAL.replace("CALLS", _NAMED_CALLS), ("</s>",), "<s>", ("[CALL_ID]",)),
    "granite3": Family(GRANITE3, ("<|end_of_text|>",), None, ("<|fim_prefix|>",)),
    "phi4_mini": Family(
        PHI4_MINI, ("<|end|>", "<|endoftext|>"), None, ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
    ),
    "fenced_json": Family(FENCED, ("<|im_end|>",)),
}


def bundled() -> dict[str, Family]:
    """The families of TRL's templates, without its variants for training."""
    names = sorted(path.name.removesuffix(".jinja") for path in bundled_templates())
    found = {}
    for name in names:
        if name.endswith("_training"):
            continue
        prefix = max((known for known in ENDS if name.startswith(known)), key=len)
        ends, bos = ENDS[prefix]
        more = tuple(f"<|reserved_special_token_{i}|>" for i in range(3)) if prefix == "llama3" else ()
        found[name] = Family(load_chat_template(name), ends, bos, more)
    return found


FAMILIES = {**bundled(), **OTHERS}


def give(tokenizer: PreTrainedTokenizerBase, family: Family) -> list[int]:
    """Makes a tokenizer one of this family; returns the ids that end a turn."""
    if family.bos:
        tokenizer.bos_token = family.bos
    special = dict.fromkeys([*SPECIAL.findall(family.template), *family.ends, *family.more])
    plain = dict.fromkeys(NOT_SPECIAL.findall(family.template))
    # so that `all_special_tokens` does not list them, as with most tokenizers on the hub
    tokenizer.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in special])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in plain])
    tokenizer.eos_token = family.ends[0]
    tokenizer.chat_template = family.template
    return tokenizer.convert_tokens_to_ids(list(family.ends))
