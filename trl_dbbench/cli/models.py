"""Commands that let a model play: `eval`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trl_dbbench.cli.options import (
    ChatTemplate,
    DockerImage,
    FewShot,
    FewShotBy,
    FewShotMemory,
    FewShotUpdate,
    ObservationCharacters,
    RunsDatabase,
    ServerUrls,
    SystemPrompt,
    TemplateKwargs,
    names,
)
from trl_dbbench.database import open_database
from trl_dbbench.errors import ConfigError
from trl_dbbench.files import check_writable, write_atomically
from trl_dbbench.tasks import load_tasks

if TYPE_CHECKING:
    from trl_dbbench.evaluation import Evaluation
    from trl_dbbench.runs.trained import Trained


def evaluate(
    run: Annotated[
        Path | None, typer.Argument(help="A training run's output_dir, or a checkpoint in it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model folder or hub id; an adapter's base model, if not the run's.")
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="A LoRA adapter's folder or hub id.")] = None,
    tasks: Annotated[
        str | None, typer.Option(help="A task file, folder or hub id; left out, the run's held-out tasks.")
    ] = None,
    vllm_server_urls: ServerUrls = None,
    database: RunsDatabase = None,
    docker_image: DockerImage = None,
    protocol: Annotated[str | None, typer.Option(help="text (default), tools or a dotted path.")] = None,
    chat_template: ChatTemplate = None,
    grader: Annotated[
        str | None, typer.Option(help="Judges all answers: a name or a dotted path; else each task's own.")
    ] = None,
    system_prompt: SystemPrompt = None,
    chat_template_kwargs: TemplateKwargs = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Of an episode (default: 3).")] = None,
    max_turn_tokens: Annotated[int | None, typer.Option(min=1, help="Of a turn (default: 512).")] = None,
    max_completion_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an episode after its prompt (default: 2048).")
    ] = None,
    observation_characters: ObservationCharacters = None,
    few_shot: FewShot = None,
    few_shot_memory: FewShotMemory = None,
    few_shot_by: FewShotBy = None,
    few_shot_update: FewShotUpdate = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Episodes that run side by side.")] = 16,
    dtype: Annotated[str | None, typer.Option(help="auto (default), float32, bfloat16 or float16.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Writes figures and episodes here.")
    ] = None,
) -> None:
    """Prints greedy accuracy, overall, per operation and per skill, with 95 % intervals and status shares.

    What a training run trained is played as the run played it: its run.json says model, system prompt, limits
    and the like, and options override that. Defaults are for models without a run.
    """
    from trl_dbbench.runs.trained import find_trained

    if json_file is not None:
        check_writable(json_file)
    options: dict[str, Any] = {"protocol": protocol, "grader": grader, "dtype": dtype}
    options |= _of_the_prompt(system_prompt, chat_template, chat_template_kwargs)
    options |= {"max_turns": max_turns, "max_turn_tokens": max_turn_tokens}
    options |= {"max_completion_length": max_completion_length, "few_shot": few_shot}
    options |= {"few_shot_memory": few_shot_memory, "few_shot_by": few_shot_by}
    trained = find_trained(run, model, adapter, **options, observation_characters=observation_characters)
    if trained.said:
        typer.echo(trained.said)
    where = database, docker_image
    evaluation = _evaluate(trained, tasks, names(vllm_server_urls), where, batch_size, few_shot_update)
    typer.echo(evaluation)
    if json_file is not None:
        with write_atomically(json_file) as file:
            json.dump(evaluation.to_dict(), file, ensure_ascii=False, indent=1)


def _of_the_prompt(
    system_prompt: str | None, chat_template: str | None, chat_template_kwargs: str | None
) -> dict[str, Any]:
    """What the options say, for `find_trained`."""
    from trl_dbbench.arguments import read_system_prompt, read_template_kwargs
    from trl_dbbench.templates import load_chat_template

    options: dict[str, Any] = {"system_prompt": read_system_prompt(system_prompt)}
    if chat_template is not None:
        options["chat_template"] = load_chat_template(chat_template)
    if chat_template_kwargs is not None:
        options["chat_template_kwargs"] = read_template_kwargs(chat_template_kwargs)
    return options


def _evaluate(
    trained: Trained,
    tasks: str | None,
    vllm_server_urls: list[str] | None,
    where: tuple[str | None, str | None],
    batch_size: int,
    few_shot_update: bool,
) -> Evaluation:
    """`where` is the database, and the image that starts it."""
    from trl_dbbench.engines.base import server_addresses
    from trl_dbbench.evaluation import check_few_shot_of, open_model, player_of, shots_of
    from trl_dbbench.evaluation import evaluate as evaluate_model
    from trl_dbbench.runs.trained import held_out_tasks

    settings, (database, docker_image) = trained.settings, where
    check_few_shot_of(settings, few_shot_update)
    if tasks is not None:
        loaded = load_tasks(tasks)
    elif trained.run is not None:
        loaded = held_out_tasks(trained.run)
    else:
        raise ConfigError("say by --tasks what to play: a task file, a folder of parquet, or a hub id.")
    urls = server_addresses(vllm_server_urls) if vllm_server_urls is not None else None
    backend, policy = open_model(trained, urls)
    spec = database or settings.database_spec
    with closing(backend), open_database(spec, docker_image=docker_image, limits=settings.limits) as opened:
        player = player_of(settings, policy, opened)
        shots = shots_of(trained, player, few_shot_update)
        return evaluate_model(
            *(loaded, player, backend),
            system_prompt=settings.system_prompt,
            batch_size=batch_size,
            shots=shots,
        )
