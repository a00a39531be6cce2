"""Commands on adapters: `merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trl_dbbench.cli.options import Dtype


def merge(
    adapter: Annotated[
        Path, typer.Option(help="An adapter's folder: a run's output_dir, or a checkpoint in it.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write the model to; it must not be there yet.")],
    model: Annotated[
        str | None, typer.Option(help="The adapter's base model, if it lies elsewhere than in training.")
    ] = None,
    dtype: Dtype = None,
) -> None:
    """Merges an adapter into its base model, and shows that the result gives the same logits.

    `trl-dbbench eval --model OUT` plays it as the run played: run.json goes with it.
    """
    from trl_dbbench.evaluation.merge import merge as merge_adapter
    from trl_dbbench.runs.trained import find_trained, no_adapter

    if not adapter.is_dir():
        raise no_adapter(str(adapter))
    trained = find_trained(None, model, str(adapter), dtype=dtype)
    typer.echo(merge_adapter(trained, out, model))
