"""An endpoint that is a real vLLM server on the CPU: its answers are those of the transformers engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_servers import RealServer, running, watched

from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.protocol import ToolsProtocol, get_protocol
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.episode.types import Sampling
from trl_dbbench.integrations.endpoints.http import Endpoint, TooLong
from trl_dbbench.integrations.endpoints.messages import Call, Message, Reply
from trl_dbbench.runs.records import EpisodeRecord
from trl_dbbench.tasks import Task, load_tasks

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
PROMPT = "Work on the MySQL database."
NOISE = 1e-4
"""Of fp32 logits."""


@pytest.fixture(scope="module")
def server(vllm_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Serves the demo's model and parses tool calls."""
    options = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--generation-config", "vllm"]
    options += ["--trust-request-chat-template"]
    log = tmp_path_factory.mktemp("vllm") / "log"
    server = RealServer(vllm_program, str(TINY / "model"), log, "--served-model-name", "tiny", *options)
    with running(server), watched(server):
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_greedy_episodes_are_the_transformers_engines(
    protocol: str, server: RealServer, command: Callable, tmp_path: Path
) -> None:
    """In fp32. Where two turns part, the two likeliest tokens are nearly as likely.

    The demo's model knows the text protocol and works several turns; of tools it writes no readable call.
    """
    tasks = load_tasks(TINY / "test.jsonl")[:24]
    (tmp_path / "tasks.jsonl").write_text("".join(task.to_json() + "\n" for task in tasks))
    options = ["--tasks", tmp_path / "tasks.jsonl", "--database", "sqlite", "--system-prompt", PROMPT]
    options += ["--protocol", protocol, "--max-turn-tokens", "48"]
    options += ["--max-turns", "3" if protocol == "text" else "1"]

    def evaluated(name: str, *model: object) -> list[EpisodeRecord]:
        code, _ = command("eval", *model, *options, "--json", tmp_path / name)
        assert code == 0, code
        return json.loads((tmp_path / name).read_text())["episodes"]

    theirs = evaluated("theirs.json", "--endpoint", server.url, "--model", "tiny")
    ours = evaluated("ours.json", "--model", TINY / "model", "--dtype", "float32")
    equal = sum(
        episodes_agree(protocol, task, here, there)
        for task, here, there in zip(tasks, ours, theirs, strict=True)
    )
    assert equal >= len(tasks) // 2
    if protocol == "text":
        assert any(len(episode["turns"]) > 1 and episode["right"] for episode in theirs)


def episodes_agree(protocol: str, task: Task, ours: EpisodeRecord, theirs: EpisodeRecord) -> bool:
    """Whether both say the same, counts of tokens too; if not, that they part at a near-tie."""
    assert ours.get("prompt_tokens") == theirs.get("prompt_tokens")
    for number, (here, there) in enumerate(zip(ours["turns"], theirs["turns"], strict=False)):
        if here["text"] != there["text"]:
            assert_near_tie(protocol, task, ours, number, there["text"])
            return False
        # vLLM counts the token that ends a turn, as we do
        assert (here["tokens"], here["observation"]) == (there["tokens"], there["observation"])
    assert len(ours["turns"]) == len(theirs["turns"])
    assert (ours["status"], ours["right"]) == (theirs["status"], theirs["right"])
    return True


def assert_near_tie(protocol: str, task: Task, ours: EpisodeRecord, number: int, other: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY / "model")
    model = AutoModelForCausalLM.from_pretrained(TINY / "model", dtype=torch.float32)
    chat = ChatFormat(tokenizer, get_protocol(protocol))
    ids = chat.prompt_ids(chat.protocol.messages(task, PROMPT))
    for turn in ours["turns"][:number]:
        ids += chat.ids_of(turn["text"])
        ids += chat.observation_ids(turn["observation"] or "", end=tokenizer.eos_token_id)
    a, b = chat.ids_of(ours["turns"][number]["text"]), chat.ids_of(other)
    parting = next(place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    with torch.no_grad():
        likeliest = model(torch.tensor([ids + a[:parting]])).logits[0, -1].topk(2)
    assert likeliest.values[0] - likeliest.values[1] < NOISE


@pytest.mark.slow
def test_a_server_takes_broken_calls_in_the_conversation(server: RealServer) -> None:
    """Its template gets arguments that are objects, whatever the model wrote."""
    protocol = ToolsProtocol()
    reply = Reply("", [Call("call_0", "execute_sql", '{"query": "SELE'), Call("call_1", "no_such", "{}")])
    opening: list[Message] = [*protocol.messages(load_tasks(TINY / "test.jsonl")[0], PROMPT)]
    conversation = [*opening, reply.message(protocol), *reply.observed("Error: no JSON", protocol)]

    async def ask(messages: list[Message], tokens: int = 4) -> Reply:
        endpoint = Endpoint(server.url, "tiny", patience=0.0)
        async with endpoint.connected():
            return await endpoint.reply(messages, protocol.tools, tokens, Sampling(greedy=True))

    told = asyncio.run(ask(conversation))
    assert told.usage is not None and told.usage.written == 4
    with pytest.raises(TooLong):
        asyncio.run(ask([*opening, {"role": "user", "content": "many words " * 2000}]))
    assert asyncio.run(ask(opening, tokens=4000)).squeezed, "it is asked for what 2,048 leave"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["as reasoning", "in the text"])
def test_a_server_renders_the_ids_of_training(form: str, server: RealServer) -> None:
    """The conversation has thoughts. Qwen3's own template drops them; the one that the trained model is saved with
    keeps them."""
    tokenizer = AutoTokenizer.from_pretrained(TINY / "model")
    tokenizer.chat_template = load_chat_template("qwen3")
    chat = ChatFormat(tokenizer, get_protocol("text"))
    messages: list[Message] = [*chat.protocol.messages(load_tasks(TINY / "test.jsonl")[0], PROMPT)]
    ids = chat.prompt_ids(messages)
    for thought, said in [
        ("Which tables?", "Action: Operation\n```sql\nSELECT 1\n```"),
        ("Done.", "Action: Answer"),
    ]:
        turn = f"<think>\n{thought}\n</think>\n\n{said}"
        ids += [*chat.ids_of(turn), *chat.observation_ids("[]", end=tokenizer.eos_token_id)]
        content = {"content": said, "reasoning": thought} if form == "as reasoning" else {"content": turn}
        messages += [{"role": "assistant", **content}, {"role": "user", "content": "[]"}]

    def rendered(template: object) -> list[int]:
        body = {"model": "tiny", "messages": messages, "chat_template": template, "add_special_tokens": False}
        return httpx2.post(f"{server.url}/tokenize", json=body).raise_for_status().json()["tokens"]

    assert rendered(chat.chat_template) == ids
    assert rendered(load_chat_template("qwen3")) != ids
