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
    r"<[|｜][^<>\s|｜]+[|｜]?>|<[\w]+\|>|\[/?[A-Z_]+\]|<(?:start|end)_of_\w+>|<(?:image|sop|bos)>|<seed:[be]os>|\[e~\[|\[\|\w+\|\]"
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
LLAMA4 = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|header_start|>ipython<|header_end|>\n\n{{ m.content | tojson }}<|eom|>"
    "{% elif m.tool_calls %}<|header_start|>assistant<|header_end|>\n\n<|python_start|>{{ m.content }}<|python_end|>"
    '{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
    "{% endfor %}<|eom|>"
    "{% else %}<|header_start|>{{ m.role }}<|header_end|>\n\n{% if loop.first %}" + _TOOLS + "{% endif %}"
    "{{ m.content }}<|eot|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|header_start|>assistant<|header_end|>\n\n{% endif %}"
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
    "llama4": Family(LLAMA4, ("<|end_of_text|>", "<|eom|>", "<|eot|>"), "<|begin_of_text|>"),
    "fenced_json": Family(FENCED, ("<|im_end|>",)),
}


# Families that think, with what each template does to the thoughts of earlier turns, to the system turn and to
# observations. Compared with the models' own templates in both protocols.
_LAST_USER = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
_SPLIT = (
    "{% set said = m.content or '' %}{% set thought = m.reasoning_content or '' %}"
    "{% if not thought and '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
)
_CALL = "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
_INVOKED = (
    '{% if m.tool_calls %}\n<minimax:tool_call>\n{% for c in m.tool_calls %}<invoke name="{{ c.function.name }}">\n'
    '{% for k, v in c.function.arguments.items() %}<parameter name="{{ k }}">{{ v if v is string else v | tojson }}'
    "</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>{% endif %}"
)
_SEED_CALL = (
    "{% for c in m.tool_calls or [] %}\n<seed:tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v if v is string else v | string }}"
    "</parameter>\n{% endfor %}</function>\n</seed:tool_call>{% endfor %}"
)
_ACTION = (
    "{% if m.tool_calls %}<|START_ACTION|>[\n{% for c in m.tool_calls %}"
    '    {"tool_call_id": "0", "tool_name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
    "{% endfor %}\n]<|END_ACTION|>{% endif %}"
)
_KIMI_CALL = (
    "{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
)
_RESULT = "<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"


def chatml(turn: str, prompt: str = "", call: str = _CALL, result: str = _RESULT) -> str:
    """ChatML with the tools in the system turn. `turn` renders an assistant's, `prompt` begins the next one."""
    return (
        f"{_LAST_USER}{{% for m in messages %}}{{% if m.role == 'assistant' %}}{_SPLIT}<|im_start|>assistant\n"
        f"{turn}{call}<|im_end|>\n{{% elif m.role == 'tool' %}}{result}"
        f"{{% else %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}{{% if loop.first %}}{_TOOLS}{{% endif %}}"
        f"<|im_end|>\n{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}<|im_start|>assistant\n{prompt}{{% endif %}}"
    )


_AFTER_THE_QUESTION = (
    "{% if loop.index0 > ns.last and (loop.last or thought) %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
)
_OFF = "{% if enable_thinking is defined and not enable_thinking %}"
_ON = "{% if enable_thinking is defined and enable_thinking %}"
_ENDS = ("<|im_end|>",)
_DEEPSEEK_SPLIT = "{% set said = m.content.split('</think>')[-1] %}"

THINKING = {
    "command_r7b": Family(
        chatml(
            "{% if thought %}<|START_THINKING|>{{ thought }}<|END_THINKING|>{% endif %}{{ said }}",
            "<|START_THINKING|>{% if not enable_thinking %}<|END_THINKING|>{% endif %}",
            call=_ACTION,
        ),
        _ENDS,
    ),
    "deepseek_v3_1": Family(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
        "{% elif m.role == 'user' %}<｜User｜>{{ m.content }}"
        "{% elif m.role == 'assistant' %}" + _DEEPSEEK_SPLIT + "<｜Assistant｜><think></think>{{ said }}"
        "<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<｜Assistant｜><think>{% if not thinking %}</think>{% endif %}{% endif %}",
        ("<｜end▁of▁sentence｜>",),
        "<｜begin▁of▁sentence｜>",
    ),
    "exaone4": Family(
        chatml(
            "<think>\n\n</think>\n\n{{ said }}",
            f"{_ON}<think>\n{{% else %}}<think>\n\n</think>\n\n{{% endif %}}",
        )
        .replace("<|im_start|>assistant", "[|assistant|]")
        .replace("<|im_start|>user", "[|tool|]")
        .replace("<|im_start|>{{ m.role }}", "[|{{ m.role }}|]")
        .replace("<|im_end|>", "[|endofturn|]"),
        ("[|endofturn|]",),
    ),
    "glm4_7": Family(
        "[gMASK]<sop>"
        + _LAST_USER
        + "{% for tool in tools or [] %}{% if loop.first %}<|system|>{% endif %}{{ tool | tojson }}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'tool' %}<|observation|><tool_response>{{ m.content }}</tool_response>"
        "{% elif m.role == 'assistant' %}" + _SPLIT + "<|assistant|>"
        "{% if thought and (clear_thinking is defined and not clear_thinking or loop.index0 > ns.last) %}"
        "<think>{{ thought.strip() }}{% endif %}</think>{{ said.strip() }}"
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>"
        "{{ v if v is string else v | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}"
        "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>"
        + _OFF
        + "</think>{% else %}<think>{% endif %}{% endif %}",
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
    ),
    "granite3_3": Family(
        chatml(
            "{{ m.content }}{% if thinking and loop.first %}<think>{% endif %}",
            call="",
            result="{{ m.content }}",
        )
        .replace("<|im_start|>assistant\n", "<|start_of_role|>assistant<|end_of_role|>")
        .replace("<|im_start|>{{ m.role }}\n", "<|start_of_role|>{{ m.role }}<|end_of_role|>")
        .replace("<|im_end|>", "<|end_of_text|>"),
        ("<|end_of_text|>",),
    ),
    "hermes3": Family(
        chatml(
            "{{ m.content }}",
            result="<|im_start|>tool\n<tool_response>\n{{ m.content }}\n</tool_response>"
            "{{ '' if loop.last else '\n' }}<|im_end|>",
        ),
        _ENDS,
    ),
    "kimi_k2_thinking": Family(
        chatml(
            "<think>{% if m.tool_calls %}{{ thought }}{% endif %}</think>{{ m.content }}",
            call=_KIMI_CALL,
            result="{% set _ = messages.append(m) %}",  # which the sandbox of templates refuses
        )
        .replace("<|im_start|>assistant\n", "<|im_assistant|>assistant<|im_middle|>")
        .replace("<|im_start|>{{ m.role }}\n", "<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"),
        _ENDS,
    ),
    "minimax_m2": Family(
        chatml(_AFTER_THE_QUESTION + "{{ said }}", "<think>\n", call=_INVOKED)
        .replace("<|im_start|>", "]~b]")
        .replace("<|im_end|>", "[e~["),
        ("[e~[",),
    ),
    "ministral3_reasoning": Family(
        MISTRAL.replace("CALLS", "{{ m.content }}" + _NAMED_CALLS).replace(
            "{% else %}{{ m.content }}",
            "{% else %}{% if m.content is string %}{{ m.content }}"
            "{% else %}{% for part in m.content %}[THINK]{{ part.thinking }}[/THINK]{% endfor %}{% endif %}",
        ),
        ("</s>",),
        "<s>",
    ),
    "mistral_nemo": Family(
        "{{ bos_token }}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% for m in messages %}"
        "{% if m.role == 'user' %}[INST]{{ messages[0].content if loop.last }}{{ m.content }}[/INST]"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
        "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        ("</s>",),
        "<s>",
    ),
    "qwen3_first": Family(
        chatml(_AFTER_THE_QUESTION + "{{ said }}", _OFF + "<think>\n\n</think>\n\n{% endif %}"), _ENDS
    ),
    "qwen3_thinking_2507": Family(chatml(_AFTER_THE_QUESTION + "{{ said }}", "<think>\n"), _ENDS),
    "qwq": Family(chatml("{{ m.content if loop.last else said }}", "<think>\n"), _ENDS),
    "seed_oss": Family(
        chatml(
            "{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content | trim }}</seed:think>{% endif %}"
            "{{ '\n' + m.content | trim }}",
            call=_SEED_CALL,
        )
        .replace("<|im_start|>", "<seed:bos>")
        .replace("<|im_end|>", "<seed:eos>"),
        ("<seed:eos>",),
    ),
    "smollm3": Family(
        chatml(
            _OFF + "<think>\n\n</think>\n{% endif %}{{ m.content.lstrip('\n') }}",
            _OFF + "<think>\n\n</think>\n{% endif %}",
        ).replace(_TOOLS, ""),
        _ENDS,
    ),
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


FAMILIES = {**bundled(), **OTHERS, **THINKING}


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
