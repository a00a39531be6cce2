"""Commands that let a model play: `eval` and `sample`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trl_dbbench.cli.endpoints import EndpointOptions, arm_of, evaluate_endpoint
from trl_dbbench.cli.options import (
    AdapterName,
    ApiKeyEnv,
    BatchSize,
    ChatTemplate,
    Concurrency,
    DockerImage,
    Dtype,
    EndpointUrl,
    EvalTasks,
    FewShot,
    FewShotBy,
    FewShotMemory,
    FewShotUpdate,
    HtmlFile,
    JsonFile,
    Limit,
    MaxCompletionLength,
    MaxTurns,
    MaxTurnTokens,
    ModelName,
    ObservationCharacters,
    ProtocolName,
    Resume,
    RunsDatabase,
    RunsGrader,
    Samples,
    Scorer,
    Seed,
    ServerUrls,
    SystemPrompt,
    Temperature,
    TemplateKwargs,
    TopK,
    TopP,
    TrainedRun,
    drawing_options,
    names,
    settings_options,
    tasks_to_evaluate,
    trained_by,
)
from trl_dbbench.database import database_for, open_database
from trl_dbbench.errors import ConfigError, EngineError
from trl_dbbench.tasks import Task, load_tasks
from trl_dbbench.utils.files import check_writable, write_atomically

if TYPE_CHECKING:
    from trl_dbbench.engines.base import Backend
    from trl_dbbench.engines.policy import Policy, ServedPolicy
    from trl_dbbench.episode.player import Player
    from trl_dbbench.evaluation.compare.arms import Arm
    from trl_dbbench.evaluation.compare.play import Drawing
    from trl_dbbench.evaluation.evaluate import Evaluation
    from trl_dbbench.runs.journal import Journal
    from trl_dbbench.runs.trained import Trained


def evaluate(
    context: typer.Context,
    run: TrainedRun = None,
    model: ModelName = None,
    adapter: AdapterName = None,
    tasks: EvalTasks = None,
    limit: Limit = None,
    vllm_server_urls: ServerUrls = None,
    database: RunsDatabase = None,
    docker_image: DockerImage = None,
    protocol: ProtocolName = None,
    chat_template: ChatTemplate = None,
    grader: RunsGrader = None,
    system_prompt: SystemPrompt = None,
    chat_template_kwargs: TemplateKwargs = None,
    max_turns: MaxTurns = None,
    max_turn_tokens: MaxTurnTokens = None,
    max_completion_length: MaxCompletionLength = None,
    observation_characters: ObservationCharacters = None,
    few_shot: FewShot = None,
    few_shot_memory: FewShotMemory = None,
    few_shot_by: FewShotBy = None,
    few_shot_update: FewShotUpdate = False,
    samples: Samples = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    seed: Seed = None,
    scorer: Scorer = None,
    batch_size: BatchSize = 16,
    dtype: Dtype = None,
    endpoint: EndpointUrl = None,
    api_key_env: ApiKeyEnv = None,
    concurrency: Concurrency = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    resume: Resume = False,
) -> None:
    """Prints greedy accuracy, overall, per operation and per skill, with 95 % intervals and status shares.

    What a training run trained is played as the run played it: its run.json says model, system prompt, limits
    and the like, and options override that. Defaults are for models without a run. --samples adds pass@k,
    majority@k, and with --reward-model best-of-n.
    """
    for path in filter(None, (json_file, html_file)):
        check_writable(path)
    drawing, where = drawing_options(context), EndpointOptions(endpoint, api_key_env, concurrency)
    if where.given():
        return _evaluate_endpoint(where, context.params, drawing, html_file)
    trained = trained_by(run, model, adapter, few_shot_update, **settings_options(context))
    loaded = tasks_to_evaluate(trained, tasks, limit)
    _evaluate(loaded, trained, drawing, context.params)


def _evaluate(tasks: list[Task], trained: Trained, drawing: Drawing, given: dict[str, Any]) -> None:
    from trl_dbbench.evaluation.compare.play import ArmPlayer, each_once
    from trl_dbbench.runs.journal import kept

    if drawing.plan is not None:
        tasks = each_once(tasks)  # whose samples would be drawn from the same random numbers
    journal = _journal_of(trained, tasks, drawing, given)
    urls, spec, image = names(given["vllm_server_urls"]), given["database"], given["docker_image"]
    with (
        kept(journal, lambda sentence: typer.echo(sentence, err=True)),
        opened(trained, tasks, urls, spec, image) as (player, backend, _),
    ):
        playing = ArmPlayer(tasks, trained, player, backend, drawing, given["few_shot_update"], journal)
        evaluation = playing.greedy()
        typer.echo(evaluation)
        arm = playing.judged(Path(trained.adapter or trained.model).resolve().name, evaluation)
        _tell_samples(arm)
    _keep(evaluation, arm, given["json_file"], given["html_file"])
    journal.finish()


def _evaluate_endpoint(
    where: EndpointOptions, options: dict[str, Any], drawing: Drawing, html_file: Path | None
) -> None:
    evaluation, journal = evaluate_endpoint(where, options, drawing.plan)
    typer.echo(evaluation)
    arm, json_file = arm_of(evaluation, drawing.plan), options["json_file"]
    if evaluation.records:  # or a file would look as if all had been played
        _tell_samples(arm)
        _keep(evaluation, arm, json_file, html_file)
    if (reason := evaluation.ended_early) is None:
        return journal.finish()
    if sentence := journal.how_to_go_on():
        typer.echo(sentence, err=True)
    there = f" They are in {json_file}." if evaluation.records and json_file is not None else ""
    raise EngineError(f"{reason}{there}")


def _journal_of(trained: Trained, tasks: list[Task], drawing: Drawing, given: dict[str, Any]) -> Journal:
    from trl_dbbench.data.sample import asked_of
    from trl_dbbench.runs.journal import open_journal

    if given["resume"] and given["few_shot_update"]:
        raise ConfigError(
            "--resume does not go with --few-shot-update: what is shown depends on what was played before."
        )
    asked = {**asked_of(tasks, drawing.plan, trained), "reward_model": drawing.scorer}
    return open_journal(given["json_file"], asked, given["resume"])


def _tell_samples(arm: Arm) -> None:
    from trl_dbbench.evaluation.compare.text import judgement

    if arm.sampling is not None and arm.samples:
        typer.echo(f"\n{judgement(arm)}")


def _keep(evaluation: Evaluation, arm: Arm, json_file: Path | None, html_file: Path | None) -> None:
    from trl_dbbench.evaluation.compare.page import write_arm
    from trl_dbbench.evaluation.compare.saved import arm_dict, to_json

    if json_file is not None:
        with write_atomically(json_file) as file:
            file.write(to_json(evaluation.to_dict() | arm_dict(arm)))
    if html_file is not None:
        typer.echo(write_arm(arm, html_file))


def sample(
    context: typer.Context,
    tasks: Annotated[str, typer.Option(help="A task file, folder or hub id: what may be trained on.")],
    out: Annotated[
        Path, typer.Option(help="The folder to write; a sampling that was stopped goes on in it.")
    ],
    run: TrainedRun = None,
    model: ModelName = None,
    adapter: AdapterName = None,
    n: Annotated[int, typer.Option("--n", help="Episodes of each task.")] = 8,
    keep: Annotated[
        str, typer.Option(help="right: episodes that ended right; all: wrong ones too.")
    ] = "right",
    max_per_task: Annotated[int | None, typer.Option(help="At most so many are kept of a task.")] = None,
    eval_tasks: Annotated[
        str | None, typer.Option(help="Tasks to evaluate on later: none of them may be among --tasks.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of the sampling.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draws from the likeliest tokens of this mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draws from so many of the likeliest tokens; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="Another seed draws other episodes.")] = 0,
    vllm_server_urls: ServerUrls = None,
    database: RunsDatabase = None,
    docker_image: DockerImage = None,
    protocol: ProtocolName = None,
    chat_template: ChatTemplate = None,
    grader: RunsGrader = None,
    system_prompt: SystemPrompt = None,
    chat_template_kwargs: TemplateKwargs = None,
    max_turns: MaxTurns = None,
    max_turn_tokens: MaxTurnTokens = None,
    max_completion_length: MaxCompletionLength = None,
    observation_characters: ObservationCharacters = None,
    few_shot: FewShot = None,
    few_shot_memory: FewShotMemory = None,
    few_shot_by: FewShotBy = None,
    batch_size: BatchSize = 64,
    dtype: Dtype = None,
) -> None:
    """Plays each task several times and keeps the episodes that ended right, each once: rejection sampling.

    The folder is like a training run's, with token ids and log-probabilities: replay, report and export read
    it, and `recipes/sft_dbbench.py --episodes` trains on it. Evaluation tasks are refused.
    """
    from trl_dbbench.data.sample import check_not_held_out, sample_into
    from trl_dbbench.episode.plan import Plan

    plan = Plan(n, keep, max_per_task, temperature, top_p, top_k, seed)
    trained = trained_by(run, model, adapter, **settings_options(context))
    loaded = load_tasks(tasks)
    if eval_tasks is None and trained.run is None:
        typer.echo("note: no task is known to be held out; --eval-tasks names some, which are then refused.")
    check_not_held_out(loaded, trained.run, load_tasks(eval_tasks) if eval_tasks else [])
    urls = names(vllm_server_urls)
    with opened(trained, loaded, urls, database, docker_image) as (player, backend, _):
        sampled = sample_into(out, loaded, plan, trained, player, backend, batch_size=batch_size)
    typer.echo(sampled)
    typer.echo(f"The episodes are in {out}.")


@contextmanager
def opened(
    trained: Trained,
    tasks: Iterable[Task],
    vllm_server_urls: list[str] | None,
    database: str | None,
    docker_image: str | None,
) -> Iterator[tuple[Player, Backend, Policy | ServedPolicy]]:
    """What a command plays with, open while the block lasts, and what is known of the model."""
    from trl_dbbench.engines.base import server_addresses
    from trl_dbbench.evaluation.evaluate import open_model, player_of

    settings = trained.settings
    urls = server_addresses(vllm_server_urls) if vllm_server_urls is not None else None
    backend, policy = open_model(trained, urls)
    spec = database_for(tasks, database or settings.database_spec)
    with closing(backend), open_database(spec, docker_image=docker_image, limits=settings.limits) as there:
        yield player_of(settings, policy, there), backend, policy
