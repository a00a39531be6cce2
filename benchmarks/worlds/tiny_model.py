"""A very small chat model, made on the spot: for the demo, for tests, for a laptop without a network.

It has the parts of a real one (byte-level BPE, ChatML template with tools, Qwen2 weights), so the same
code loads it, but its weights are random: it writes noise until it is trained.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOOL_CALL_TAGS = ("<tool_call>", "</tool_call>")
MARKER = "tiny_model.json"  # holds the settings; part of every finished folder
SMALLEST_VOCABULARY = 256 + 3 + len(TOOL_CALL_TAGS)  # each byte, the special tokens, the tags

# One turn is `<|im_start|>role\ntext<|im_end|>\n`, whatever came before it, so that a conversation that grows
# is always a continuation of its own earlier rendering. Tools are told in the system turn.
CHAT_TEMPLATE = """\
{%- set first = messages[0] if messages else {'role': ''} %}
{%- set system = first.content if first.role == 'system' else '' %}
{%- if system or tools %}
    {{- '<|im_start|>system\\n' + system }}
    {%- if tools %}
        {{- '\\n\\n' if system else '' }}
        {{- 'You can call these functions, each given as a JSON schema:\\n' }}
        {%- for tool in tools %}
            {{- tool | tojson + '\\n' }}
        {%- endfor %}
        {{- 'A call is a JSON object in tags:\\n<tool_call>\\n' }}
        {{- '{"name": "the function", "arguments": {"its argument": "the value"}}\\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in (messages[1:] if first.role == 'system' else messages) %}
    {%- set text = message.content or '' %}
    {{- '<|im_start|>' + message.role + '\\n' + text }}
    {%- for call in message.tool_calls or [] %}
        {%- set function = call.function or call %}
        {{- '\\n' if text or not loop.first else '' }}
        {{- '<tool_call>\\n{"name": ' + function.name | tojson + ', "arguments": ' }}
        {{- function.arguments if function.arguments is string else function.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' }}"""


def make_tiny_model(
    folder: str | Path,
    texts: Iterable[str],
    *,
    vocab_size: int = 1024,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    max_position_embeddings: int = 2048,
    seed: int = 0,
) -> Path:
    """Makes a Qwen2 model of random weights and a tokenizer trained on `texts`, as `from_pretrained` wants
    them.

    The same arguments give the same files, byte for byte; a folder that already holds their result is left
    as it is, one with the result of other arguments is replaced. About 0.2 M parameters by default, in fp32.

    Args:
        folder: Where the model goes. Appears at once and complete, or not at all.
        texts: What the tokenizer learns its words from. With few texts there are fewer words than
            `vocab_size`.
        vocab_size: Most words, of which 261 are bytes, special tokens and tags.
        max_position_embeddings: Longest conversation in tokens, the answer included.

    Raises:
        ValueError: `vocab_size` is too small, or `hidden_size` gives no even head size.
        FileExistsError: `folder` holds something else.
    """
    _check_sizes(vocab_size, hidden_size, num_heads)
    folder, texts = Path(folder), list(texts)
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "max_position_embeddings": max_position_embeddings,
        "seed": seed,
        "texts_sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
    }
    if _holds(folder, settings):
        return folder
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise FileExistsError(f"{folder} holds files that are not a tiny model; name another folder.")

    tokenizer = _train_tokenizer(texts, vocab_size, max_position_embeddings)
    model = _random_model(tokenizer, settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        (work / MARKER).write_text(json.dumps(settings, indent=2) + "\n")
        work.chmod(0o755)
        if not _holds(folder, settings):  # another process may have made the same one meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _check_sizes(vocab_size: int, hidden_size: int, num_heads: int) -> None:
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"vocab_size ({vocab_size}) must be at least {SMALLEST_VOCABULARY}: one word for each byte, "
            "special token and tag."
        )
    if hidden_size % (2 * num_heads):
        raise ValueError(
            f"hidden_size ({hidden_size}) must be a multiple of 2 * num_heads ({2 * num_heads}): "
            "rotary positions turn pairs of numbers within a head."
        )


def _random_model(tokenizer: Qwen2Tokenizer, settings: dict[str, Any]) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings["hidden_size"],
        intermediate_size=4 * settings["hidden_size"],
        num_hidden_layers=settings["num_layers"],
        num_attention_heads=settings["num_heads"],
        num_key_value_heads=settings["num_heads"],
        max_position_embeddings=settings["max_position_embeddings"],
        tie_word_embeddings=True,
        # a width of 64 to 128 needs more than the 0.02 of wide models, with which the warm start of the
        # quickstart's model did not learn to copy names from the question
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay where they were
        torch.manual_seed(settings["seed"])
        model = Qwen2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def _holds(folder: Path, settings: dict[str, Any]) -> bool:
    marker = folder / MARKER
    return marker.is_file() and json.loads(marker.read_text()) == settings


def _train_tokenizer(texts: list[str], vocab_size: int, max_length: int) -> Qwen2Tokenizer:
    """Byte-level BPE with Qwen2's way of cutting text into words, each digit one of its own.

    AutoTokenizer loads every Qwen2 folder as a `Qwen2Tokenizer`, which brings its own normalizer and
    pre-tokenizer, so the merges are learned under those: text in Unicode's form NFC decodes to itself.
    """
    bpe = Qwen2Tokenizer().backend_tokenizer
    bpe.train_from_iterator(
        [*texts, "system\nuser\nassistant\ntool\n"],  # the roles, which the template writes
        BpeTrainer(
            vocab_size=vocab_size - len(TOOL_CALL_TAGS),
            special_tokens=[PAD, START, END],
            initial_alphabet=sorted(ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    learned = json.loads(bpe.to_str())["model"]
    merges: list[Any] = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=merges,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        padding_side="left",
    )
    # ordinary words, not special ones: decoding with skip_special_tokens must keep the tags
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TOOL_CALL_TAGS])
    return tokenizer
