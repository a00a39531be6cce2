"""Commands that read a run's output: `report`, `replay`, `export`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from trl_dbbench.cli import options as opt
from trl_dbbench.database import database_for, open_database
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.read import read_tasks
from trl_dbbench.runs.records import TASKS_FILE, Phase
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks.entries import write_entries
from trl_dbbench.utils.files import check_outputs, write_atomically

if TYPE_CHECKING:
    from trl_dbbench.runs.differences import Replayed


def report(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="A training run's output_dir, finished, running or killed.")],
    other: Annotated[Path | None, typer.Argument(help="A second run, to show beside it.")] = None,
    out: Annotated[Path | None, typer.Option(help="The HTML file; RUN/report.html if left out.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder of the PNG files; figures/ beside the HTML file if left out.")
    ] = None,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Writes no PNG files.")] = False,
) -> None:
    """Writes a run's curves and transcripts as one HTML file that needs no network, and the curves as PNG.

    Two runs are shown side by side in one file, without PNG.
    """
    from trl_dbbench.evaluation.report.figures import NO_MATPLOTLIB, can_draw, write_figures
    from trl_dbbench.evaluation.report.page import write_report
    from trl_dbbench.evaluation.report.run import read_run

    if other is not None:
        opt.refuse(context, "PNG files are drawn of one run alone", "--figures")
    if no_figures:
        opt.refuse(context, "--no-figures writes no PNG files", "--figures")
    if figures is not None and not can_draw():
        raise ConfigError(f"--figures: {NO_MATPLOTLIB}.")
    check_outputs([out], *opt.files_of(run), *opt.files_of(other))
    reads = [read_run(each) for each in (run, other) if each is not None]
    for read in reads:
        for note in read.notes:
            typer.echo(f"note: {f'{read.name}: ' if other else ''}{note}")
    default = run / "report.html" if other is None else run / f"report-and-{reads[1].name}.html"
    page = write_report(reads[0], out or default, *reads[1:])
    count = sum(len(read.episodes) for read in reads)
    typer.echo(f"{page}: {count:,} episodes, {page.stat().st_size / 1e6:.1f} MB")
    if other is not None or no_figures:
        return
    if figures is None and not can_draw():
        typer.echo(f"note: no PNG files: {NO_MATPLOTLIB}, or add --no-figures")
    else:
        written = write_figures(reads[0], figures or page.parent / "figures")
        typer.echo(f"{written[0].parent if written else 'no data for figures'}: {len(written)} PNG files")


def replay(
    run: Annotated[Path, typer.Argument(help="A training run's output_dir, finished, running or killed.")],
    database: opt.RunsDatabase = None,
    docker_image: opt.DockerImage = None,
    phase: Annotated[str | None, typer.Option(help="Only train, greedy or eval episodes.")] = None,
    steps: Annotated[
        str | None, typer.Option(help="Only these steps, as in 100:200, which leaves out 200.")
    ] = None,
    reward_funcs: Annotated[
        str | None, typer.Option(help="Rewards instead of the run's, as in a recipe, joined by commas.")
    ] = None,
    outcome_preset: Annotated[
        str | None, typer.Option(help="Values of the outcome reward instead of the run's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Writes the episodes with their new and their saved rewards.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="text or tools; for runs without run.json.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="For runs without run.json.")] = None,
    observation_characters: Annotated[
        int | None, typer.Option(min=0, help="For runs without run.json.")
    ] = None,
) -> None:
    """Plays every saved episode again on fresh sandboxes, without the model, and prints what differs.

    Compares how turns are read, observations, final tables, status and rewards; exits with 1 if one differs.
    --reward-funcs scores an old run by other rewards.
    """
    from trl_dbbench.cli.arguments import outcome_reward
    from trl_dbbench.runs.replay import replay as replay_run

    check_outputs([out], *opt.files_of(run))
    outcome = outcome_reward(outcome_preset) if outcome_preset else None
    only_steps = _steps(steps) if steps else None
    settings = RunSettings.read(
        run, protocol=protocol, max_turns=max_turns, observation_characters=observation_characters
    )
    played = read_tasks(run / TASKS_FILE, [])
    spec = database_for(played, database or settings.database_spec)
    with (
        write_atomically(out) if out else nullcontext() as file,
        open_database(spec, docker_image=docker_image, limits=settings.limits) as opened,
    ):
        typer.echo(
            f"Played on {settings.database or 'an unknown database'}, replayed on {opened.describe()}."
        )
        notes: list[str] = []
        replayed = replay_run(
            run,
            opened,
            settings=settings,
            reward_funcs=opt.names(reward_funcs),
            outcome=outcome,
            phase=phase,
            steps=only_steps,
            notes=notes,
        )
        differing = _tell(replayed, notes, file, rescored=bool(reward_funcs or outcome_preset))
    raise typer.Exit(int(differing > 0))


def _tell(episodes: Iterable[Replayed], notes: Sequence[str], file: IO[str] | None, *, rescored: bool) -> int:
    """Print differences as they are found, and a summary at the end; return how many episodes differ."""
    from tqdm.auto import tqdm

    from trl_dbbench.runs.differences import Summary

    summary = Summary()
    for replayed in episodes:
        summary.add(replayed)
        if replayed.differences:
            tqdm.write(str(replayed))
        if file is not None:
            file.write(json.dumps(replayed.to_dict(), ensure_ascii=False) + "\n")
    for note in notes:
        typer.echo(f"note: {note}")
    if rescored:
        typer.echo(summary.mean_rewards())
    typer.echo(summary)
    return summary.differing


def export(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The output_dir of a training run, or the folder of `sample`.")],
    to: Annotated[str, typer.Option(help="sft, preference, kto or prm.")],
    out: Annotated[
        Path | None, typer.Option(help="A .jsonl or .parquet file; RUN/sft.jsonl and the like if left out.")
    ] = None,
    phases: Annotated[
        str, typer.Option(help="train, greedy or eval (held-out tasks), or several joined by commas.")
    ] = "train",
    max_per_task: Annotated[
        int | None, typer.Option(min=1, help="Maximum rows of a task (default: 8 pairs, or all episodes).")
    ] = None,
    label_by: Annotated[
        str, typer.Option(help="For prm: outcome, or a step reward that the run recorded.")
    ] = "outcome",
    model: Annotated[
        str | None,
        typer.Option(help="For sft and prm: the model to train, if not the run's; its tokenizer is used."),
    ] = None,
) -> None:
    """Writes a run's episodes as a dataset that TRL's SFT, DPO, KTO and reward trainers take as it is."""
    from trl_dbbench.runs.export import check_suffix
    from trl_dbbench.runs.export import export as export_run

    if to != "prm":
        opt.refuse(context, f"{to} has no labels of turns", "--label-by")
    if to in ("preference", "kto"):
        opt.refuse(context, f"{to} is text, which any tokenizer reads", "--model")
    path = out or run / f"{to}.jsonl"
    check_suffix(path)
    check_outputs([out], *opt.files_of(run))
    notes: list[str] = []
    rows = export_run(
        *(run, to),
        phases=cast("list[Phase]", opt.names(phases)),
        max_per_task=max_per_task,
        label_by=label_by,
        model=model,
        notes=notes,
    )
    for note in notes:
        typer.echo(f"note: {note}")
    write_entries(path, rows)
    tasks = len({row["task_id"] for row in rows})
    typer.echo(f"{path}: {len(rows):,} rows of {tasks:,} tasks")


def _steps(text: str) -> tuple[int, int]:
    try:
        first, end = map(int, text.split(":"))
    except ValueError:
        raise ConfigError(
            f"--steps {text} must be two numbers with a colon between, as in 100:200."
        ) from None
    return first, end
