"""Command that tests whether one model is better than another: `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trl_dbbench.cli import options as opt
from trl_dbbench.cli.models import opened
from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.files import check_outputs, write_json

if TYPE_CHECKING:
    from trl_dbbench.evaluation.compare.arms import Arm


@opt.taking(opt.engine, opt.episodes, opt.drawing)
def compare(
    context: typer.Context,
    saved: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of eval --json, or runs. A single run: its first and last evaluation."),
    ] = None,
    model: opt.ModelName = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="A LoRA adapter's folder or hub id, or a run; several may be named."),
    ] = None,
    tasks: opt.EvalTasks = None,
    limit: opt.Limit = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Writes figures and the tasks that flipped here.")
    ] = None,
    html_file: opt.HtmlFile = None,
    **options: Any,
) -> None:
    """Says whether adapters are better than their base model, on the same tasks, task by task.

    Plays the base model and each adapter with the settings of the first adapter's run; or, with SAVED, reads
    what was played before. Prints accuracies, wins and losses, McNemar's exact test, bootstrap intervals of
    the difference, and the tasks that flipped.
    """
    from trl_dbbench.evaluation.compare.comparison import compare_arms, comparison_text
    from trl_dbbench.evaluation.compare.page import write_comparison
    from trl_dbbench.evaluation.compare.saved import names_of, saved_arms
    from trl_dbbench.evaluation.compare.streams import stream_figures, streams_text

    read = [file for each in saved or () for file in opt.files_of(each)]
    check_outputs([json_file, html_file], *read, tasks)
    notes: list[str] = []
    played = [option for option in opt.given_options(context) if option not in ("saved", "--json", "--html")]
    if saved and played:
        raise ConfigError(f"what was saved is not played again: leave out {', '.join(played)}, or SAVED.")
    arms = saved_arms(saved) if saved else _played(context, notes)
    comparison = compare_arms(arms, notes=notes)
    typer.echo(comparison_text(comparison))
    if json_file is not None:
        write_json(json_file, comparison.to_dict())
    if html_file is not None:
        typer.echo(write_comparison(comparison, html_file))
    if saved and (figures := stream_figures(saved, names_of(saved))):
        typer.echo(f"\nStreams, in points of 100 (docs/lifelong.md):\n{streams_text(figures)}")


def _played(context: typer.Context, notes: list[str]) -> list[Arm]:
    """Play the base model and the adapters, and return their results."""
    from trl_dbbench.evaluation.compare import play

    given = context.params
    if not given["adapter"]:
        raise ConfigError(
            "say what to compare: --adapter (with --model for its base), or files of eval --json, or runs."
        )
    plan = opt.plan_of(context)
    trained = [opt.trained_by(context, adapter) for adapter in given["adapter"]]
    play.arm_names(given["adapter"])
    notes += play.check_one_base(trained)
    tasks = play.each_once(opt.tasks_to_evaluate(trained[0], given["tasks"], given["limit"]))
    adapters = [str(each.adapter) for each in trained]
    with opened(given, trained[0], tasks, adapters) as (player, backend, policy):
        how = plan, given["scorer"], given["batch_size"]
        return play.play_adapters(trained, policy, play.ArmPlayer(tasks, trained[0], player, backend, *how))
