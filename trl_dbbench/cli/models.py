"""Commands that play tasks with a model, loaded here or behind an endpoint: `eval` and `sample`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trl_dbbench.cli import options as opt
from trl_dbbench.database import database_for, open_database
from trl_dbbench.database.open import Spec
from trl_dbbench.database.server.connections import redacted
from trl_dbbench.episode.judge import Judge
from trl_dbbench.errors import ConfigError, EngineError
from trl_dbbench.runs.journal import Journal, kept, open_journal
from trl_dbbench.tasks import Task, load_tasks
from trl_dbbench.utils.files import check_folder, check_outputs, write_json

if TYPE_CHECKING:
    from trl_dbbench.engines.base import Backend
    from trl_dbbench.engines.policy import Policy, ServedPolicy
    from trl_dbbench.episode.plan import Plan
    from trl_dbbench.episode.player import Player
    from trl_dbbench.evaluation.compare.arms import Arm
    from trl_dbbench.evaluation.evaluate import Evaluation
    from trl_dbbench.integrations.endpoints.evaluate import EndpointEvaluation
    from trl_dbbench.runs.trained import Trained


@opt.taking(opt.engine, opt.episodes, opt.few_shot, opt.drawing)
def evaluate(
    context: typer.Context,
    run: opt.TrainedRun = None,
    model: opt.ModelName = None,
    adapter: opt.AdapterName = None,
    tasks: opt.EvalTasks = None,
    limit: opt.Limit = None,
    vllm_server_urls: opt.ServerUrls = None,
    few_shot_update: Annotated[
        bool,
        typer.Option(
            "--few-shot-update", help="Right episodes of this evaluation become few-shot examples too."
        ),
    ] = False,
    endpoint: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible server, which has --model.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(help="The environment variable with the endpoint's API key (default: OPENAI_API_KEY)."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Parallel requests to an endpoint (default: 8).")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Writes figures and episodes here.")
    ] = None,
    html_file: opt.HtmlFile = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continues the stopped evaluation in --json.")
    ] = False,
    **options: Any,
) -> None:
    """Prints greedy accuracy, overall, per operation and per skill, with 95 % intervals and status shares.

    With RUN, the trained model plays as in its training: model, system prompt, limits and the like come from
    run.json, and options override them. Defaults are for models without a run. --samples adds pass@k,
    majority@n and, with --reward-model, best-of-n.
    """
    check_outputs([json_file, html_file], *opt.files_of(run), tasks)
    plan = opt.plan_of(context)
    if endpoint is not None:
        opt.refuse(context, "--concurrency says how many requests an endpoint gets at a time", "--batch-size")
        opt.refuse(context, "an endpoint gives text and no tokens", *NEEDS_TOKENS)
        return _evaluate_endpoint(context, plan)
    opt.refuse(context, "it goes with --endpoint, which is not given", "--api-key-env", "--concurrency")
    trained = opt.trained_by(context, adapter, run)
    loaded = opt.tasks_to_evaluate(trained, tasks, limit)
    _evaluate(loaded, trained, plan, context.params)


def _evaluate(tasks: list[Task], trained: Trained, plan: Plan | None, given: dict[str, Any]) -> None:
    from trl_dbbench.evaluation.compare.play import ArmPlayer, each_once

    if plan is not None:
        tasks = each_once(tasks)  # a duplicate would draw its samples from the same random numbers
    journal = _journal_of(trained, tasks, plan, given, {"reward_model": given["scorer"]})
    with (
        closing(journal),
        kept(journal, lambda sentence: typer.echo(sentence, err=True)),
        opened(given, trained, tasks) as (player, backend, _),
    ):
        how = plan, given["scorer"], given["batch_size"], given["few_shot_update"]
        playing = ArmPlayer(tasks, trained, player, backend, *how, journal)
        evaluation = playing.greedy()
        typer.echo(evaluation)
        arm = playing.judged(Path(trained.adapter or trained.model).resolve().name, evaluation)
    _keep(evaluation, arm, given["json_file"], given["html_file"])
    if sentence := journal.finish():
        typer.echo(sentence, err=True)


NEEDS_TOKENS = (
    *("--adapter", "--vllm-server-urls", "--use-vllm", "--vllm-gpu-memory-utilization", "--chat-template"),
    *("--dtype", "--harness", "--reward-model", "--top-k", "--few-shot-memory", "--few-shot-by"),
    *("--few-shot-update", "--trust-remote-code"),
)
"""Options that need a model loaded by us, or that set how text becomes tokens."""


def _evaluate_endpoint(context: typer.Context, plan: Plan | None) -> None:
    from trl_dbbench.evaluation.compare.arms import Arm, gold_of, portable_digests_of
    from trl_dbbench.evaluation.compare.play import sampling_of

    evaluation, journal = _play_endpoint(context, plan)
    typer.echo(evaluation)
    json_file = context.params["json_file"]
    if evaluation.records:  # without any, the file would look like a finished evaluation
        arm = Arm(
            evaluation.endpoint,
            evaluation.records,
            evaluation.samples,
            sampling=None if plan is None else sampling_of(plan),
            gold=gold_of(evaluation.tasks),
            model=evaluation.endpoint,
            portable_digests=portable_digests_of(evaluation.tasks),
        )
        _keep(evaluation, arm, json_file, context.params["html_file"])
    reason = evaluation.ended_early
    if sentence := journal.finish() if reason is None else journal.how_to_go_on():
        typer.echo(sentence, err=True)
    if reason is not None:
        there = f" They are in {json_file}." if evaluation.records and json_file is not None else ""
        raise EngineError(f"{reason}{there}")


def _play_endpoint(context: typer.Context, plan: Plan | None) -> tuple[EndpointEvaluation, Journal]:
    """Play with the endpoint's model; a run, if given, provides the tasks and the episode settings."""
    from trl_dbbench.evaluation.compare.play import each_once
    from trl_dbbench.integrations.endpoints.evaluate import EndpointPlayer, evaluate_endpoint
    from trl_dbbench.integrations.endpoints.http import Endpoint, read_key
    from trl_dbbench.runs.conversations import protocol_of
    from trl_dbbench.runs.trained import DEFAULTS, Trained, find_trained

    given = context.params
    run, model = given["run"], given["model"]
    if model is None:
        raise ConfigError("--endpoint needs --model, the model's name on that server.")
    options = opt.settings_options(context)
    template_kwargs = options.pop("chat_template_kwargs", {})  # for the server
    # only the server knows the model's name: it is looked up in no folder and on no hub
    trained = find_trained(run, **options) if run else Trained(model, None, replace(DEFAULTS, **options))
    settings = trained.settings
    if settings.few_shot:
        raise ConfigError(
            "--endpoint shows no earlier episodes in the prompt; add --few-shot 0 to do without them."
        )
    if settings.harness or settings.compaction_tokens:
        typer.echo(
            "note: the run's harness and compaction are not used: an endpoint plays by the protocol alone."
        )
        settings = replace(settings, harness=None, compaction_tokens=None)
        trained = replace(trained, settings=settings)
    endpoint = Endpoint(
        given["endpoint"], model, key=read_key(given["api_key_env"]), template_kwargs=template_kwargs
    )
    loaded = opt.tasks_to_evaluate(trained, given["tasks"], given["limit"])
    if plan is not None:
        loaded = each_once(loaded)  # a duplicate would draw the same samples
    spec = _database(trained, loaded, given["database"])
    sent = {"endpoint": str(endpoint), "chat_template_kwargs": template_kwargs}
    journal = _journal_of(trained, loaded, plan, given, sent)
    with (
        closing(journal),
        open_database(spec, docker_image=given["docker_image"], limits=settings.limits) as opened,
    ):
        player = EndpointPlayer(
            endpoint,
            protocol_of(settings),
            opened,
            Judge(opened, settings.grader),
            settings.rules,
            settings.system_prompt,
            given["concurrency"] or EndpointPlayer.concurrency,
        )
        return evaluate_endpoint(loaded, player, plan=plan, journal=journal), journal


def _journal_of(
    trained: Trained, tasks: list[Task], plan: Plan | None, given: dict[str, Any], more: dict[str, Any]
) -> Journal:
    """Open the journal of --json; a resumed evaluation must have the same settings, `more` included."""
    from trl_dbbench.data.sample import asked_of

    if given["few_shot_update"]:
        if given["resume"]:
            raise ConfigError(
                "--resume does not go with --few-shot-update: what is shown depends on what was played "
                "before."
            )
        return Journal()
    database = redacted(str(_database(trained, tasks, given["database"])))
    asked = asked_of(tasks, plan, trained) | more | {"database": database}
    return open_journal(given["json_file"], asked, given["resume"])


def _keep(evaluation: Evaluation, arm: Arm, json_file: Path | None, html_file: Path | None) -> None:
    """Print the figures of the samples, and write the files that the options ask for."""
    from trl_dbbench.evaluation.compare.comparison import judgement
    from trl_dbbench.evaluation.compare.page import write_arm
    from trl_dbbench.evaluation.compare.saved import arm_dict

    if arm.sampling is not None and arm.samples:
        typer.echo(f"\n{judgement(arm)}")
    if json_file is not None:
        write_json(json_file, evaluation.to_dict() | arm_dict(arm))
    if html_file is not None:
        typer.echo(write_arm(arm, html_file))


@opt.taking(opt.engine, opt.episodes, opt.few_shot)
def sample(
    context: typer.Context,
    tasks: Annotated[str, typer.Option(help="The tasks to play: a task file, folder or hub id.")],
    out: Annotated[
        Path, typer.Option(help="The folder to write; if it has a stopped sampling, that continues.")
    ],
    run: opt.TrainedRun = None,
    model: opt.ModelName = None,
    adapter: opt.AdapterName = None,
    n: Annotated[int, typer.Option("--n", help="Episodes of each task.")] = 8,
    keep: Annotated[str, typer.Option(help="right: only right episodes; all: wrong ones too.")] = "right",
    max_per_task: Annotated[int | None, typer.Option(help="Maximum episodes kept of a task.")] = None,
    eval_tasks: Annotated[
        str | None, typer.Option(help="Tasks held out for evaluation: none of them may be among --tasks.")
    ] = None,
    temperature: opt.Temperature = 1.0,
    top_p: opt.TopP = 1.0,
    top_k: opt.TopK = 0,
    seed: opt.Seed = 0,
    vllm_server_urls: opt.ServerUrls = None,
    **options: Any,
) -> None:
    """Plays each task several times and keeps the episodes that ended right, each once: rejection sampling.

    The folder is like a training run's, with token ids and log-probabilities: replay, report and export read
    it, and `recipes/sft_dbbench.py --episodes` trains on it. Held-out tasks are refused.
    """
    from trl_dbbench.data.sample import check_not_held_out, sample_into
    from trl_dbbench.episode.plan import Plan

    drawn = {name: context.params[name] for name in ("temperature", "top_p", "top_k", "seed")}
    plan = Plan(n, keep, max_per_task, **drawn)
    check_folder(out, "--out")
    trained = opt.trained_by(context, adapter, run)
    loaded = opt.tasks_in(tasks, trained)
    if eval_tasks is None and trained.run is None:
        typer.echo("note: no task is known to be held out; --eval-tasks names some, which are then refused.")
    check_not_held_out(loaded, trained.run, load_tasks(eval_tasks) if eval_tasks else [])
    with opened(context.params, trained, loaded) as (player, backend, _):
        sampled = sample_into(out, loaded, plan, trained, player, backend, batch_size=options["batch_size"])
    typer.echo(sampled)
    typer.echo(f"The episodes are in {out}.")


def _database(trained: Trained, tasks: Iterable[Task], asked: str | None) -> Spec:
    return database_for(tasks, asked or trained.settings.database_spec)


@contextmanager
def opened(
    given: Mapping[str, Any], trained: Trained, tasks: Iterable[Task], adapters: Sequence[str] = ()
) -> Iterator[tuple[Player, Backend, Policy | ServedPolicy]]:
    """Open the player, backend and policy that a command's options ask for.

    Args:
        adapters: those to play one after the other; vLLM in this process must know them in advance.
    """
    from trl_dbbench.evaluation.evaluate import open_model, player_of

    settings, image = trained.settings, given["docker_image"]
    backend, policy = open_model(trained, opt.engine_settings(given), adapters)
    spec = _database(trained, tasks, given["database"])
    with closing(backend), open_database(spec, docker_image=image, limits=settings.limits) as there:
        yield player_of(settings, policy, there), backend, policy
