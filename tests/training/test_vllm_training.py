"""Training with real vLLM servers on the CPU: what they generate is what the trained model says. In fp32, but for one."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import SHARDED, TWO_RANKS, fork_ranks, launch_ranks, seen
from peft import LoraConfig, get_peft_model
from training import adapter_of, distance, episodes_in, make_trainer, scored_batch, train_and_look
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_servers import EOS, RealServer, ask, request, running, watched

from trl_dbbench import ConfigError
from trl_dbbench.engines.base import EngineSettings, open_backend
from trl_dbbench.engines.policy import Policy, Precision, ServedPolicy
from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.engines.vllm.engine import VLLMEngine
from trl_dbbench.engines.vllm.servers import VLLMServers
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Episode, Rules, Sampling
from trl_dbbench.evaluation.evaluate import evaluate

NOISE = 1e-4  # of fp32 log-probabilities, in nats


@pytest.fixture
def trainer_on(servable_model, sqlite_database, demo_tasks, tmp_path):
    """A trainer on these servers, two prompts a step."""

    def make(*servers: RealServer, **settings):
        settings = {"max_steps": 3, "per_device_train_batch_size": 8, "max_turn_tokens": 12} | settings
        urls = [server.url for server in servers]
        return make_trainer(
            servable_model,
            sqlite_database,
            demo_tasks[:6],
            tmp_path / "run",
            vllm_server_urls=urls,
            **settings,
        )

    return make


def distances(trainer, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """From the trainer's with the adapter, and from those without it."""
    with trainer.model.disable_adapter():
        base = distance(trainer, batch)
    return distance(trainer, batch), base


def test_three_steps_with_the_adapter_loaded_anew_for_each(trainer_on, real_servers):
    """Each rollout's log-probabilities are those of the weights just before its update, and of no others."""
    trainer = trainer_on(*real_servers, use_rollout_logprobs=True)

    def look(batch):
        held = [server.adapters() for server in real_servers]
        used = torch.equal(batch["old_per_token_logps"], batch["sampling_per_token_logps"])
        return held, *distances(trainer, batch), used

    before = adapter_of(trainer)
    seen = train_and_look(trainer, look)

    names = [held for held, *_ in seen]
    assert all(len(name) == 1 and name == other for name, other in names), "one adapter, the same on both"
    assert len({*names[0][0], *names[1][0], *names[2][0]}) == 3
    for _, from_own, _, reaches_the_loss in seen:
        assert len(from_own) > 200
        assert from_own.max() < NOISE
        assert reaches_the_loss
    from_base = [difference.max() for *_, difference, _ in seen]
    assert from_base[0] < NOISE, "a fresh LoRA adapter changes nothing"
    assert min(from_base[1:]) > 100 * NOISE
    assert any(not torch.equal(before[name], weight) for name, weight in adapter_of(trainer).items())


def test_batches_that_are_played_ahead_are_of_older_weights(trainer_on, real_servers):
    """Their log-probabilities are those of the adapter before the last update, and they reach the loss."""
    trainer = trainer_on(*real_servers, rollouts_ahead=1, max_steps=4)
    weights = []

    def of_adapter(batch, adapter) -> torch.Tensor:
        now = adapter_of(trainer)
        trainer.model.load_state_dict(adapter, strict=False)
        difference = distance(trainer, batch)
        trainer.model.load_state_dict(now, strict=False)
        return difference

    def look(batch):
        weights.append(adapter_of(trainer))
        used = torch.equal(batch["old_per_token_logps"], batch["sampling_per_token_logps"])
        return of_adapter(batch, weights[-2:][0]), of_adapter(batch, weights[-1]), used

    seen = train_and_look(trainer, look)
    assert len(seen) == 4
    for from_older, _, reaches_the_loss in seen:
        assert len(from_older) > 200
        assert from_older.max() < NOISE
        assert reaches_the_loss
    assert min(from_now.max() for _, from_now, _ in seen[2:]) > 10 * NOISE
    older = [e["policy_step"] for e in episodes_in(Path(trainer.args.output_dir)) if e["phase"] == "train"]
    assert older == [0] * 16 + [1] * 8 + [2] * 8


def test_log_probabilities_in_bf16(trainer_on, bf16_server):
    """The server's and the trainer's differ by the rounding of bf16, 3 decimal digits, and by nothing else."""
    trainer = trainer_on(bf16_server, bf16=True, max_steps=2)
    seen = train_and_look(trainer, lambda batch: distances(trainer, batch))
    for from_own, _ in seen:
        assert len(from_own) > 200
        assert from_own.mean() < 0.01
        assert from_own.max() < 0.1
    _, (from_own, from_base) = seen
    assert from_base.mean() > 5 * from_own.mean(), "the adapter was loaded"


def test_three_steps_of_full_weights(trainer_on, real_servers, weights_by_file):
    """Which both servers get before each rollout, in place of those that they had."""
    trainer = trainer_on(*real_servers, lora=False, learning_rate=1e-3)
    # vLLM on a CPU packs a head that is tied to the embeddings, and reloading leaves the packed one as it was
    trainer.model.get_input_embeddings().requires_grad_(False)
    first = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}

    def look(batch):
        now = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        from_own = distance(trainer, batch)
        trainer.model.load_state_dict(first, strict=False)
        from_first = distance(trainer, batch)
        trainer.model.load_state_dict(now, strict=False)
        return from_own, from_first

    differences = train_and_look(trainer, look)
    assert len(differences) == 3
    for from_own, _ in differences:
        assert len(from_own) > 200
        assert from_own.max() < NOISE
    changes = [from_first.max() for _, from_first in differences]
    assert changes[0] < NOISE, "nothing is trained yet"
    assert min(changes[1:]) > 100 * NOISE


@pytest.fixture
def two_ranks(real_servers, weights_by_file, servable_model, tmp_path, monkeypatch):
    """What each of two ranks saw of a scenario; the first server is theirs."""
    monkeypatch.setenv("VLLM_SERVER", real_servers[0].url)

    def play(scenario: str, *, sharded: bool = True) -> list[dict[str, Any]]:
        words = (scenario, servable_model, tmp_path)
        status, output = launch_ranks(SHARDED, *words) if sharded else fork_ranks(TWO_RANKS, *words)
        assert status == 0, output
        return seen(tmp_path, scenario)

    return play


def test_an_adapter_that_two_ranks_train(two_ranks):
    """One loads it into the server; what that says is right for the episodes of both."""
    for rank in two_ranks("loads_adapters", sharded=False):
        assert len(rank["differences"]) == 3
        assert max(rank["differences"]) < NOISE
        assert rank["moved"] > 10 * NOISE


def test_full_weights_that_two_ranks_share(two_ranks):
    """By FSDP2: both gather them, one sends them."""
    for rank in two_ranks("sends_full_weights"):
        assert rank["sharded"]
        assert len(rank["differences"]) == 3
        assert max(rank["differences"]) < NOISE
        assert rank["moved"] > 10 * NOISE


def assert_ended_by_rank_0(ranks: list[dict[str, Any]], error: str) -> None:
    """By an error that begins so; the other rank says whose it is."""
    first, second = (rank["error"] for rank in ranks)
    assert first.startswith(error)
    assert second.startswith(f"RankError: rank 0 failed, and all ranks end with it. Its error: {error}")


def test_a_server_lost_while_two_ranks_send_ends_both(two_ranks, real_servers):
    ranks = two_ranks("server_lost_on_the_way")
    url = real_servers[0].url
    assert_ended_by_rank_0(
        ranks, f"EngineError: the vLLM server {url} failed while the weights were sent to it: reset by peer"
    )
    assert [rank["steps"] for rank in ranks] == [1, 1]


def test_a_rollout_that_fails_on_one_of_two_ranks_ends_both(two_ranks):
    """Their weights are sharded, but a server generates: nothing keeps the ranks from meeting."""
    assert [rank["error"] for rank in two_ranks("rollout_fails_beside_sharded_weights")] == [
        "RankError: rank 1 failed, and all ranks end with it. Its error: MemoryError: 16 GiB",
        "MemoryError: 16 GiB",
    ]


def test_full_weights_that_one_of_two_ranks_cannot_send_end_both(two_ranks, real_servers):
    ranks = two_ranks("cannot_send_full_weights")
    url = real_servers[0].url
    assert_ended_by_rank_0(
        ranks, f"ConfigError: the weights cannot be sent to the vLLM server {url}: no CUDA device. Or"
    )


def test_a_server_that_had_full_weights_and_failed_is_not_used_again(
    trainer_on, real_servers, weights_by_file, monkeypatch, caplog
):
    """It would generate with the weights that it starts with."""
    stays, dies = real_servers
    trainer = trainer_on(stays, dies, lora=False)
    asked: list[tuple[int, str]] = []
    ask = VLLMEngine._ask

    async def ask_or_kill(self, server, request):
        asked.append((trainer.state.global_step, server.url))
        if asked.count((1, dies.url)) == 6 and (1, dies.url) == asked[-1]:
            dies.kill()
            dies.start()
            await asyncio.to_thread(dies.wait)
        return await ask(self, server, request)

    monkeypatch.setattr(VLLMEngine, "_ask", ask_or_kill)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert f"vLLM server {dies.url} fails: " in caplog.text
    assert trainer.state.global_step == 3
    assert {url for step, url in asked if step == 0} == {stays.url, dies.url}
    assert {url for step, url in asked if step == 2} == {stays.url}
    assert {e["status"] for e in episodes_in(Path(trainer.args.output_dir))} == {"turn_limit"}


@pytest.mark.parametrize(
    ("server", "sampling"), [(0, {"top_p": 0.9, "top_k": 50}), (1, {"temperature": 0.7})]
)
def test_log_probabilities_are_the_trainers_own(server, sampling, trainer_on, real_servers):
    """Raw ones at temperature 1 despite top-p and top-k, processed ones at any temperature without them."""
    trainer = trainer_on(real_servers[server], **sampling)
    _, batch = scored_batch(trainer)
    difference = distance(trainer, batch)
    assert len(difference) > 100
    assert difference.max() < NOISE


def test_a_turn_ends_with_the_token_that_ended_it(real_servers, tmp_path):
    """...which is none of the eos tokens that the model declares, but one of those that the engine was given."""
    url = real_servers[0].url
    prompt = {"temperature": 1.0, "seed": 5}
    (long,) = ask(VLLMServers([url], [EOS], tmp_path), request((5, 6, 7), new=12, **prompt))
    ends = long.ids[4]
    (short,) = ask(VLLMServers([url], [ends], tmp_path), request((5, 6, 7), new=12, **prompt))
    assert short.ids == long.ids[: long.ids.index(ends) + 1]
    assert len(short.logprobs) == len(short.ids)


def test_a_turn_does_not_depend_on_its_neighbours(real_servers, tmp_path):
    """Greedy and sampled ones side by side, each with its own seed."""
    turns = [
        request((5, 6, 7), row=0, greedy=True),
        request((5, 6, 7), row=1, temperature=0.8, seed=1),
        request((9,) * 40, row=2, temperature=1.2, top_p=0.9, seed=2),
        request((5, 6, 7), row=3, temperature=0.8, seed=1, turn=1),
    ]
    engine = VLLMServers([real_servers[0].url], [EOS], tmp_path)
    together = [completion.ids for completion in ask(engine, *turns)]
    assert together == [ask(engine, turn)[0].ids for turn in turns]
    assert len(set(map(tuple, together))) == 4


def greedy(engine, tasks, tokenizer, database) -> list[Episode]:
    rules = Rules(max_turns=3, max_turn_tokens=24, max_completion_length=1024, context=2048)
    player = Player.of(tokenizer, database, protocol="tools", eos_token_ids=[EOS], rules=rules)
    return player.play_all([player.start(task, Sampling(greedy=True)) for task in tasks], engine)


def test_greedy_turns_are_the_transformers_engines(
    real_servers, servable_model, demo_tasks, sqlite_database, tmp_path
):
    """In fp32, with an adapter of random weights. Where they part, the two likeliest tokens are nearly as likely."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(servable_model)
    model = get_peft_model(base, LoraConfig(target_modules="all-linear", init_lora_weights=False)).eval()
    tokenizer = AutoTokenizer.from_pretrained(servable_model)
    tasks = demo_tasks[:12]
    remote = VLLMServers([server.url for server in real_servers], [EOS], tmp_path / "adapters")

    def save(folder):
        model.save_pretrained(folder)
        return folder

    try:
        remote.load_adapter(save)
        theirs = greedy(VLLMEngine(remote, remote.adapter), tasks, tokenizer, sqlite_database)
    finally:
        remote.close()
    ours = greedy(TransformersEngine(model, [EOS], tokenizer.pad_token_id), tasks, tokenizer, sqlite_database)

    assert_equal_but_for_near_ties(model, ours, theirs)


def assert_equal_but_for_near_ties(model, ours: list[Episode], theirs: list[Episode]) -> None:
    equal = 0
    for here, there in zip(ours, theirs, strict=True):
        a, b = here.prompt_ids + here.completion_ids, there.prompt_ids + there.completion_ids
        if a == b:
            equal += 1
            continue
        parting = next(place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
        with torch.no_grad():
            likeliest = model(torch.tensor([a[:parting]])).logits[0, -1].topk(2)
        assert set(likeliest.indices.tolist()) == {a[parting], b[parting]}
        assert likeliest.values[0] - likeliest.values[1] < NOISE
    assert equal >= len(ours) // 2


def test_an_evaluation_on_servers_says_what_it_says_in_this_process(
    real_servers, servable_model, demo_tasks, sqlite_database, tmp_path, command
):
    """With an adapter that lies in a folder, as `trl-dbbench eval --vllm-server-urls` plays it."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(servable_model)
    model = get_peft_model(base, LoraConfig(target_modules="all-linear", init_lora_weights=False)).eval()
    model.save_pretrained(tmp_path / "adapter")
    tokenizer = AutoTokenizer.from_pretrained(servable_model)
    urls, tasks = [server.url for server in real_servers], demo_tasks[:12]
    player = Player.of(tokenizer, sqlite_database, protocol="tools", rules=Rules(3, 24))

    policy = ServedPolicy(servable_model, tokenizer, tmp_path / "adapter")
    with closing(open_backend(EngineSettings(vllm_server_urls=urls), policy)) as servers:
        theirs = evaluate(tasks, player, servers, progress=False).episodes
    here = open_backend(EngineSettings(), Policy(model, tokenizer))
    ours = evaluate(tasks, player, here, progress=False).episodes
    assert_equal_but_for_near_ties(model, ours, theirs)
    assert (tmp_path / "adapter" / "adapter_config.json").exists()  # the user's own folder stays

    (tmp_path / "tasks.jsonl").write_text("".join(task.to_json() + "\n" for task in tasks))
    options = ["eval", "--model", servable_model, "--adapter", tmp_path / "adapter"]
    options += ["--tasks", tmp_path / "tasks.jsonl", "--database", "sqlite", "--protocol", "tools"]
    options += ["--max-turn-tokens", 24, "--vllm-server-urls", ",".join(urls)]
    status, output = command(*options, "--json", tmp_path / "evaluation.json")
    assert (status, "overall" in output) == (0, True)
    saved = json.loads((tmp_path / "evaluation.json").read_text())["episodes"]
    assert [e["turns"][0]["text"] for e in saved] == [e.turns[0].text for e in theirs]


def test_a_server_says_what_it_computes_in(real_servers):
    servers = VLLMServers([server.url for server in real_servers], [EOS])
    servers.connect()
    assert {servers.precision_of(server) for server in servers.servers} == {Precision("float32")}
    servers.close()


def test_an_adapter_that_is_too_large_is_refused_with_the_servers_reason(
    real_servers, servable_model, tmp_path
):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(servable_model), LoraConfig(r=32))
    engine = VLLMServers([server.url for server in real_servers], [EOS], tmp_path)
    with pytest.raises(ConfigError, match=r"LoRA rank 32 is greater than max_lora_rank 16.*--max-lora-rank"):
        engine.load_adapter(lambda folder: model.save_pretrained(folder) or folder)
    engine.close()


def test_a_server_killed_in_mid_step_loses_nothing(trainer_on, real_servers, monkeypatch, caplog):
    """Its episodes go on at the other; once it is back, the next rollout uses it again."""
    stays, dies = real_servers
    trainer = trainer_on(stays, dies)
    asked: list[tuple[int, str]] = []
    ask = VLLMEngine._ask

    async def ask_or_kill(self, server, request):
        step = trainer.state.global_step
        asked.append((step, server.url))
        if asked.count((1, dies.url)) == 6 and (1, dies.url) == asked[-1]:
            dies.kill()
        return await ask(self, server, request)

    monkeypatch.setattr(VLLMEngine, "_ask", ask_or_kill)
    load = VLLMServers.load_adapter

    def start_again_and_load(self, save):
        if trainer.state.global_step == 2:
            dies.start()
            dies.wait()
        load(self, save)

    monkeypatch.setattr(VLLMServers, "load_adapter", start_again_and_load)
    with caplog.at_level(logging.WARNING):
        trainer.train()

    assert f"vLLM server {dies.url} fails: " in caplog.text
    assert trainer.state.global_step == 3
    episodes = episodes_in(Path(trainer.args.output_dir))
    assert [e["phase"] for e in episodes] == (["greedy"] * 2 + ["train"] * 8) * 3
    assert {e["status"] for e in episodes} == {"turn_limit"}
    assert all(len(e["turns"]) == 3 for e in episodes)
    for step in (0, 2):
        assert {url for each, url in asked if each == step} == {stays.url, dies.url}
    assert asked.count((1, stays.url)) > asked.count((0, stays.url))
    assert dies.adapters() == stays.adapters() != set()


# --- the tests' own servers -----------------------------------------------------------------------------------

BRIEF = """#!{python}
import http.server, os, sys, threading

class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

def die():
    print("no more room", file=sys.stderr, flush=True)
    os._exit(9)

threading.Timer(2, die).start()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""


def test_a_server_that_dies_by_itself_ends_its_test(tmp_path):
    program = tmp_path / "vllm"
    program.write_text(BRIEF.format(python=sys.executable))
    program.chmod(0o755)
    server = RealServer(str(program), "some/model", tmp_path / "log")
    with (
        pytest.raises(pytest.fail.Exception, match=r"died by itself\. Its last words:\n(?s:.*)no more room"),
        running(server),
        watched(server),
    ):
        time.sleep(100)
