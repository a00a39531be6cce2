"""vLLM servers for tests: a scripted one in a thread, and real ones on the CPU as processes of their own.

Real ones need `TRL_DBBENCH_VLLM`, the path of a `vllm` program that runs on a CPU (`.ci/vllm-cpu` makes one). Without
it their tests are skipped, unless `TRL_DBBENCH_REQUIRE` names vllm: then they fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread, main_thread
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
import torch
from anyio.from_thread import start_blocking_portal
from launching import free_port
from required import lacking
from safetensors.torch import save_file
from trl.generation import vllm_client, vllm_generation

from trl_dbbench.engines.vllm.engine import VLLMEngine
from trl_dbbench.engines.vllm.servers import VLLMServers
from trl_dbbench.episode.prompts import TEXT_SYSTEM_PROMPT, TOOLS_SYSTEM_PROMPT
from trl_dbbench.episode.types import Completion, Request, Sampling
from trl_dbbench.tasks import Task

EOS = 2

# ends the whole process group when the tests end, killed or not: vLLM's children outlive it otherwise
AS_LONG_AS_THE_TESTS = """
tests=$1; shift; "$@" &
while kill -0 "$tests" && kill -0 $!; do sleep 1; done 2>/dev/null
kill -KILL 0
"""
Reply = tuple[int, Any]


class _HTTPServer(ThreadingHTTPServer):
    request_queue_size = 256  # as many may come at once
    daemon_threads = True


class FakeServer:
    """Speaks as much of vLLM as the engine asks for, over real HTTP, and keeps what it was asked.

    Every turn is `turn`, cut to `max_tokens`; token k has the log-probability -(k + 1) / 8. What `interfere` returns for
    (path, body) goes out instead: a status and a JSON body, or `None` for a connection that breaks off.
    """

    def __init__(self, turn: tuple[int, ...] = (11, 12, EOS)):
        self.turn = turn
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.adapters: dict[str, str] = {}
        self.asked: list[tuple[str, dict]] = []
        self.authorization: str | None = None
        self.interfere: Callable[[str, dict], Any] = lambda path, body: NotImplemented
        self._http: ThreadingHTTPServer | None = None
        self.start()

    def start(self) -> None:
        """Begins to listen; as after a crash, no adapter is loaded."""
        self.adapters.clear()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: dict) -> None:
                fake.authorization = self.headers.get("Authorization")
                fake.asked.append((self.path, body))
                reply = fake.interfere(self.path, body)
                if reply is NotImplemented:
                    reply = fake._reply(self.path, body)
                if reply is None:
                    self.connection.close()
                    return
                content = json.dumps(reply[1]).encode()
                self.send_response(reply[0])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                pass

        self._http = _HTTPServer(("127.0.0.1", self.port), Handler)
        Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """From now on connections are refused."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    @property
    def turns(self) -> list[dict]:
        """The requests for turns, without the engine's first question of each connection."""
        return [body for path, body in self.asked if path == "/v1/completions" and body["top_k"] != 1]

    def _reply(self, path: str, body: dict) -> Reply:
        match path:
            case "/v1/models":
                return 200, {"data": [{"id": "base", "root": "/base", "parent": None, "max_model_len": 1024}]}
            case "/health":
                return 200, {}
            case "/v1/load_lora_adapter":
                if body["lora_name"] in self.adapters:
                    return error(400, f"The lora adapter '{body['lora_name']}' has already been loaded.")
                if not (Path(body["lora_path"]) / "adapter_model.safetensors").exists():
                    return error(404, f"No adapter found for {body['lora_path']}")
                self.adapters[body["lora_name"]] = body["lora_path"]
                return 200, {}
            case "/v1/unload_lora_adapter":
                return (
                    (200, {}) if self.adapters.pop(body["lora_name"], None) else error(404, "no such adapter")
                )
            case "/v1/completions":
                if body["model"] not in ("base", *self.adapters):
                    return error(404, f"The model `{body['model']}` does not exist.")
                ids = self.turn[: body["max_tokens"]]
                return 200, completion(ids, [-(k + 1) / 8 for k in range(len(ids))])
        return 404, {"detail": "Not Found"}


def completion(ids: tuple[int, ...], logprobs: list[float]) -> dict:
    return {"choices": [{"token_ids": list(ids), "logprobs": {"token_logprobs": logprobs}}]}


def error(status: int, message: str) -> Reply:
    return status, {"error": {"message": message, "code": status}}


class RealServer:
    """`vllm serve` on the CPU, in a process group of its own; in fp32, unless the options say otherwise."""

    def __init__(self, program: str, model: str, log: Path, *options: str):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.model = model
        self.bf16 = "bfloat16" in options
        self._log = log
        self._command = ["sh", "-c", AS_LONG_AS_THE_TESTS, "sh", str(os.getpid())]
        self._command += [program, "serve", model, "--host", "127.0.0.1", "--port", str(self.port)]
        self._command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
        self._command += ["--enable-lora", "--max-lora-rank", "16"]
        self._command += [
            "--distributed-executor-backend",
            "uni",
            *options,
        ]  # its worker in the engine's process
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        settings = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_CPU_KVCACHE_SPACE": "1"}  # GiB
        settings |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
        settings |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        settings |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0"
        }  # or a CPU's worker would have a process of its own
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | settings,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx2.get(f"{self.url}/health").is_success:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
        raise RuntimeError(f"vllm serve does not come up:\n{self.last_words}")

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def died(self) -> bool:
        """By itself, that is."""
        process = self._process
        return process is not None and process.poll() is not None

    @property
    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """As a crash of the machine would: at once, with its children."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def adapters(self) -> set[str]:
        cards = httpx2.get(f"{self.url}/v1/models").json()["data"]
        return {card["id"] for card in cards if card["parent"]}


class FileClient(vllm_client.VLLMClient):
    """TRL's client but for its last part: NCCL needs a GPU at both ends, so the weights go through a file."""

    def init_communicator(self, device: object = None) -> None:
        self.get_server_info()

    def update_named_params(
        self,
        metadata: list[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        weights = dict(named_params)
        told = [(name, f"torch.{dtype}", shape) for name, dtype, shape in metadata]
        assert told == [(name, str(each.dtype), list(each.shape)) for name, each in weights.items()]
        with TemporaryDirectory() as folder:
            save_file(weights, Path(folder) / "model.safetensors")
            load_weights(self.base_url, folder)


def load_weights(url: str, folder: str | Path) -> None:
    """A real server takes the full weights in the folder in place of its own."""
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    httpx2.post(f"{url}/collective_rpc", json=body, timeout=60).raise_for_status()


@contextmanager
def sent_by(client: type[vllm_client.VLLMClient]) -> Iterator[None]:
    """Full weights are sent TRL's own way, by this client."""
    with (
        patch.object(vllm_client, "is_vllm_available", lambda: True),
        patch.object(vllm_generation, "is_vllm_available", lambda: True),
        patch.object(vllm_generation, "VLLMClient", client),
    ):
        yield


@pytest.fixture
def weights_by_file(real_servers: list[RealServer]) -> Iterator[None]:
    """Full weights can be sent to the real servers; afterwards they have their own again."""
    with sent_by(FileClient):
        yield
    for server in real_servers:
        if server.running:
            load_weights(server.url, server.model)


@pytest.fixture
def fakes() -> Iterator[Callable[[int], list[FakeServer]]]:
    """`fakes(2)` are two scripted servers."""
    started: list[FakeServer] = []

    def start(count: int) -> list[FakeServer]:
        started.extend(FakeServer() for _ in range(count))
        return started[-count:]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def servable_model(tmp_path_factory: pytest.TempPathFactory, demo_tasks: list[Task]) -> str:
    """The tiny model with heads of 32, the smallest that vLLM's attention on a CPU takes."""
    texts = [TEXT_SYSTEM_PROMPT, TOOLS_SYSTEM_PROMPT, *(task.prompt() for task in demo_tasks)]
    from worlds.tiny_model import make_tiny_model  # `two_ranks.py` has no benchmarks on its path

    return str(make_tiny_model(tmp_path_factory.mktemp("models") / "servable", texts, num_heads=2))


@pytest.fixture(scope="session")
def vllm_program() -> str:
    program = os.environ.get("TRL_DBBENCH_VLLM")
    if program:
        return program
    lacking("vllm", "no vLLM here: TRL_DBBENCH_VLLM is to be the path of its program")


@contextmanager
def running(*servers: RealServer) -> Iterator[list[RealServer]]:
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        yield list(servers)
    finally:
        for server in servers:
            server.kill()


@contextmanager
def watched(*servers: RealServer) -> Iterator[None]:
    """A block that ends, within seconds, when one of its servers dies by itself; nothing it waits for would come."""
    over = Event()

    def watch() -> None:
        while not over.wait(0.5):
            if any(server.died for server in servers):
                signal.pthread_kill(main_thread().ident or 0, signal.SIGUSR1)
                return

    def end(*_: object) -> None:
        server = next(server for server in servers if server.died)
        if server.bf16 and "amx_bf16" in Path("/proc/cpuinfo").read_text():
            pytest.skip(f"vLLM's bf16 does not work on this processor, which has AMX:\n{server.last_words}")
        pytest.fail(f"{server.url} died by itself. Its last words:\n{server.last_words}")

    earlier = signal.signal(signal.SIGUSR1, end)
    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, earlier)


@pytest.fixture
def real_servers(both_servers: list[RealServer]) -> Iterator[list[RealServer]]:
    """Two servers of the same model; they differ in what their log-probabilities are of."""
    with watched(*both_servers):
        yield both_servers


@pytest.fixture(scope="session")
def both_servers(
    vllm_program: str, servable_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RealServer]]:
    logs = tmp_path_factory.mktemp("vllm")
    modes = "raw_logprobs", "processed_logprobs"
    servers = [
        RealServer(vllm_program, servable_model, logs / mode, "--logprobs-mode", mode) for mode in modes
    ]
    with running(*servers):
        yield servers


@pytest.fixture
def bf16_server(vllm_program: str, servable_model: str, tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(vllm_program, servable_model, tmp_path / "vllm", "--dtype", "bfloat16")
    with running(server), watched(server):
        yield server


def request(ids: Sequence[int] = (5, 6, 7), row: int = 0, turn: int = 0, new: int = 9, **sampling) -> Request:
    return Request(tuple(ids), new, Sampling(**sampling), row, turn)


def ask(servers: VLLMServers, *requests: Request, first: int = 0) -> list[Completion]:
    """One rollout, in which each row makes its requests one after the other."""
    engine = VLLMEngine(servers, servers.adapter, first)
    episodes = [[each for each in requests if each.row == row] for row in {each.row: 0 for each in requests}]

    async def play(turns: Sequence[Request]) -> list[Completion]:
        return [await engine.generate(turn) for turn in turns]

    with start_blocking_portal() as portal:
        futures = [portal.start_task_soon(play, turns) for turns in episodes]
        engine.serve(futures)
        return [turn for future in futures for turn in future.result()]
