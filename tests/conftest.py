import fcntl
import functools
import gc
import json
import os
import signal
import subprocess
import sys

# both are read at import, also by what tests start
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the hub, and some name what it lacks
os.environ.setdefault("OMP_NUM_THREADS", "1")  # on a busy machine threads that wait for each other crawl

import forking

if forking.WORKERS_SERVER in os.environ or (
    "PYTEST_XDIST_WORKER" not in os.environ and any(word.startswith("-n") for word in sys.argv)
):
    forking.server()  # a new one imports while this process does

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import accelerate.utils.imports
import examples  # noqa: F401 - it chooses the profile of the property tests
import pytest
import typer.main
from databases import (
    database,
    docker_database,
    local_database,
    mysql,
    own_database,
    server,
    server_database,
    sqlite_database,
)
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from vllm_servers import (
    bf16_server,
    both_servers,
    fakes,
    real_servers,
    servable_model,
    vllm_program,
    weights_by_file,
)
from worlds.tiny_model import make_tiny_model

from trl_dbbench.cli import main
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.episode.prompts import TEXT_SYSTEM_PROMPT, TOOLS_SYSTEM_PROMPT
from trl_dbbench.tasks import Task, load_tasks

__all__ = ["database", "docker_database", "local_database", "own_database", "server", "server_database"]
__all__ += ["mysql", "sqlite_database"]
__all__ += [
    "bf16_server",
    "both_servers",
    "fakes",
    "real_servers",
    "servable_model",
    "vllm_program",
    "weights_by_file",
]

DEMO_TASKS = Path(__file__).parents[1] / "recipes" / "demo_tasks.jsonl"


LONGEST = (
    *("test_hostile", "test_vllm_training", "test_docs_run", "test_deepspeed", "test_engine_cache"),
    *("test_stream", "test_harness", "test_report", "test_serving", "test_dynamic_sampling", "test_ranks"),
    *("test_credit_training", "test_full_server_disk", "test_ahead", "test_trainer", "test_generate"),
    *("test_resume", "test_several", "test_loss", "test_doctor", "test_ppo", "test_sqlite_bounds"),
    *("test_faults_training", "test_readme", "test_relational", "test_forwards", "test_sqlite_faults"),
    *("test_freezes", "test_serving_bounds", "test_publishing", "test_shared_prompts", "test_database"),
    *("test_blind_answers", "test_compare", "test_whose_fault", "test_service", "test_few_shot"),
    *("test_sources", "test_release", "test_formats", "test_prime", "test_multi_world", "test_samplers"),
    *("test_families", "test_recipe", "test_demonstrations", "test_vllm_engine", "test_cpu"),
    *("test_quantized", "test_grading", "test_trained", "test_own_tables", "test_any_statement"),
    *("test_recipe_memory", "test_notebooks", "test_export", "test_descriptors", "test_scorers"),
    *("test_native", "test_faults", "test_sample"),
)


@pytest.hookimpl(trylast=True)  # when `-m` and `-k` have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what a slow test does as well. The longest files come first, or one process would still be at them
    when the others have ended."""
    slow = {_test_of(item) for item in items if item.get_closest_marker("slow")}
    left_out = [item for item in items if item.get_closest_marker("short") and _test_of(item) in slow]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


def _test_of(item: pytest.Item) -> str:
    """Without its parameters."""
    return item.nodeid.partition("[")[0]


# what is installed, and which options a command has, stays as it is; each training and each command asks again
accelerate.utils.imports._is_package_available = functools.cache(
    accelerate.utils.imports._is_package_available
)
typer.main.get_command = functools.cache(typer.main.get_command)


def pytest_configure() -> None:
    """A shell that starts the tests in the background lets them ignore Ctrl-C, and with them all that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    subprocess.Popen = forking.Forked  # xdist's workers need not import what the server has imported


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # every training collects garbage twice; what is imported is not looked through again


@pytest.fixture(scope="session")
def of_all_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of this run of the tests share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True)
def alone(of_all_processes: Path) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """`with alone():` waits until no other process runs a test, and lets none begin one: for what measures time."""
    with (of_all_processes / "next").open("a") as turn, (of_all_processes / "running").open("a") as running:

        def take(kind: int) -> None:
            fcntl.flock(running, fcntl.LOCK_UN)  # or two that both want to be alone would wait for each other
            fcntl.flock(turn, fcntl.LOCK_EX)  # in the order of coming, or the others would leave no gap
            fcntl.flock(running, kind)
            fcntl.flock(turn, fcntl.LOCK_UN)

        @contextmanager
        def wait() -> Iterator[None]:
            take(fcntl.LOCK_EX)
            yield
            take(fcntl.LOCK_SH)

        take(fcntl.LOCK_SH)
        yield wait


@pytest.fixture(scope="session")
def demo_tasks() -> list[Task]:
    return load_tasks(DEMO_TASKS)


def made_once(path: Path, make: Callable[[], list[Task]]) -> list[Task]:
    """The first process makes them, for all others."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not path.stat().st_size:
            file.writelines(f"{task.to_json()}\n" for task in make())
    return load_tasks(path)


@pytest.fixture(scope="session")
def full_tasks(of_all_processes: Path) -> list[Task]:
    """400 generated tasks of all skills."""
    return made_once(of_all_processes / "full_tasks.jsonl", lambda: generate_tasks(400, seed=7))


@pytest.fixture(scope="session")
def tiny_tasks(of_all_processes: Path) -> list[Task]:
    """300 generated tasks for a model of a million parameters."""
    return made_once(
        of_all_processes / "tiny_tasks.jsonl",
        lambda: generate_tasks(300, level="worlds.tiny.level"),
    )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, demo_tasks: list[Task]) -> str:
    """The folder of a model of random weights that can hold a chat."""
    texts = [TEXT_SYSTEM_PROMPT, TOOLS_SYSTEM_PROMPT, *(task.prompt() for task in demo_tasks)]
    return str(make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", texts))


@pytest.fixture(scope="session")
def tokenizer(tiny_model: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def late_orders() -> Task:
    """How many of three orders were late? Two."""
    return Task.from_json(
        json.dumps(
            {
                "id": "late-orders",
                "question": "How many orders were late?",
                "tables": [
                    {
                        "name": "orders",
                        "columns": [{"name": "id", "type": "INT"}, {"name": "late", "type": "INT"}],
                        "rows": [[1, 0], [2, 1], [3, 1]],
                    }
                ],
                "sql": "SELECT COUNT(*) FROM orders WHERE late = 1",
                "answer": [[2]],
            }
        )
    )


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int | str | None, str]]:
    """Runs `trl-dbbench ...` in this process: what it exits with (a text is an error) and its stdout."""

    def run(*arguments: str | Path) -> tuple[int | str | None, str]:
        monkeypatch.setattr("sys.argv", ["trl-dbbench", *map(str, arguments)])
        monkeypatch.setattr("logging.basicConfig", lambda **kwargs: None)
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().out

    return run
