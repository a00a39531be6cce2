"""README.md of a trained model: its base model, its training and its accuracy.

Versions and citations come from TRL's draft; the rest of the draft is about chatting with a model of the hub.
"""

from __future__ import annotations

import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from peft import PeftModel

from trl_dbbench.episode.dataset import is_fresh
from trl_dbbench.runs.stream import STAGES_FOLDER
from trl_dbbench.training.callbacks import before_and_after

VERSIONS = "### Framework versions"
"""Heading from which TRL's draft is kept."""

SECRET_OPTIONS = re.compile(r"--(\w*[_-])?(token|password|key)")
PASSWORD = re.compile(r"((?<=://)[^:/@\s]*:)[^@\s]+(?=@)|(?<=[?&])(\w*pass\w*=)[^&\s]+")
"""Passwords in URLs: before the host, or as an option (`?user=root&password=secret`)."""
VOID = " Void are episodes whose environment failed: the share leaves them out."


def refine_card(trainer: Any) -> None:
    """Rewrite TRL's draft in the `output_dir/README.md` of a `DBBenchGRPOTrainer`."""
    path = Path(trainer.args.output_dir) / "README.md"
    card = ModelCard.load(path)
    base, model = trainer.model.config.name_or_path, trainer.accelerator.unwrap_model(trainer.model)
    kind = model.active_peft_config.peft_type.value if isinstance(model, PeftModel) else None
    local = not base or Path(base).is_dir()  # the hub refuses a local path as the base model
    data = card.data
    data.base_model = None if local else base
    data.library_name = "peft" if kind else "transformers"
    data.pipeline_tag = "text-generation"
    tags = {tag for tag in data.tags or [] if not (local and tag.startswith("base_model:"))}
    data.tags = sorted(tags | ({kind.lower()} if kind else set()))
    vars(data).pop("licence", None)  # TRL's draft has only a placeholder
    name = trainer.hub_model_id or Path(trainer.args.output_dir).resolve().name
    kept = card.text[card.text.index(VERSIONS) :].replace(f"Cite {trainer._name} as", "Cite the method as")
    parts = [
        f"# {name}",
        _introduction(trainer, base if not local else None, kind),
        "## Accuracy",
        _accuracy(trainer),
        "## How it was trained",
        _training(trainer),
        _command(),
        "## How to use it",
        _usage(trainer, local),
        kept.strip(),
    ]
    card.text = "\n\n" + "\n\n".join(part for part in parts if part) + "\n"
    card.save(path)


def _introduction(trainer: Any, base: str | None, kind: str | None) -> str:
    """Describe the model; `kind` is PEFT's name for the type of its adapter."""
    what = f"A {kind.replace('LORA', 'LoRA')} adapter on" if kind else "A trained version of"
    what += f" [{base}](https://huggingface.co/{base})" if base else " a model that is not on the hub"
    return (
        f"{what}: an agent that gets a question and the tables it is about, runs SQL on a MySQL database "
        f"for a few turns, and gives an answer or leaves the tables changed. Made with `trl_dbbench`, by "
        f"{trainer._name}, with [TRL](https://github.com/huggingface/trl)."
    )


def _accuracy(trainer: Any) -> str:
    """Describe the held-out accuracy before and after training, and the greedy one on training tasks."""
    found = before_and_after(Path(trainer.args.output_dir), trainer.best_step)
    said = []
    if found:
        steps = list(found)
        last = found[steps[-1]].share()
        played = last.judged + last.void
        heads = [f"after step {step:,}" if step else "before training" for step in steps]
        said = [
            f"Share of {played:,} held-out tasks that it solved, decoding greedily; 95 % Wilson intervals in "
            "brackets." + (VOID if any(found[step].void for step in steps) else ""),
            "\n".join(
                [
                    f"| tasks | {' | '.join(heads)} |",
                    "|---" * (len(heads) + 1) + "|",
                    *(
                        f"| {group} | {' | '.join(found[step].describe(group) for step in steps)} |"
                        for group, _ in found[steps[-1]].table()
                    ),
                ]
            ),
        ]
    else:
        said.append("It was not evaluated on held-out tasks.")
    record = trainer.greedy_eval
    if record is not None and record.accuracy.table():
        said.append(
            "Over the training, each prompt played greedily before the update with it: "
            f"{record.accuracy.describe()}."
        )
    return "\n\n".join(said)


def _training(trainer: Any) -> str:
    args, rules = trainer.args, trainer.player.rules
    held_out = "" if trainer.eval_dataset is None else f", {len(trainer.eval_dataset):,} held out"
    tasks = (
        "made as they were drawn" if is_fresh(trainer.train_dataset) else f"{len(trainer.train_dataset):,}"
    )
    best = trainer.best_step
    rows = {
        "tasks": f"{tasks}{held_out}",
        "updates": f"{trainer.state.global_step:,}",
        "weights": None
        if best is None
        else f"those after step {best:,}, the best by `{args.metric_for_best_model}`",
        "database": trainer.player.database.describe(),
        "protocol": f"`{args.protocol}`",
        "an episode": f"{rules.max_turns} turns of {rules.max_turn_tokens:,} tokens at most, "
        f"{rules.max_completion_length:,} in all",
        "sampling": _sampling(args),
        "rewards": ", ".join(f"`{name}`" for name in trainer.reward_func_names),
        "advantage": f"`{args.advantage}`",
        "loss": f"`{args.loss_type}`, beta {args.beta:g}",
        "learning rate": f"{args.learning_rate:g}, {args.lr_scheduler_type.value}",
        "started from": None if args.adapter_name_or_path is None else f"`{args.adapter_name_or_path}`",
        "seed": str(args.seed),
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *lines])


def _sampling(args: Any) -> str:
    said = [f"{args.num_generations} episodes of a prompt", f"temperature {args.temperature:g}"]
    if args.top_p < 1:
        said.append(f"top-p {args.top_p:g}")
    if args.top_k:
        said.append(f"top-k {args.top_k}")
    return ", ".join(said)


def _command() -> str:
    """Return this process's command without secrets; an empty string if it is not a script."""
    if not sys.argv[0].endswith((".py", "trl-dbbench")):
        return ""
    words = [PASSWORD.sub(r"\1\2***", word) for word in sys.argv]
    for place, (option, _) in enumerate(pairwise(words)):
        if SECRET_OPTIONS.fullmatch(option):
            words[place + 1] = "***"
    words = [re.sub(rf"^({SECRET_OPTIONS.pattern})=.*", r"\1=***", word) for word in words]
    program = Path(words[0]).name if words[0].endswith("trl-dbbench") else f"python {shlex.quote(words[0])}"
    return f"```bash\n{program} {shlex.join(words[1:])}\n```"


def _usage(trainer: Any, local: bool) -> str:
    repository = trainer.hub_model_id
    folder = Path(trainer.args.output_dir).resolve().name
    lines = [f"hf download {repository} --local-dir {folder}"] if repository else []
    lines.append(f"trl-dbbench eval {folder} --tasks TASKS.jsonl")
    base = " Its base model must lie where `run.json` says, or be named by `--model`." if local else ""
    stages = ""
    if trainer.args.stage_adapters == "each":
        stages = (
            f" These weights are the last stage's alone: a task is for the adapter of its own stage, one of "
            f"the folders in `{STAGES_FOLDER}/`."
        )
    return (
        f"```bash\n{chr(10).join(lines)}\n```\n\nIt is played as in training: `run.json` has the system "
        f"prompt, the chat template and the limits of an episode.{base}{stages}"
    )
