"""Commands for recipes and trained adapters: `train`, `recipes`, `doctor`, `merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trl_dbbench.cli import bundled as shipped
from trl_dbbench.cli import options as opt
from trl_dbbench.errors import ConfigError

MORE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that accepts `--key value` for every key of a recipe."""

Config = Annotated[
    str, typer.Argument(help="A recipe: a YAML file, or the name of one that is shipped (see `recipes`).")
]
NumProcesses = Annotated[
    int | None, typer.Option("--num-processes", "--num_processes", min=1, help="Processes, one for each GPU.")
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config-file",
        "--config_file",
        help="Accelerate's configuration: a file, or the name of a shipped one, such as zero3. Left out, cpu "
        "for a recipe with use_cpu: true, else single_gpu, or multi_gpu for several processes.",
    ),
]


def _recipe(config: str) -> Path:
    """Return the recipe that a command names before its options."""
    if config.startswith("--"):
        raise ConfigError(
            f"{config} stands where the recipe should. Name that first, without --config; options follow it: "
            "trl-dbbench train quickstart --max_steps 10."
        )
    return shipped.find("recipe", config, shipped.recipes())


def train(
    context: typer.Context, config: Config, num_processes: NumProcesses = None, config_file: ConfigFile = None
) -> None:
    """Trains by a recipe, in processes started by accelerate's launcher.

    Every key of the recipe is also an option, which wins: --learning_rate 1e-5. Options come after CONFIG.
    """
    shipped.launch(shipped.launch_command(_recipe(config), context.args, num_processes, config_file))


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="A recipe, a script or an accelerate configuration.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; what the recipe reads is copied beside it.")
    ] = None,
) -> None:
    """Lists the recipes that come with the package; with a name shows one, or copies it to --out."""
    if out is not None:
        if name is None:
            raise ConfigError("say what to copy: trl-dbbench recipes NAME --out FILE.")
        for path in shipped.copy(name, out):
            typer.echo(f"wrote {path}")
        return
    groups = {
        "Recipes (trl-dbbench train NAME)": shipped.recipes(),
        "Their scripts": shipped.scripts(),
        "Accelerate configurations (--config-file NAME)": shipped.accelerate_configs(),
    }
    if name is not None:
        everything = {key: path for group in groups.values() for key, path in group.items()}
        typer.echo(shipped.find("recipe", name, everything).read_text(encoding="utf-8"), nl=False)
        return
    for title, group in groups.items():
        width = max(map(len, group))
        lines = [f"  {key:<{width}}  {shipped.about(path)}" for key, path in group.items()]
        typer.echo("\n".join([f"{title}:", *lines, ""]))


def doctor(
    context: typer.Context, config: Config, num_processes: NumProcesses = None, config_file: ConfigFile = None
) -> None:
    """Checks whether a training can work, before it starts: settings, packages, episodes, tasks, model,
    database, memory.

    Prints a line for each, with what to do; exits with 1 if one fails. Takes the options of `train`.
    """
    from trl_dbbench.cli.doctor import examine

    failed = False
    for finding in examine(_recipe(config), context.args, num_processes, config_file):
        typer.echo(finding)
        failed = failed or finding.status == "FAIL"
    raise typer.Exit(int(failed))


def merge(
    adapter: Annotated[
        Path, typer.Option(help="An adapter's folder: a run's output_dir, or a checkpoint in it.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write the model to: a new or empty one.")],
    model: Annotated[
        str | None, typer.Option(help="The adapter's base model, if it is elsewhere than in training.")
    ] = None,
    dtype: opt.Dtype = None,
    trust_remote_code: opt.TrustRemoteCode = False,
) -> None:
    """Merges an adapter into its base model, and checks that the result gives the same logits.

    `trl-dbbench eval --model OUT` plays it as the run played: run.json goes with it.
    """
    from trl_dbbench.evaluation.merge import merge as merge_adapter
    from trl_dbbench.runs.trained import find_trained, no_adapter

    if not adapter.is_dir():
        raise no_adapter(str(adapter))
    trained = find_trained(None, model, str(adapter), dtype=dtype)
    typer.echo(merge_adapter(trained, out, model, trust_remote_code))
