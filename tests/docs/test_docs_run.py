"""What README and docs/ tell to type runs: page by page, line by line, in a folder where a new user would be.

A tiny model stands for the large ones, files have a few tasks, and trainings take two steps, in this process.
The lines of own_tables.md, evaluate.md, endpoints.md and integrations.md run in tests of their own, as those of scale.md
do with CPUs in test_hosts.py; those that install, make
or test the project are what `.ci/run` does, and vLLM is started by `vllm_servers.py`.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from forking import Forked
from launching import ROOT, run_here
from spider2_layout import spider2
from test_docs import COMMANDS
from test_extending import FILES, TASK

from trl_dbbench.cli import bundled as shipped
from trl_dbbench.runs.few_shot.memory import Example
from trl_dbbench.tasks import load_tasks

ELSEWHERE = {"own_tables.md", "evaluate.md", "endpoints.md", "integrations.md", "scale.md"}
NOT_OURS = {"source", "git", "make", "python3.11", "pip", "pytest", "export", "vllm", "head"}
SCORES = "trl-dbbench scores"
"""The lines of evaluate.md that play nothing, which run here."""
LONG = ("--tune", "benchmarks/in_context.py", "benchmarks/lifelong.py")
"""In the lines of benchmarks that take an hour or more."""

TINY = "recipes/tiny/model"
MULTI = "recipes/tiny_multi"
REPLACED = {
    **{"Qwen/Qwen2.5-7B-Instruct": TINY, "docker": "sqlite", "auto": "sqlite"},
    **{"HuggingFaceTB/SmolLM2-135M-Instruct": TINY, "3200": "40"},
    "csyq/LifelongAgentBench": "lifelong.json",
    **{"1000": "40", "10000": "40", "500": "40", "200": "12", "8": "2", "40": "1"},
}
ON_A_CPU = {"use_cpu": "true", "bf16": "false", "gradient_checkpointing": "false", "dtype": "float32"}
IN_SMALL = {
    "grpo": {
        **{"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
        **{"max_turn_tokens": 48, "max_completion_length": 192, "database": "sqlite", "save_steps": 1},
        **{"max_steps": 2, "per_device_eval_batch_size": 8},
    },
    **{kind: {"max_steps": 2} for kind in ("sft", "rm", "prm")},
    **{name: {"--max-turn-tokens": "48"} for name in ("eval", "sample", "compare")},
    "import": {"--num-tasks": "40"},
}


def pages() -> dict[str, list[str]]:
    """The lines to run of each page."""
    found: dict[str, list[str]] = {}
    for page, line in COMMANDS:
        words = [word.split("/")[-1] for word in line.split() if not re.match(r"[A-Z_]+=", word)]
        ours = page not in ELSEWHERE or SCORES in line
        if ours and words[0] not in NOT_OURS and not any(each in line for each in LONG):
            found.setdefault(page, []).append(line)
    return found


PAGES = pages()
AGENT = dict(
    re.findall(r"```python\n# (\S+)\n(.*?)\n```\n", (ROOT / "docs/harness.md").read_text(), re.DOTALL)
)
"""The agent of harness.md."""

AGENTBENCH = {
    **{"description": "How many medals has Chad?", "type": ["counting"], "label": ["1"]},
    "sql": {"query": "SELECT gold FROM medals WHERE nation = 'Chad'"},
    "table": {
        "table_name": "medals",
        "table_info": {
            "columns": [{"name": "nation", "type": "TEXT"}, {"name": "gold", "type": "TEXT"}],
            "rows": [["Chad", "1"], ["Togo", "2"]],
        },
    },
}


LIFELONG = {
    str(number): {
        "instruction": f"How many gold medals has {nation}?",
        "answer_info": {
            "direct": [[number]],
            "md5": None,
            "sql": f"SELECT gold FROM medals WHERE nation = '{nation}'",
        },
        "table_info": {
            "name": "medals",
            "column_info_list": [{"name": "nation", "type": "TEXT"}, {"name": "gold", "type": "INT"}],
            "row_list": [["Chad", 1], ["Togo", 2], ["Mali", 3]],
        },
        "skill_list": ["select", "where_single_condition"],
    }
    for number, nation in enumerate(("Chad", "Togo", "Mali"), 1)
}


def benchmarks() -> None:
    """Spider, BIRD and Spider2-lite as they are unpacked, with one question each, and somebody's answers."""
    question = {"db_id": "bank", "question": "How many accounts?"}
    for folder, databases, key, names in (
        ("data/spider", "database", "query", ("dev",)),
        ("data/bird", "dev_databases", "SQL", ("dev", "mini_dev_sqlite")),
    ):
        database = Path(folder, databases, "bank", "bank.sqlite")
        database.parent.mkdir(parents=True)
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript("CREATE TABLE account (id); INSERT INTO account VALUES (1), (2)")
        for name in names:
            entry = question | {key: "SELECT COUNT(*) FROM account", "question_id": 0}
            Path(folder, f"{name}.json").write_text(json.dumps([entry]))
    spider2(Path("data/spider2-lite"), {"local001": {"": "n\n3\n"}})
    Path("predicted.sql").write_text("SELECT 2\tbank\n")
    Path("lifelong.json").write_text(json.dumps(LIFELONG))
    Path("runs/bird").mkdir(parents=True)
    turns = [{"text": "", "action": "answer", "answer": "SELECT 2"}]
    Path("runs/bird/episodes.jsonl").write_text(json.dumps({"task_id": "0", "turns": turns}))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The repository as far as the pages name it, with small files, and files of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    shutil.copytree(ROOT / "recipes", "recipes")
    for name in ("accelerate_configs", "benchmarks"):
        Path(name).symlink_to(ROOT / name)
    for path, count in {"train": 24, "test": 12}.items():
        for folder in ("recipes/tiny", MULTI, "recipes/tiny_sql"):
            file = Path(folder, f"{path}.jsonl")
            file.write_text("".join(file.read_text().splitlines(keepends=True)[:count]))
        shutil.copy(f"recipes/tiny/{path}.jsonl", ".")
    shutil.copy("test.jsonl", "my.jsonl")
    for model in (
        Path(TINY),
        Path(MULTI, "model"),
        Path("recipes/tiny_sql/model"),
    ):  # whose context is as long as a large one's
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32_768}))
    for name, text in (FILES | AGENT).items():
        Path(name).write_text(text)
    Path("pairs.jsonl").write_text(TASK)
    # in the place of the model that takes ten minutes to train
    shutil.copytree("recipes/tiny_sql/model", "runs/in_context")
    example = load_tasks("recipes/tiny_sql/test.jsonl")[0]
    shown = Example.of(
        {"turns": [{"text": f"Action: Answer\nFinal Answer:\n```sql\n{example.gold.sql}\n```"}]}, example
    )
    Path("runs/in_context/memory.jsonl").write_text(shown.line)  # as `benchmarks/in_context.py` writes it
    Path("dev.jsonl").write_text(json.dumps(AGENTBENCH))
    Path("customers.csv").write_text("id,name\n1,Ann\n2,Bo\n3,Cy\n4,Di\n5,Ed\n6,Flo\n")
    Path("orders.csv").write_text(
        "id,customer_id,total\n" + "".join(f"{n},{n % 6 + 1},{n * 7}\n" for n in range(1, 9))
    )
    Path("questions.csv").write_text("question,answer\nHow many orders are there?,8\n")
    benchmarks()
    yield tmp_path
    for name in FILES | AGENT:  # other tests have modules of these names
        sys.modules.pop(Path(name).stem, None)


def recipe(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the launcher would start, in this process: a script and its options."""
    script, config, *given = options[0], options[2], *options[3:]
    kind = Path(script).stem.removesuffix("_dbbench")
    named = {word[2:] for word in given if word.startswith("--")}
    keys = shipped.read_recipe(Path(config))
    small = ON_A_CPU | IN_SMALL[kind]
    if "stream" in keys:  # whose stages say how long it is
        small["stage_steps"] = small.pop("max_steps")
    model = str(keys["model_name_or_path"])
    if not Path(config).parent.joinpath(model).exists() and "model_name_or_path" not in named:
        small["model_name_or_path"] = TINY
    if (
        kind == "grpo"
        and "tasks" not in named
        and str(keys["tasks"]).count("/") == 1
        and "tiny" not in str(keys["tasks"])
    ):
        small["tasks"] = "recipes/tiny/train.jsonl"
    held_out = Path("recipes", str(keys.get("eval_tasks")))  # of a shipped recipe, whose own file is whole
    if held_out.exists() and "eval_tasks" not in named:
        small["eval_tasks"] = str(held_out)
    words = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    run_here(monkeypatch, Path(script), "--config", config, *given, *words, folder=Path.cwd())


def after_launch(words: list[str]) -> list[str]:
    (script,) = (place for place, word in enumerate(words) if word.endswith("_dbbench.py"))
    return words[script:]


@pytest.fixture
def run(
    here: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., tuple[int | str | None, str]]
) -> Callable[[str], None]:
    monkeypatch.setattr(shipped, "launch", lambda words: recipe(after_launch(words), monkeypatch))

    def run(line: str) -> None:
        program, *words = [REPLACED.get(word, word) for word in shlex.split(line, comments=True)]
        if program.endswith("accelerate"):
            recipe(after_launch(words), monkeypatch)
        elif program == "python":
            monkeypatch.setattr(subprocess, "Popen", Forked)  # as which benchmarks start trainings
            run_here(monkeypatch, Path(words[0]), *words[1:], folder=Path.cwd())
            results = Path("runs", f"{Path(words[0]).stem}.jsonl").read_text().splitlines()
            assert len(results) == 2, "one of each estimator"
        else:
            assert program.endswith("trl-dbbench"), line
            if "my_formats.Pairs" in words:
                shutil.copy("pairs.jsonl", "my.jsonl")
            if words[0] == "sample" and "Qwen" in line:  # which was taught by this one
                words += ["--system-prompt", "Work on the MySQL database."]
            if words[0] == "import":  # replaces no file, and the fixture's lie there
                for option, name in pairwise(words):
                    if option in ("--out", "--test-out"):
                        Path(name).unlink(missing_ok=True)
            for option, value in IN_SMALL.get(words[0], {}).items():
                if option not in words:
                    words += [option, value]
            status, _ = command(*words)
            assert status in (0, None), (line, status)
        for option, name in pairwise(words):
            if option in ("--out", "--test-out", "--json", "--html", "--output_dir") and "{" not in name:
                assert Path(name).exists(), line

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first page's run lies, for the others."""
    return tmp_path_factory.mktemp("trained") / "quickstart"


@pytest.fixture
def quickstart(trained: Path, run: Callable[[str], None]) -> None:
    """The run that most pages look at, and copies of it under the names of others."""
    if trained.exists():
        shutil.copytree(trained, "runs/quickstart")
    else:
        run("accelerate launch recipes/grpo_dbbench.py --config recipes/quickstart.yaml")
        shutil.copytree("runs/quickstart", trained)
    for name in ("mine", "first", "second", "base", "replay", "shop"):
        shutil.copytree("runs/quickstart", f"runs/{name}")
    Path("runs/quickstart/checkpoint-1").rename("runs/quickstart/checkpoint-20")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_a_page_runs(page: str, run: Callable[[str], None], quickstart: None) -> None:
    for line in PAGES[page]:
        run(line)


def test_no_page_is_left_out() -> None:
    assert {page for page, _ in COMMANDS} - PAGES.keys() - ELSEWHERE == set()
