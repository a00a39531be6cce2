"""Training over two machines: two network namespaces joined by a cable, one rank in each, and a server in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest
from forking import Forked
from launching import CPU, RECIPE, ROOT, children_of, launch, small
from on_host import enter, network
from required import lacking
from safetensors.torch import load_file
from torch import equal

from trl_dbbench.database.server import local
from trl_dbbench.errors import DatabaseError

pytestmark = pytest.mark.slow

STEPS = 6
CUT_SECONDS = 5.0
WAITED_SECONDS = 10
"""The `ddp_timeout` of runs that lose a machine without a word."""

PORT, SQL_PORT = 29500, 3306  # the namespaces have nothing else
ON_HOST = Path(__file__).parents[1] / "on_host.py"


class Hosts:
    """Two machines. Their names are those of their namespaces; each has one end of the cable."""

    def __init__(self) -> None:
        tag = f"{os.getpid() % 100_000}"
        self.names = [f"dbb-alpha-{tag}", f"dbb-beta-{tag}"]
        self.ends = [f"dbb{tag}a", f"dbb{tag}b"]  # 15 characters at most
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def build(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        ends = [
            word
            for name, end in zip(self.names, self.ends, strict=True)
            for word in ("name", end, "netns", name)
        ]
        ip("link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
        for name, end, address in zip(self.names, self.ends, self.addresses, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for device in ("lo", end):
                ip("-n", name, "link", "set", device, "up")

    def remove(self) -> None:
        for number, name in enumerate(self.names):
            if Path(f"/run/netns/{name}").exists():
                self.lose(number)
                ip("netns", "del", name)  # and its end of the cable with it

    def plug(self, state: str) -> None:
        """The cable's end at the second machine, `up` or `down`."""
        ip("-n", self.names[1], "link", "set", self.ends[1], state)

    def lose(self, number: int) -> None:
        """Kills all that runs on a machine."""
        for pid in ip("netns", "pids", self.names[number]).split():
            os.kill(int(pid), signal.SIGKILL)

    @contextmanager
    def training(self, folder: Path, *options: object) -> Iterator[list[subprocess.Popen[str]]]:
        """The launchers of a run with a rank on each machine."""
        started: list[subprocess.Popen[str]] = []
        for number, (name, end) in enumerate(zip(self.names, self.ends, strict=True)):
            words = [
                "--quiet",
                f"--config_file={CPU}",
                "--multi_gpu",
                "--num_machines=2",
                "--num_processes=2",
            ]
            words += [f"--machine_rank={number}", f"--main_process_ip={self.addresses[0]}"]
            words += [
                f"--main_process_port={PORT}",
                *small(RECIPE, "--output_dir", folder, *SETTINGS, *options),
            ]
            command = [sys.executable, str(ON_HOST), name, "-m", "accelerate.commands.launch", *words]
            # the name of a machine leads to no address here; elsewhere it may lead to 127.0.1.1
            env = {**os.environ, "GLOO_SOCKET_IFNAME": end}
            started.append(
                Forked(
                    command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        try:
            yield started
        finally:
            for each in started:
                if each.poll() is None:
                    kill(each)
                    each.communicate()


SETTINGS = ["--max_steps", STEPS, "--save_steps", 1]


def kill(launcher: subprocess.Popen[str]) -> None:
    """With its rank."""
    for pid in [*children_of(launcher.pid), launcher.pid]:
        os.kill(pid, signal.SIGKILL)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    try:
        try:
            made.build()
        except FileNotFoundError:
            lacking("netns", "there is no program `ip` (Debian: iproute2)")
        except subprocess.CalledProcessError as error:
            lacking("netns", f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def server(hosts: Hosts) -> Iterator[str]:
    """The URL of a MariaDB on the first machine, which listens at that machine's address."""
    with pytest.MonkeyPatch.context() as patch, on_first(hosts):
        listening = ("--skip-networking=0", f"--bind-address={hosts.addresses[0]}", f"--port={SQL_PORT}")
        patch.setattr(local, "BOUNDED", (*local.BOUNDED, *listening))
        try:
            started = local.start_local()
        except DatabaseError as error:
            lacking("local", str(error))
    try:
        socket = started.url.partition("unix_socket=")[2]
        with pymysql.connect(unix_socket=socket, user="root") as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER trainer IDENTIFIED BY 'secret'")
            cursor.execute("GRANT ALL ON *.* TO trainer WITH GRANT OPTION")
        yield f"mysql+pymysql://trainer:secret@{hosts.addresses[0]}:{SQL_PORT}/"
    finally:
        started.stop()


@contextmanager
def on_first(hosts: Hosts) -> Iterator[None]:
    """What this thread starts meanwhile, it starts on the first machine."""
    own, first = network("/proc/self/ns/net"), network(f"/run/netns/{hosts.names[0]}")
    try:
        enter(first)
        yield
    finally:
        enter(own)
        os.close(own)
        os.close(first)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    """The run of two ranks on one machine."""
    folder = tmp_path_factory.mktemp("unbroken")
    process = launch("--output_dir", folder, *SETTINGS, processes=2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return folder


def finish(started: list[subprocess.Popen[str]]) -> list[str]:
    """What was written on each machine."""
    return [each.communicate(timeout=120)[0] for each in started]


def wait_for_step(folder: Path, step: int, started: list[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + 90
    while not (folder / f"checkpoint-{step}" / "checkpoint-files.json").exists():
        assert all(each.poll() is None for each in started), finish(started)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_same(folder: Path, other: Path) -> None:
    """The same weights to the bit, and the same episodes, each once."""
    weights, expected = (load_file(each / "adapter_model.safetensors") for each in (folder, other))
    assert weights.keys() == expected.keys()
    assert all(equal(weights[name], expected[name]) for name in expected)
    assert played(folder) == played(other)


def played(folder: Path) -> list[tuple[object, ...]]:
    episodes = map(json.loads, (folder / "episodes.jsonl").read_text().splitlines())
    return [
        (
            each["step"],
            each["phase"],
            each["task_id"],
            [turn["text"] for turn in each["turns"]],
            each["rewards"],
        )
        for each in episodes
    ]


# --- what is asked of it --------------------------------------------------------------------------


def test_two_machines_train_as_one_does_though_the_cable_is_out_for_seconds(
    hosts, server, unbroken, tmp_path
):
    with hosts.training(tmp_path, "--database", server) as started:
        wait_for_step(tmp_path, 2, started)
        hosts.plug("down")
        time.sleep(CUT_SECONDS)
        assert all(each.poll() is None for each in started)
        hosts.plug("up")
        first, second = finish(started)
    assert [each.returncode for each in started] == [0, 0], first + second
    check_same(tmp_path, unbroken)


def test_a_machine_that_falls_silent_ends_the_other_and_the_run_goes_on_later(
    hosts, server, unbroken, tmp_path
):
    with hosts.training(tmp_path, "--database", server, "--ddp_timeout", WAITED_SECONDS) as started:
        wait_for_step(tmp_path, 2, started)
        hosts.plug("down")  # so that its end closes no connection
        hosts.lose(1)
        output, _ = started[0].communicate(timeout=WAITED_SECONDS + 60)
    hosts.plug("up")
    assert started[0].returncode == 1, output
    alpha, beta = hosts.names
    assert f"error: rank 0 on {alpha} has lost rank 1 on {beta}: Timed out waiting" in output
    assert "--resume_from_checkpoint true" in output

    with hosts.training(tmp_path, "--database", server, "--resume_from_checkpoint", "true") as started:
        first, second = finish(started)
    assert [each.returncode for each in started] == [0, 0], first + second
    assert "The run goes on from" in first
    check_same(tmp_path, unbroken)


def test_a_main_process_that_is_killed_ends_the_other_at_once(hosts, tmp_path):
    with hosts.training(tmp_path, "--database", "auto") as started:
        wait_for_step(tmp_path, 1, started)
        kill(started[0])
        first, second = finish(started)
    alpha, beta = hosts.names
    assert '"auto" chose "sqlite", as ranks run on several machines' in first
    assert f"error: rank 1 on {beta} has lost rank 0 on {alpha}: Connection closed by peer" in second
