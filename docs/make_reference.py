"""Write docs/reference.md: every command, key of a training YAML, and metric, as the code has them.

    python docs/make_reference.py

A metric is described where it is made: in a docstring, under a line that begins with `Logged`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path

from trl import GRPOConfig, ModelConfig

import trl_dbbench
from trl_dbbench.cli import COMMANDS
from trl_dbbench.cli.arguments import DatabaseArguments, RewardArguments, TaskArguments
from trl_dbbench.training.config import DBBenchGRPOConfig
from trl_dbbench.training.ppo import DBBenchPPOConfig
from trl_dbbench.training.unsupported import REFUSED_SETTINGS, REFUSED_VALUES

PAGE = Path(__file__).with_name("reference.md")

KEY_HEADS = ["key", "type", "default", "what it is"]

HEAD = """\
# Reference: every command, YAML key and metric

For anyone who looks up a command, a key or a metric. You get each with its type, default and meaning, as the
code has it.

A key that a recipe does not name has its default. Every key is also an option of `trl-dbbench train RECIPE`:
`--max_turns 5`. For the keys of the SFT, reward-model and process-reward-model recipes, see
`python recipes/sft_dbbench.py --help` and the like. `python docs/make_reference.py` writes this page; do not
edit it.
"""

OURS: list[tuple[str, str, type, type | None]] = [
    ("Tasks", "", TaskArguments, None),
    ("Rewards", "", RewardArguments, None),
    ("Database", "", DatabaseArguments, None),
    ("Rollout and training", "Beside TRL's own, below.", DBBenchGRPOConfig, GRPOConfig),
    ("PPO", "For `recipes/ppo_dbbench.py`, beside all others.", DBBenchPPOConfig, DBBenchGRPOConfig),
]
"""Title, note, dataclass, and the one whose keys it inherits; those that it describes anew are its own."""

TRLS: list[tuple[str, str, type]] = [
    ("Model and LoRA", "TRL's `ModelConfig` describes them.", ModelConfig),
    ("Training", "TRL's `GRPOConfig` and transformers' `TrainingArguments` describe them.", GRPOConfig),
]


def reference() -> str:
    """Return the page's text."""
    parts = [HEAD, *_commands()]
    for title, note, settings, base in OURS:
        rows = [
            (*_key(settings, each), " ".join(each.metadata["help"].split())) for each in _own(settings, base)
        ]
        parts += [f"## {title}\n", f"{note}\n" if note else "", _table(KEY_HEADS, rows)]
    left_out = REFUSED_SETTINGS.keys() | {each.name for each in _own(DBBenchGRPOConfig, GRPOConfig)}
    for title, note, settings in TRLS:
        kept = [_key(settings, each) for each in fields(settings) if each.name not in left_out]
        parts += [f"## {title}\n", f"{note}\n", _table(KEY_HEADS[:3], kept)]
    parts.append(
        "## Refused\n\nTRL's keys and values that a rollout on a database cannot use end in an error at the "
        "start.\n"
    )
    refused = [(f"`{name}`", *why) for name, why in REFUSED_SETTINGS.items()]
    for name, values in REFUSED_VALUES.items():
        refused += [(f"`{name}: {value}`", *why) for value, why in values.items()]
    parts.append(_table(["key", "why", "instead"], refused))
    parts.append("## Metrics\n")
    parts.append(
        "Logged beside TRL's own, to `metrics.jsonl` and the trackers. In held-out evaluations `eval_` "
        "stands before the name. A *void* episode is one whose environment failed, such as the database.\n"
    )
    metrics = sorted(_metrics(), key=lambda row: row[0].replace("`", ""))
    parts.append(_table(["metric", "what it is"], metrics))
    return "\n".join(parts)


def _own(settings: type, base: type | None) -> list[Field]:
    """Return the fields that a dataclass has beside those of its base, or describes anew."""
    inherited = {each.name: each for each in fields(base)} if base else {}
    return [each for each in fields(settings) if inherited.get(each.name) is not each]


def _commands() -> Iterator[str]:
    """Yield the commands in their groups, each with the first paragraph of its help."""
    yield "## Commands\n\n`trl-dbbench COMMAND --help` lists the options of one.\n"
    for group, commands in COMMANDS.items():
        rows = [(f"`{name}`", _first_paragraph(command)) for name, command in commands.items()]
        yield f"### {group}\n"
        yield _table(["command", "what it does"], rows)


def _first_paragraph(function: Callable) -> str:
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


def _key(settings: type, setting: Field) -> tuple[str, str, str]:
    # parsing arguments simplifies the types of the fields, but not the annotations
    annotations = (vars(each).get("__annotations__", {}) for each in settings.__mro__)
    kind = next(each[setting.name] for each in annotations if setting.name in each)
    return f"`{setting.name}`", f"`{getattr(kind, '__name__', kind)}`", f"`{_default(setting)}`"


def _default(setting: Field) -> str:
    if setting.default is not MISSING:
        return repr(getattr(setting.default, "value", setting.default))
    return repr(setting.default_factory()) if setting.default_factory is not MISSING else "required"


def _metrics() -> Iterator[tuple[str, str]]:
    """Yield the metrics that docstrings name under `Logged:`."""
    for file in sorted(Path(trl_dbbench.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                doc = inspect.cleandoc(ast.get_docstring(node) or "")
                section = re.search(r"^Logged[^:\n]*:\n+((?:[ -].*\n?|\n)+)", doc, re.MULTILINE)
                for bullet in re.findall(r"- (.*(?:\n  .*)*)", section[1]) if section else ():
                    names, _, text = " ".join(bullet.split()).partition(": ")
                    yield names, text


def _table(heads: list[str], rows) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"{PAGE} is written.")
