"""The tiny model is a whole one: what it saves loads with the Auto classes and chats like a real one."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from worlds.tiny_model import make_tiny_model

TEXTS = ["How many orders are there?", "SELECT COUNT(*) FROM `orders` WHERE id = 12;"] * 3

EXECUTE_SQL = {
    "type": "function",
    "function": {
        "name": "execute_sql",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", TEXTS)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def test_auto_classes_load_it(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    ids = tokenizer("How many?", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=3, do_sample=False).shape[1] <= ids["input_ids"].shape[1] + 3


def test_size_of_the_default_is_about_200_000_parameters(tmp_path):
    words = [f"{a}{b}{c} " for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / "tiny", [" ".join(words)] * 2))
    assert model.config.vocab_size == 1024
    assert 150_000 < model.num_parameters() < 250_000


def test_plain_chat(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "Action: Answer\nFinal Answer: 3"},
        {"role": "user", "content": "Thanks"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHow many?<|im_end|>\n"
        "<|im_start|>assistant\nAction: Answer\nFinal Answer: 3<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_chat_without_a_system_turn_gets_none(tokenizer):
    messages = [{"role": "user", "content": "How many?"}]
    assert (
        tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>user\nHow many?<|im_end|>\n"
    )


def test_chat_with_tools(tokenizer):
    call = {"type": "function", "function": {"name": "execute_sql", "arguments": {"query": "SELECT 'é'"}}}
    broken = {"type": "function", "function": {"name": "execute_sql", "arguments": '{"query": "SELECT 2"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
        {"role": "tool", "content": "[('é',)]"},
        {"role": "assistant", "content": "", "tool_calls": [call, broken]},
    ]
    rendered = tokenizer.apply_chat_template(messages, tools=[EXECUTE_SQL], tokenize=False)
    assert rendered == (
        "<|im_start|>system\nBe brief.\n\nYou can call these functions, each given as a JSON schema:\n"
        '{"type": "function", "function": {"name": "execute_sql", "parameters": {"type": "object", '
        '"properties": {"query": {"type": "string"}}, "required": ["query"]}}}\n'
        "A call is a JSON object in tags:\n<tool_call>\n"
        '{"name": "the function", "arguments": {"its argument": "the value"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nHow many?<|im_end|>\n"
        "<|im_start|>assistant\nLet me look.\n<tool_call>\n"
        '{"name": "execute_sql", "arguments": {"query": "SELECT \'é\'"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n[('é',)]<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT \'é\'"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 2"}}\n'
        "</tool_call><|im_end|>\n"
    )


def test_a_conversation_that_grows_continues_its_own_rendering(tokenizer):
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
        {"role": "tool", "content": "R"},
    ]
    for tools in (None, [EXECUTE_SQL]):
        shown = [
            tokenizer.apply_chat_template(turns[:count], tools=tools, tokenize=False)
            for count in range(1, len(turns) + 1)
        ]
        assert all(longer.startswith(shorter) for shorter, longer in pairwise(shown))


@pytest.mark.parametrize(
    "text",
    [
        "Gabriel García Márquez, naïve, Zoë's 'café'",
        "🙂👩‍👩‍👧 日本語",
        "  two  spaces\t, a tab . and\r\n\nlines 1234567.89\x00",
        '<tool_call>\n{"name": "x"}\n</tool_call><|im_end|>',
    ],
)
def test_what_is_encoded_decodes_to_itself(tokenizer, text):
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_special_tokens_and_tags_are_one_token_each(tokenizer):
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    ids = tokenizer("".join(tokens), add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call></tool_call>"


def test_same_arguments_same_bytes(folder, tmp_path):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    again = make_tiny_model(tmp_path / "again", TEXTS)
    assert contents(again) == contents(folder)
    assert torch.equal(torch.get_rng_state(), state)
    other = make_tiny_model(tmp_path / "other", TEXTS, seed=1)
    differing = [name for name, data in contents(other).items() if data != contents(folder)[name]]
    assert sorted(differing) == ["model.safetensors", "tiny_model.json"]


def test_a_finished_folder_is_kept_and_another_one_replaced(tmp_path):
    folder = make_tiny_model(tmp_path / "tiny", TEXTS)
    times = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    make_tiny_model(folder, TEXTS)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == times
    make_tiny_model(folder, TEXTS, seed=1)
    assert json.loads((folder / "tiny_model.json").read_text())["seed"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_refuses_what_it_cannot_do(tmp_path):
    with pytest.raises(ValueError, match=r"vocab_size \(200\) must be at least 261"):
        make_tiny_model(tmp_path / "tiny", TEXTS, vocab_size=200)
    with pytest.raises(ValueError, match=r"hidden_size \(60\) must be a multiple of 2 \* num_heads \(8\)"):
        make_tiny_model(tmp_path / "tiny", TEXTS, hidden_size=60)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="name another folder"):
        make_tiny_model(tmp_path, TEXTS)
    assert (tmp_path / "notes.txt").read_text() == "mine"
