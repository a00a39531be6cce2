"""docs/own_tables.md, command by command: from CSV files and from a MySQL server to an adapter and a comparison."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from launching import RECIPE, ROOT, run_here
from own_tables import remove_shop, set_up_shop, write_csv
from peft import LoraConfig
from transformers import Qwen2Config
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.database import Database
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.tasks import load_tasks
from trl_dbbench.training.memory import Place, Plan, Sizes, gb, plan

PAGE = ROOT / "docs" / "own_tables.md"
TINY = "recipes/tiny/model"

SMALL = shlex.split(
    f"--config {ROOT}/recipes/quickstart.yaml --model_name_or_path {ROOT}/{TINY} --max_steps 2 --eval_steps 2 "
    "--num_generations 4 --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --eval_on_start false "
    "--max_completion_length 192 --save_steps 2"
)
"""The page's training in small; the last options win."""


def commands(skipped: str) -> list[list[str]]:
    """The page's command lines, but the import of the other kind."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line[1] != "import" or not line[2].startswith(skipped)]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["csv", "server"])
def test_from_tables_to_a_comparison(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    write_csv(tmp_path)
    url = ""
    if source == "server":
        database: Database = request.getfixturevalue("local_database")
        set_up_shop(url := database.url)
        request.addfinalizer(lambda: remove_shop(url))
    done = []
    for command in commands("mysql" if source == "csv" else "customers"):
        words = [replaced(word, url, tmp_path) for word in command]
        if command[0] == "accelerate":
            options = words[words.index("--config") + 2 :]
            run_here(monkeypatch, RECIPE, *small(options))
        elif command[0] == "trl-dbbench" and is_there(command[1]):
            monkeypatch.chdir(tmp_path)
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{words}: {result.output} {result.exception}"
        done.append(command[1])
    assert done[0] == "import" and "launch" in done and {"eval", "compare", "report"} <= set(done)
    assert len(load_tasks(tmp_path / "train.jsonl")) == 36 and len(load_tasks(tmp_path / "test.jsonl")) == 4
    assert find_trained(tmp_path / "runs/shop").adapter == str(tmp_path / "runs/shop")


def is_there(name: str) -> bool:
    return any(command.name == name or name in str(command.callback) for command in app.registered_commands)


def replaced(word: str, url: str, folder: Path) -> str:
    if word.startswith("mysql"):
        return url
    if word.startswith("Qwen/"):
        return str(ROOT / TINY)
    if word in ("2000", "auto"):
        return {"2000": "40", "auto": "sqlite"}[word]
    if word.startswith("runs/") or word.endswith((".jsonl", ".csv")):
        return str(folder / word)
    return word


def small(options: list[str]) -> list[str]:
    """The page's options, then those of `SMALL`, each once."""
    given = dict(zip(options[::2], options[1::2], strict=True)) | dict(
        zip(SMALL[::2], SMALL[1::2], strict=True)
    )
    return [word for pair in given.items() for word in pair]


def test_the_memory_of_the_page_is_the_computed_one():
    keys = yaml.safe_load((ROOT / "recipes" / "qwen2.5-7b-conservative.yaml").read_text())
    config = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        tie_word_embeddings=False,
    )
    adapter = LoraConfig(r=keys["lora_r"], target_modules="all-linear", task_type="CAUSAL_LM")
    sizes = Sizes.of(config, adapter)

    def planned(**others: object) -> Plan:
        place = Place(there=1e12, on_cpu=False, value_bytes=2, lora=True)
        return plan(
            SimpleNamespace(**keys | others), config, sizes, 2_000 - keys["max_completion_length"], place
        )

    page = PAGE.read_text(encoding="utf-8")
    for name, size in planned().parts.items():
        row = f"| {name} | {gb(size)} |" if name != "total" else f"| **together** | **{gb(size)}** |"
        assert row in page or not size
    for settings, text in (
        ({"gradient_checkpointing": False}, "Without gradient checkpointing the update would take {}."),
        ({"max_tokens_per_forward": 4_000}, "with `max_tokens_per_forward: 4000`, the update takes {}."),
        (
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
            "makes the update smaller ({})",
        ),
    ):
        assert text.format(gb(planned(**settings).parts["update"])) in " ".join(page.split())
