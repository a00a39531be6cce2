"""What do faulty tasks cost, and what does `trl-dbbench audit --fix` give back?

    python benchmarks/clean_data.py [--shares 10 30 60] [--seeds 1 2 3] [--kinds "wrong gold" slip]

Faults are planted in so many percent of the quickstart's training tasks (`planted.py`). The quickstart is
trained on

- `clean`: the tasks without faults;
- `faulty`: those with faults;
- `audited`: what `trl-dbbench audit faulty.jsonl --fix audited.jsonl` leaves and repairs;
- `doubtless`: the same with `--drop-doubtful`.

All else is the same, and the held-out tasks are always clean. Printed is the greedy accuracy on these after
the last update, for each seed, and what became of the planted faults. Control, for the first seed: a learning
rate of 0.

Each run has a folder below `--out`, which keeps its figures; one that is finished is not run again. Runs
follow one another.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any

from held_out import ROOT, train
from learning import points_of
from planted import KINDS, plant

from trl_dbbench import load_tasks, open_database
from trl_dbbench.data.audit.examine import Examined
from trl_dbbench.data.audit.slips import slips_of
from trl_dbbench.database import Database
from trl_dbbench.tasks import Task

TASKS = ROOT / "recipes/tiny/train.jsonl"
AUDITS: dict[str, tuple[str, ...]] = {"audited": (), "doubtless": ("--drop-doubtful",)}
"""Files that an audit makes of the faulty one -> its options."""
FILES = ("faulty", *AUDITS)
CONTROL = "clean, learning rate 0"


@dataclass(frozen=True)
class Faults:
    """A file with faults, and those that audits make of it, in a folder."""

    folder: Path
    percent: int
    kinds: tuple[str, ...]

    @property
    def name(self) -> str:
        kinds = "" if self.kinds == tuple(KINDS) else f" {', '.join(self.kinds)}"
        return f"{self.percent} %{kinds}"

    def path(self, file: str, suffix: str = ".jsonl") -> Path:
        return self.folder / self.name / f"{file}{suffix}"

    def write(self, tasks: Sequence[Task]) -> None:
        """Plants and audits, unless that is done."""
        planted_file = self.path("planted", ".json")
        if planted_file.exists():
            return
        planted_file.parent.mkdir(parents=True, exist_ok=True)
        with open_database("sqlite") as database:
            faulty, planted = plant(tasks, self.percent / 100, database, kinds=self.kinds)
            paid = what_is_paid(tasks, faulty, planted, database)
        write(self.path("faulty"), faulty)
        for file, options in AUDITS.items():
            command = [sys.executable, "-m", "trl_dbbench", "audit", str(self.path("faulty")), *options]
            command += ["--fix", str(self.path(file)), "--json", str(self.path(file, ".json"))]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        planted_file.write_text(json.dumps({"planted": planted, "paid": paid}, indent=1))

    def counts(self) -> dict[str, Mapping[str, int]]:
        """Of the faulty file, its faults by kind, and `what_is_paid`; of each audit, `what_became`."""
        kept = json.loads(self.path("planted", ".json").read_text())
        reports = {file: json.loads(self.path(file, ".json").read_text()) for file in AUDITS}
        audits = {file: what_became(kept["planted"], report) for file, report in reports.items()}
        return {"faulty": Counter(kept["planted"].values()), "paid": kept["paid"], **audits}


def what_is_paid(
    tasks: Sequence[Task], faulty: Sequence[Task], planted: Mapping[str, str], database: Database
) -> dict[str, int]:
    """Tasks by fault and by what is rewarded all the same: the sound task's gold SQL (`right`), a statement
    one slip away from it (`slip`)."""
    found = Counter[str]()
    for sound, task in zip(tasks, faulty, strict=True):
        if (kind := planted.get(task.id)) is None:
            continue
        examined = Examined(task, database)
        right, _ = examined.ending(sound.gold.sql or "")
        found[f"{kind}, right"] += right is not None and examined.right(right)
        found[f"{kind}, slip"] += bool(examined.surviving(slips_of(sound), 1))
    return dict(found)


def what_became(planted: Mapping[str, str], report: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Tasks by fault and outcome, as `slip, repaired`; the fault of tasks without one is `none`. Faults
    that are left are `missed`: rows that tell slips from a wrong gold do not mend that."""
    found = Counter[str]()
    for entry in report:
        kind, outcome = planted.get(entry["id"], "none"), entry["outcome"]
        left = outcome == "sound" or (outcome == "repaired" and kind != "slip")
        found[f"{kind}, {'missed' if kind != 'none' and left else outcome}"] += 1
    return found


def write(path: Path, tasks: Sequence[Task]) -> None:
    path.write_text("".join(f"{task.to_json()}\n" for task in tasks))


# --- runs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A training on a file of tasks, in a folder of its own, which keeps the figures."""

    name: str
    tasks: Path
    folder: Path
    seed: int
    steps: int
    options: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """What figures were found with; others are found anew."""
        return {
            "tasks": md5(self.tasks.read_bytes()).hexdigest(),
            "steps": self.steps,
            "options": list(self.options),
        }

    def figures(self) -> dict[str, Any] | None:
        """Those that are kept, if the run is finished."""
        path = self.folder / "figures.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return found if found.get("settings") == self.settings else None

    def finish(self) -> dict[str, Any]:
        """The figures of the run, which is run if it is not finished."""
        if (found := self.figures()) is not None:
            return found
        shutil.rmtree(self.folder, ignore_errors=True)
        started = time.perf_counter()
        options = ("--tasks", str(self.tasks), *self.options)
        train(str(self.folder), "quickstart.yaml", self.seed, self.steps, self.steps, *options)
        points = points_of(self.folder)
        figures = {
            "settings": self.settings,
            "before": points[0]["accuracy"],
            "after": points[-1]["accuracy"],
            "seconds": round(time.perf_counter() - started, 1),
        }
        (self.folder / "figures.json").write_text(json.dumps(figures))
        print(
            f"{self.name:<36} seed {self.seed}  {100 * figures['before']:5.1f} % -> "
            f"{100 * figures['after']:5.1f} %, {figures['seconds']:.0f} s",
            flush=True,
        )
        return figures


def table(
    rows: Sequence[tuple[str, str, str]], results: Mapping[str, Mapping[int, Mapping[str, Any]]]
) -> str:
    """The table of the documentation.

    Args:
        rows: (name of the runs, what it says of them, what became of the faults), in order.
        results: name -> seed -> figures.
    """
    lines = ["| training tasks | planted faults | held out, %, by seed | mean |", "|---" * 4 + "|"]
    for name, label, became in rows:
        after = [100 * each["after"] for _, each in sorted(results.get(name, {}).items())]
        if after:
            by_seed = ", ".join(f"{each:.1f}" for each in after)
            lines.append(f"| {label} | {became} | {by_seed} | {statistics.mean(after):.1f} |")
    return "\n".join(lines)


def said(counts: Mapping[str, int]) -> str:
    """Faults that an audit repaired, dropped and missed, and tasks without one that it dropped."""
    sums = Counter[str]()
    for name, count in counts.items():
        kind, outcome = name.split(", ")
        sums[f"sound {outcome}" if kind == "none" else outcome] += count
    text = ", ".join(f"{sums[outcome]} {outcome}" for outcome in ("repaired", "dropped", "missed"))
    return f"{text}; {sums['sound dropped']} others dropped"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shares", type=int, nargs="+", default=[10, 30, 60], help="percent of the tasks")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--files", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=16, help="updates of a run")
    parser.add_argument("--out", type=Path, default=Path("runs/clean_data"))
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    tasks = load_tasks(TASKS)
    clean = out / "clean.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    write(clean, tasks)
    levels = [
        Faults(out, percent, tuple(kind for kind in KINDS if kind in arguments.kinds))
        for percent in arguments.shares
    ]
    for faults in levels:
        faults.write(tasks)
        print(f"{faults.name}: {faults.counts()}", flush=True)

    files: dict[str, tuple[Path, tuple[str, ...]]] = {"clean": (clean, ())}
    rows = [("clean", "clean", "none")]
    for faults in levels:
        for file in arguments.files:
            name, counts = f"{faults.name}, {file}", faults.counts()[file]
            files[name] = faults.path(file), ()
            became = f"{sum(counts.values())}" if file == "faulty" else said(counts)
            rows.append((name, name, became))
    files[CONTROL] = clean, ("--learning_rate", "0")
    rows.append((CONTROL, CONTROL, "none"))

    results: dict[str, dict[int, dict[str, Any]]] = {}
    for seed in arguments.seeds:
        for name, (path, options) in files.items():
            if name == CONTROL and seed != arguments.seeds[0]:
                continue
            run = Run(name, path, out / "trainings" / name / f"seed-{seed}", seed, arguments.steps, options)
            results.setdefault(name, {})[seed] = run.finish()
    print("\n" + table(rows, results))


if __name__ == "__main__":
    main()
