"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Tasks = Annotated[
    str, typer.Argument(help="A task file (.jsonl, .json, .parquet), a folder of parquet, or a hub id.")
]
TaskFormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="own, agentbench, lifelong, verl or the dotted path of your own; recognised if left out.",
    ),
]
GraderName = Annotated[
    str | None,
    typer.Option(
        help="Judges all questions: agentbench_text, agentbench_fc, lifelong or the dotted path of your own."
    ),
]
DatabaseSpec = Annotated[
    str, typer.Option(help="auto, docker, local, sqlite or mysql+pymysql://user:password@host:port")
]
RunsDatabase = Annotated[
    str | None,
    typer.Option(help="auto, docker, local, sqlite or a URL; by default sqlite for a run on it, else auto."),
]
ServerUrls = Annotated[
    str | None, typer.Option(help="vLLM servers of this model that are to generate, joined by commas.")
]
ChatTemplate = Annotated[
    str | None, typer.Option(help="Replaces the model's: a jinja file, or the name of one of TRL's.")
]
TemplateKwargs = Annotated[
    str | None, typer.Option(help="JSON, passed on to the chat template: '{\"enable_thinking\": false}'.")
]
SystemPrompt = Annotated[
    str | None, typer.Option(help="Replaces the protocol's: a text, or a file (.txt, .md) that holds it.")
]
ObservationCharacters = Annotated[
    int | None, typer.Option(min=0, help="Longer observations are cut; 0 cuts nothing (default: 800).")
]
DockerImage = Annotated[
    str | None,
    typer.Option(help="The image that docker and auto start; $TRL_DBBENCH_DOCKER_IMAGE, else mysql:8.4."),
]
FewShot = Annotated[
    int | None, typer.Option(min=0, help="So many right episodes of other tasks stand before the question.")
]
FewShotMemory = Annotated[
    str | None, typer.Option(help="Where they come from: a run's output_dir, or a JSONL file of episodes.")
]
FewShotBy = Annotated[str | None, typer.Option(help="Which are shown: bm25 (default), skill or random.")]
FewShotUpdate = Annotated[
    bool, typer.Option("--few-shot-update", help="Right ones of this evaluation join, batch by batch.")
]


def names(joined: str | None) -> list[str] | None:
    """What an option holds that joins names by commas."""
    return None if joined is None else [name.strip() for name in joined.split(",") if name.strip()]
