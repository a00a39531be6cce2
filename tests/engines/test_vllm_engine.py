"""The vLLM engine against scripted servers: what it asks, where it asks, and what it does when a server fails.

Real servers follow in test_vllm_training.py."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import httpx2
import pytest
import training
from anyio.from_thread import start_blocking_portal
from launching import RECIPE, fork_ranks, small
from peft import LoraConfig
from test_in_process import longrope_config
from training import episodes_in, make_trainer
from trl.generation import vllm_client, vllm_generation
from vllm_servers import EOS, FakeServer, ask, completion, error, request

from trl_dbbench import ConfigError, DBBenchGRPOConfig
from trl_dbbench.engines.base import EngineSettings
from trl_dbbench.engines.policy import AUTO, Precision, ServedPolicy
from trl_dbbench.engines.vllm import engine as vllm
from trl_dbbench.engines.vllm import servers
from trl_dbbench.engines.vllm.engine import VLLMEngine
from trl_dbbench.engines.vllm.servers import VLLMServers
from trl_dbbench.episode.types import Completion, Sampling
from trl_dbbench.errors import EngineError


@pytest.fixture
def engine_of(tmp_path):
    """An engine connected to these servers."""
    engines = []

    def make(*servers: FakeServer, connect: bool = True, **settings) -> VLLMServers:
        engines.append(
            VLLMServers([server.url for server in servers], [EOS], tmp_path / "adapters", **settings)
        )
        if connect:
            engines[-1].connect()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def save(folder: Path) -> Path:
    """What PEFT saves, as far as the scripted server looks."""
    (folder / "adapter_model.safetensors").touch()
    return folder


# --- what it asks -----------------------------------------------------------------------------------


def test_a_turn_is_a_request_with_its_own_sampling(fakes, engine_of):
    (server,) = fakes(1)
    ask(
        engine_of(server),
        request((5, 6, 7), row=0, new=9, temperature=0.8, top_p=0.95, top_k=40, seed=3),
        request((5, 6, 7, 11, EOS, 8), row=0, turn=1, new=4, temperature=0.8, top_p=0.95, top_k=40, seed=3),
        request((5, 6, 7), row=1, temperature=0.8, greedy=True),
    )
    first, greedy, second = sorted(
        server.turns, key=lambda body: (len(body["prompt"]), body["temperature"] == 0)
    )

    assert first == {
        "model": "base",
        "prompt": [5, 6, 7],
        "max_tokens": 9,
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 40,
        "seed": 3 * 1_000_003,
        # what the model's generation_config.json may say otherwise
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "stop_token_ids": [EOS],
        "logprobs": 0,
        "return_token_ids": True,
    }
    assert (second["prompt"], second["max_tokens"]) == ([5, 6, 7, 11, EOS, 8], 4)
    assert second["seed"] == 3 * 1_000_003 + 1
    assert (greedy["prompt"], greedy["temperature"]) == ([5, 6, 7], 0.0)


def test_a_completion_has_the_token_that_ended_it(fakes, engine_of):
    whole, cut = ask(engine_of(*fakes(1)), request(row=0), request(row=1, new=2))
    assert whole == Completion([11, 12, EOS], [-1 / 8, -2 / 8, -3 / 8])
    assert cut == Completion([11, 12], [-1 / 8, -2 / 8])


def test_the_api_key_is_sent_along(fakes, engine_of, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    (server,) = fakes(1)
    ask(engine_of(server), request())
    assert server.authorization == "Bearer secret"


# --- whose log-probabilities they are ---------------------------------------------------------------


def of_processed_logprobs(path: str, body: dict):
    """As of a server started with `--logprobs-mode processed_logprobs`."""
    if path == "/v1/completions" and body["top_k"] == 1:
        return 200, completion((11,), [0.0])
    return NotImplemented


@pytest.mark.parametrize(
    ("processed", "sampling", "known"),
    [
        (False, {}, True),
        (False, {"top_p": 0.9, "top_k": 40}, True),  # raw ones are of temperature 1, before top-p and top-k
        (False, {"temperature": 0.8}, False),
        (False, {"greedy": True}, True),
        (False, {"greedy": True, "temperature": 0.8}, False),
        (True, {"temperature": 0.8}, True),
        (True, {"temperature": 0.8, "top_p": 0.9}, False),
        (True, {"top_k": 40}, False),
        (True, {"greedy": True, "top_p": 0.9}, True),  # greedy ones are of temperature 1 there as well
        (True, {"greedy": True, "temperature": 0.8}, False),
        (True, {"temperature": 0.001}, False),  # vLLM takes it for 0.01
    ],
)
def test_log_probabilities_are_the_policys_own_or_nan(processed, sampling, known, fakes, engine_of):
    (server,) = fakes(1)
    if processed:
        server.interfere = of_processed_logprobs
    (turn,) = ask(engine_of(server), request(**sampling))
    assert turn.ids == [11, 12, EOS]
    assert turn.logprobs == [-1 / 8, -2 / 8, -3 / 8] if known else all(map(math.isnan, turn.logprobs))


def test_a_server_whose_log_probabilities_would_be_wrong_is_refused(fakes, engine_of):
    (server,) = fakes(1)
    with pytest.raises(
        ConfigError, match=r"--logprobs-mode raw_logprobs\) gives the policy's own only with temperature 1"
    ):
        engine_of(server, logprobs_of=Sampling(temperature=0.8))
    server.interfere = of_processed_logprobs
    engine_of(server, logprobs_of=Sampling(temperature=0.8))


def test_logits_are_not_taken_for_log_probabilities(fakes, engine_of):
    (server,) = fakes(1)
    engine = engine_of(server)
    server.interfere = lambda path, body: (200, completion((11, EOS), [-0.5, 7.25]))
    with pytest.raises(
        ConfigError, match="returns logits for log-probabilities; start it with --logprobs-mode"
    ):
        ask(engine, request())


# --- which server it asks ---------------------------------------------------------------------------

COPIES = [request((5, 6, prompt), row=4 * prompt + copy) for prompt in range(3) for copy in range(4)]


def prompts_at(server: FakeServer) -> set[int]:
    return {body["prompt"][2] for body in server.turns}


def test_the_copies_of_a_prompt_and_their_later_turns_go_to_one_server(fakes, engine_of):
    servers = fakes(3)
    second = [replace(each, ids=(*each.ids, 11, EOS, each.row), turn=1) for each in COPIES]
    ask(engine_of(*servers), *COPIES, *second)

    assert sorted(prompts_at(server) for server in servers) == [{0}, {1}, {2}]
    assert [len(server.turns) for server in servers] == [8, 8, 8]


def test_ranks_start_with_different_servers(fakes, engine_of):
    servers = fakes(2)
    for rank in range(2):
        ask(engine_of(*servers), request((5, 6, rank)), first=rank)
    assert [prompts_at(server) for server in servers] == [{0}, {1}]


# --- a server that fails ----------------------------------------------------------------------------


def test_what_a_failed_server_had_goes_on_at_another(fakes, engine_of, caplog):
    servers = fakes(2)
    engine = engine_of(*servers)
    engine.load_adapter(save)

    def die_at_the_third(path: str, body: dict):
        if len(servers[0].turns) >= 3:
            servers[0].interfere = lambda path, body: None
            return None
        return NotImplemented

    servers[0].interfere = die_at_the_third
    second = [replace(each, ids=(*each.ids, 11, EOS, each.row), turn=1) for each in COPIES]
    turns = ask(engine, *COPIES, *second)

    assert [turn.ids for turn in turns] == [[11, 12, EOS]] * 24
    assert prompts_at(servers[1]) == {0, 1, 2}
    assert f"vLLM server {servers[0].url} fails: RemoteProtocolError" in caplog.text
    assert "Its episodes go on at another." in caplog.text

    servers[0].stop()
    servers[0].start()  # it comes back, and is used at the next rollout
    servers[0].interfere = lambda path, body: NotImplemented
    engine.load_adapter(save)
    ask(engine, *COPIES)
    assert servers[0].adapters.keys() == servers[1].adapters.keys() == {engine.adapter.name}
    assert servers[0].turns[-1]["model"] == engine.adapter.name


def hang(path: str, body: dict) -> None:
    Event().wait(20)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (FakeServer.stop, "ConnectError"),
        (lambda path, body: None, "RemoteProtocolError"),
        (lambda path, body: error(500, "EngineCore encountered an issue."), "status 500, EngineCore"),
        (lambda path, body: (503, {}), "status 503"),
        (
            lambda path, body: error(404, "The model `dbb-1` does not exist."),
            "does not hold the adapter any more",
        ),
        (hang, "ReadTimeout"),
    ],
    ids=["refused", "broken off", "500", "503", "started anew", "hung"],
)
def test_every_kind_of_failure_moves_an_episode(failure, reason, fakes, engine_of, caplog, monkeypatch):
    monkeypatch.setattr(vllm, "TURN_TIMEOUT", httpx2.Timeout(0.5))
    first, second = fakes(2)
    engine = engine_of(first, second)
    engine.load_adapter(save)
    if failure is FakeServer.stop:
        first.stop()
    else:
        first.interfere = failure

    (turn,) = ask(engine, request())
    assert turn.ids == [11, 12, EOS]
    assert len(second.turns) == 1
    assert f"vLLM server {first.url} fails: " in caplog.text
    assert reason in caplog.text


def test_without_a_server_the_rollout_waits_and_says_so(fakes, engine_of, caplog, monkeypatch):
    servers = fakes(2)
    engine = engine_of(*servers)
    engine.load_adapter(save)
    for server in servers:
        server.stop()

    def announce(seconds: float) -> None:
        VLLMServers.announce(engine, seconds)
        if seconds:  # the first new try comes at once
            servers[1].start()

    monkeypatch.setattr(engine, "announce", announce)
    turns = ask(engine, *COPIES)

    assert [turn.ids for turn in turns] == [[11, 12, EOS]] * 12
    assert "No vLLM server answers; trying again in 1 seconds." in caplog.text
    assert servers[1].adapters.keys() == {engine.adapter.name}, "a server that was started anew gets it again"
    assert len(servers[1].turns) == 12


def test_servers_that_are_still_starting_are_waited_for(fakes, engine_of, monkeypatch):
    (server,) = fakes(1)
    server.stop()
    engine = engine_of(server, connect=False)
    monkeypatch.setattr(engine, "announce", lambda seconds: server.start() if seconds else None)
    engine.connect()
    assert len(ask(engine, request())) == 1


def test_after_enough_waiting_it_gives_up(fakes, engine_of):
    (server,) = fakes(1)
    engine = engine_of(server, patience=0.0)
    server.stop()
    with pytest.raises(EngineError, match=f"no vLLM server answered for 0 seconds, of {server.url}"):
        ask(engine, *COPIES)
    with pytest.raises(EngineError, match="continue a training with resume_from_checkpoint"):
        engine.connect()


def test_waits_grow_and_end():
    assert list(servers.wait_times(100)) == [0, 1, 2, 4, 8, 16, 30, 30, 9]


def test_what_a_server_refuses_is_told(fakes, engine_of):
    """No other server would take it either."""
    servers = fakes(2)
    engine = engine_of(*servers)
    for server in servers:
        server.interfere = lambda path, body: error(400, "Token id 99999 is out of vocabulary")
    with pytest.raises(
        ConfigError, match=r"refuses a request \(status 400\): Token id 99999 is out of vocabulary"
    ):
        ask(engine, request())


@pytest.mark.parametrize("written", [(), (11,)])
def test_a_turn_that_a_server_aborts_is_asked_of_another(written, fakes, engine_of, caplog):
    """As `vllm serve` answers the requests under way when it is stopped: with what there is of each."""
    stops, stays = fakes(2)
    engine = engine_of(stops, stays)
    aborted = completion(written, [-1 / 8] * len(written))
    aborted["choices"][0]["finish_reason"] = "abort"
    stops.interfere = lambda path, body: (200, aborted) if path == "/v1/completions" else NotImplemented
    turns = ask(engine, request((5,), row=0), request((6,), row=1))
    assert [turn.ids for turn in turns] == [[11, 12, EOS]] * 2
    assert f"vLLM server {stops.url} fails: it has aborted a turn" in caplog.text


def test_a_server_that_stops_and_keeps_its_connections(fakes, engine_of, caplog, monkeypatch):
    """As `vllm serve` does on SIGTERM: it takes no new connection, and waits for those that it answers no more."""
    monkeypatch.setattr(vllm, "LISTENING_SECONDS", 0.1)
    stops, stays = fakes(2)
    engine, over = engine_of(stops, stays), Event()

    def stopping(path: str, body: dict):
        if path == "/v1/completions":
            Thread(target=stops.stop).start()
            over.wait(30)
        return NotImplemented

    stops.interfere = stopping
    stays.interfere = lambda path, body: sleep(0.5) or NotImplemented  # slow, and up
    began = monotonic()
    turns = ask(engine, request((5,), row=0), request((6,), row=1))
    over.set()
    assert [turn.ids for turn in turns] == [[11, 12, EOS]] * 2
    assert monotonic() - began < 25
    assert f"vLLM server {stops.url} fails: ConnectError" in caplog.text
    assert f"vLLM server {stays.url} fails" not in caplog.text


@pytest.mark.parametrize("sent", ["<html>Please wait</html>", {"choices": []}, {"choices": None}, ["turn"]])
def test_an_answer_that_is_no_turn_is_asked_of_another(sent, fakes, engine_of, caplog):
    """As of a proxy between."""
    odd, stays = fakes(2)
    engine = engine_of(odd, stays)
    odd.interfere = lambda path, body: (200, sent) if path == "/v1/completions" else NotImplemented
    turns = ask(engine, request((5,), row=0), request((6,), row=1))
    assert [turn.ids for turn in turns] == [[11, 12, EOS]] * 2
    assert f"vLLM server {odd.url} fails: what it sends is no turn: " in caplog.text


def test_something_else_at_the_address(fakes, engine_of):
    (server,) = fakes(1)
    server.interfere = lambda path, body: (200, ["welcome"])
    with pytest.raises(ConfigError, match=f"what answers at {server.url} is not a vLLM server"):
        engine_of(server)


def test_a_bug_in_an_episode_ends_the_rollout(fakes, engine_of):
    (server,) = fakes(1)
    engine = VLLMEngine(engine_of(server))
    release = Event()
    server.interfere = lambda path, body: release.wait(20) and None

    async def bug() -> None:
        raise ZeroDivisionError

    with start_blocking_portal() as portal:
        futures = [portal.start_task_soon(engine.generate, request()), portal.start_task_soon(bug)]
        with pytest.raises(ZeroDivisionError):
            engine.serve(futures)
        assert futures[0].cancelled()
    release.set()


# --- the adapter ------------------------------------------------------------------------------------


def test_each_adapter_gets_a_new_name_and_the_old_one_goes(fakes, engine_of, tmp_path):
    servers = fakes(2)
    engine = engine_of(*servers)
    names = []
    for _ in range(3):
        engine.load_adapter(save)
        names.append(engine.adapter.name)
        ask(engine, *COPIES)
        for server in servers:
            assert server.adapters == {engine.adapter.name: engine.adapter.path}
            assert server.turns[-1]["model"] == engine.adapter.name
        assert [folder.name for folder in (tmp_path / "adapters").iterdir()] == [engine.adapter.name]
    assert len(set(names)) == 3

    engine.close()
    assert [server.adapters for server in servers] == [{}, {}]
    assert list((tmp_path / "adapters").iterdir()) == []


def test_an_adapter_stays_as_long_as_a_rollout_generates_with_it(fakes, engine_of, tmp_path):
    """Another one is loaded meanwhile. A server that was started anew gets both."""
    servers = fakes(2)
    engine = engine_of(*servers)
    engine.load_adapter(save)
    with engine.holding() as older:
        engine.load_adapter(save)
        newer = engine.adapter
        assert newer != older
        servers[0].stop()
        servers[0].start()
        rollout = VLLMEngine(engine, older)
        with start_blocking_portal() as portal:
            futures = [portal.start_task_soon(rollout.generate, each) for each in COPIES]
            rollout.serve(futures)
        assert {body["model"] for server in servers for body in server.turns} == {older.name}
        ask(engine, *COPIES)
        assert servers[1].turns[-1]["model"] == newer.name
        engine.connect()
        assert servers[0].adapters.keys() == servers[1].adapters.keys() == {older.name, newer.name}
    assert servers[0].adapters.keys() == servers[1].adapters.keys() == {newer.name}
    assert [folder.name for folder in (tmp_path / "adapters").iterdir()] == [newer.name]


def test_what_a_killed_run_left_is_deleted(fakes, engine_of, tmp_path):
    (tmp_path / "adapters" / "dbb-old-7").mkdir(parents=True)
    engine = engine_of(*fakes(1))
    engine.load_adapter(save)
    assert [folder.name for folder in (tmp_path / "adapters").iterdir()] == [engine.adapter.name]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((404, {"detail": "Not Found"}), "Not Found"),  # VLLM_ALLOW_RUNTIME_LORA_UPDATING is not set
        (error(404, "No adapter found for /x"), "No adapter found for /x"),
        (error(500, "LoRA rank 32 is greater than max_lora_rank 16."), "LoRA rank 32 is greater"),
    ],
)
def test_an_adapter_that_cannot_be_loaded(reply, reason, fakes, engine_of):
    (server,) = fakes(1)
    engine = engine_of(server)
    server.interfere = lambda path, body: reply if path == "/v1/load_lora_adapter" else NotImplemented
    with pytest.raises(
        ConfigError, match=f"cannot load the adapter .*: {reason}.*--max-lora-rank of at least"
    ):
        engine.load_adapter(save)


# --- the trainer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "server_info", "reason"),
    [
        (False, (404, {}), "vLLM is not available"),
        (True, (404, {}), "Restart it with `VLLM_SERVER_DEV_MODE=1`"),
        (True, (200, {"vllm_config": {"weight_transfer_config": None}}), "with `--weight-transfer-config"),
        (
            True,
            (200, {"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}}),
            "needs a CUDA device",
        ),
    ],
)
def test_full_weights_that_cannot_be_sent(
    installed, server_info, reason, fakes, tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch
):
    (server,) = fakes(1)
    replies = {"/server_info?config_format=json": server_info, "/get_world_size": (200, {"world_size": 1})}
    server.interfere = lambda path, body: replies.get(path, NotImplemented)
    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda: installed)
    monkeypatch.setattr(vllm_client, "get_ip", lambda: "127.0.0.1", raising=False)  # vLLM's own
    with pytest.raises(ConfigError, match=rf"cannot be sent to .*{server.url}: .*{reason}.*use_peft: true"):
        make_trainer(
            tiny_model, sqlite_database, demo_tasks[:2], tmp_path, lora=False, vllm_server_urls=[server.url]
        )


def test_with_full_weights_a_server_that_failed_is_not_asked_again(fakes, engine_of, caplog):
    """One that comes back may have other weights."""
    stays, fails = fakes(2)
    engine = VLLMServers([stays.url, fails.url], [EOS], full_weights=True)
    engine.connect()
    fails.stop()
    engine.connect()
    assert f"vLLM server {fails.url} cannot be used now" in caplog.text
    fails.start()
    engine.connect()
    assert [server.up for server in engine.servers] == [True, False]
    turns = ask(engine, request((5,), row=0), request((6,), row=1))
    assert [turn.ids for turn in turns] == [[11, 12, EOS]] * 2
    assert fails.turns == []
    stays.stop()
    with pytest.raises(EngineError, match=f"no vLLM server answers any more, of {stays.url}, {fails.url}"):
        ask(engine, request())
    with pytest.raises(EngineError, match="no vLLM server answers any more"):
        engine.connect()


@pytest.mark.parametrize(
    "used",
    [
        {"use_rollout_logprobs": True},
        {"beta": 0.1, "kl_reference": "rollout"},
        {"beta": 0.1, "kl_in_reward": True},
    ],
    ids=str,
)
def test_rollout_log_probabilities_that_would_be_wrong_are_refused_at_the_start(
    fakes, tiny_model, sqlite_database, demo_tasks, tmp_path, used
):
    (server,) = fakes(1)
    settings = {"vllm_server_urls": [server.url], "temperature": 0.8, **used}
    with pytest.raises(ConfigError, match="do without use_rollout_logprobs"):
        make_trainer(tiny_model, sqlite_database, demo_tasks[:2], tmp_path, **settings)


def test_a_servers_shorter_context_counts(fakes, tiny_model, sqlite_database, demo_tasks, tmp_path, caplog):
    (server,) = fakes(1)
    trainer = make_trainer(
        tiny_model, sqlite_database, demo_tasks[:1], tmp_path, protocol="text", vllm_server_urls=[server.url]
    )
    assert trainer.player.rules.context == 1024
    assert f"vLLM server {server.url} serves /base, the policy is {tiny_model}" in caplog.text


def test_weights_travel_when_they_changed(fakes, tiny_model, sqlite_database, demo_tasks, tmp_path):
    (server,) = fakes(1)
    trainer = make_trainer(
        tiny_model,
        sqlite_database,
        demo_tasks[:2],
        tmp_path,
        vllm_server_urls=[server.url],
        eval_strategy="steps",
        eval_steps=1,
        max_steps=2,
        per_device_eval_batch_size=1,
        temperature=0.8,  # of which this server knows no log-probabilities; the loss does not need them
    )
    trainer.train()
    assert [math.isfinite(line["grad_norm"]) for line in trainer.state.log_history if "loss" in line] == [
        True
    ] * 2
    loads = [body["lora_name"] for path, body in server.asked if path == "/v1/load_lora_adapter"]
    assert len(loads) == 3, "before each update, and for the evaluation after the last"
    used = [body["model"] for body in server.turns]
    assert sorted(set(used)) == sorted(loads)


@pytest.mark.slow
def test_two_ranks_use_the_adapter_that_the_first_loads(fakes, tmp_path):
    servers = fakes(2)
    options = ("--vllm_server_urls", *(server.url for server in servers), "--use_peft", "true")
    options += ("--max_steps", 2, "--per_device_train_batch_size", 2, "--output_dir", tmp_path)
    status, output = fork_ranks(*small(RECIPE, *options))
    assert status == 0, output
    assert [e["phase"] for e in episodes_in(tmp_path)] == ["greedy", "train", "train", "train", "train"] * 2
    for server in servers:
        loads = [body["lora_name"] for path, body in server.asked if path == "/v1/load_lora_adapter"]
        assert len(loads) == 2
        assert {body["model"] for body in server.turns} == set(loads), "each rank has its server"
        assert server.adapters == {}, "the last one is unloaded at the end"
    assert not list((tmp_path / "_vllm_adapters").iterdir())


@pytest.mark.slow
def test_a_server_that_refuses_the_adapter_ends_both_ranks(fakes, tmp_path):
    (server,) = fakes(1)
    server.interfere = lambda path, body: (404, {"detail": "Not Found"}) if "load" in path else NotImplemented
    options = ("--vllm_server_urls", server.url, "--use_peft", "true", "--max_steps", 2)
    options += ("--per_device_train_batch_size", 2, "--output_dir", tmp_path)
    status, output = fork_ranks(*small(RECIPE, *options))
    assert status != 0
    assert "cannot load the adapter" in output


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ([], "vllm_server_urls is empty"),
        (["localhost:8000"], "'localhost:8000' is not a server's address; give scheme, host and port alone"),
        (["http://a:8000/v1"], "'http://a:8000/v1' is not a server's address"),
        (["http://me:secret@a:8000"], "is not a server's address"),
        (["http://a:8000", "http://a:8000/"], "vllm_server_urls names http://a:8000 more than once"),
    ],
)
def test_addresses_that_cannot_work(urls, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, vllm_server_urls=urls)


# --- what a server computes in ----------------------------------------------------------------------

BF16 = Precision("bfloat16")
FOUR_BITS = Precision("bfloat16", "bitsandbytes")
OTHER_MODEL = "it samples from another model than is trained. Start it with --dtype bfloat16"


def test_a_server_that_would_compute_longrope_by_its_long_factors(fakes, tokenizer, tmp_path, caplog):
    """Its context is 1,024 tokens; a model that changes its factors after 512 is trained by the short ones."""
    longrope_config(512).save_pretrained(tmp_path)
    (server,) = fakes(1)
    settings = EngineSettings(vllm_server_urls=[server.url])
    vllm.VLLMBackend(settings, ServedPolicy(str(tmp_path), tokenizer)).close()
    (*_, said) = caplog.messages
    assert said.startswith(
        f"vLLM server {server.url} has a context of 1024 tokens, and beyond 512 it computes"
    )
    assert said.endswith("Start it with --max-model-len 512.")


def test_a_server_that_knows_nothing_of_a_change_of_the_config(fakes, tokenizer, caplog):
    (server,) = fakes(1)
    policy = ServedPolicy("/base", tokenizer, config_changes={"rope_parameters": {"rope_type": "yarn"}})
    vllm.VLLMBackend(EngineSettings(vllm_server_urls=[server.url]), policy).close()
    (said,) = caplog.messages
    assert (
        """start it with --hf-overrides '{"rope_parameters": {"rope_type": "yarn"}}', unless it was."""
        in said
    )


def test_an_adapter_that_an_older_server_would_compute_otherwise_is_not_evaluated(fakes, tokenizer, tmp_path):
    (server,) = fakes(1)
    LoraConfig(alpha_pattern={"q_proj": 20}).save_pretrained(tmp_path)
    policy = ServedPolicy("/base", tokenizer, adapter=tmp_path)
    with pytest.raises(ConfigError, match=r"no adapter with alpha_pattern, as .* Leave vllm_server_urls out"):
        vllm.VLLMBackend(EngineSettings(vllm_server_urls=[server.url]), policy)


def test_an_adapter_of_two_ranks_is_refused_at_the_start(
    fakes, tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch
):
    (server,) = fakes(1)
    monkeypatch.setitem(training.LORA, "rank_pattern", {"v_proj": 8})
    with pytest.raises(ConfigError, match=r"no adapter with rank_pattern.* Leave vllm_server_urls out"):
        make_trainer(*(tiny_model, sqlite_database, demo_tasks[:2], tmp_path), vllm_server_urls=[server.url])


@pytest.mark.parametrize(
    ("served", "policy", "said"),
    [
        (BF16, BF16, None),
        (FOUR_BITS, FOUR_BITS, None),
        (Precision("float16", "awq_marlin"), Precision("float16", "awq"), None),
        (None, BF16, None),  # which most servers serve
        (BF16, AUTO, None),  # a model that no run is known of
        (
            Precision("float16"),
            BF16,
            "computes in float16 on unquantized weights, the policy in bfloat16 on unquantized weights: "
            f"{OTHER_MODEL}.",
        ),
        (
            BF16,
            FOUR_BITS,
            "computes in bfloat16 on unquantized weights, the policy in bfloat16 on weights quantized by "
            f"bitsandbytes: {OTHER_MODEL} --quantization bitsandbytes.",
        ),
        (
            None,
            FOUR_BITS,
            "does not say what it computes in, the policy computes in bfloat16 on weights quantized by "
            "bitsandbytes; start it with --quantization bitsandbytes (and with VLLM_SERVER_DEV_MODE=1, then it says).",
        ),
    ],
)
def test_a_server_that_computes_otherwise_than_the_policy(fakes, tokenizer, caplog, served, policy, said):
    (server,) = fakes(1)
    if served is not None:  # as VLLM_SERVER_DEV_MODE=1 makes it do
        config = {"dtype": f"torch.{served.dtype}", "quantization": served.quantization}
        info = 200, {"vllm_config": {"model_config": config}, "vllm_env": {}}
        server.interfere = lambda path, body: info if path.startswith("/server_info") else NotImplemented
    settings = EngineSettings(vllm_server_urls=[server.url])
    vllm.VLLMBackend(settings, ServedPolicy("/base", tokenizer, computes_in=policy)).close()
    assert caplog.messages == ([f"vLLM server {server.url} {said}"] if said else [])
