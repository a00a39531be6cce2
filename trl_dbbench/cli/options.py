"""Options that several commands share, and the objects built from them.

A group is a function whose parameters are its options; `taking` adds groups to a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.records import EPISODES_FILE, METRICS_FILE, SHOTS_FILE, TASKS_FILE
from trl_dbbench.runs.settings import SETTINGS_FILE
from trl_dbbench.runs.stream import STREAM_FILE
from trl_dbbench.tasks import Task, load_tasks
from trl_dbbench.tasks.csv_tables import CsvOptions
from trl_dbbench.tasks.load import with_schema
from trl_dbbench.utils.settings import check_number

if TYPE_CHECKING:
    from trl_dbbench.engines.base import EngineSettings
    from trl_dbbench.episode.plan import Plan
    from trl_dbbench.runs.trained import Trained

Command = TypeVar("Command", bound=Callable[..., None])

Tasks = Annotated[
    str, typer.Argument(help="A task file (.jsonl, .json, .parquet), a folder of parquet files, or a hub id.")
]
TaskFormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="own, agentbench, lifelong, verl, spider, bird, critic, spider2 or the dotted path of your own; "
        "recognised if left out.",
    ),
]
GraderName = Annotated[
    str | None,
    typer.Option(
        help="Judges all questions: agentbench_text, agentbench_fc, lifelong; strict, bird_ex, spider_ts and "
        "others where answers are SQL; or the dotted path of your own."
    ),
]
_DATABASES = (
    "auto (sqlite for tasks in SQLite's dialect, else the first of docker, local and sqlite that works), "
    "docker, local, sqlite or mysql+pymysql://user:password@host:port"
)
_ONE_DATABASE = f"{_DATABASES}; several servers as URLs joined by commas, or as local:2."
TasksDatabase = Annotated[str, typer.Option(help=_ONE_DATABASE)]
RunsDatabase = Annotated[
    str | None, typer.Option(help=f"{_ONE_DATABASE} By default sqlite for a run on it, else auto.")
]
Databases = Annotated[
    list[str],
    typer.Option(
        help=f"{_DATABASES}; once for each. All checks run on the first; on the others gold SQL must run and "
        "give the same. One may be several servers, as in local:2."
    ),
]
ServerUrls = Annotated[
    str | None, typer.Option(help="URLs of vLLM servers that generate with this model, joined by commas.")
]
ModelName = Annotated[
    str | None,
    typer.Option(
        help="A model's folder or hub id; with an adapter, a base model in place of the recorded one."
    ),
]
AdapterName = Annotated[str | None, typer.Option(help="A LoRA adapter's folder or hub id.")]
TrainedRun = Annotated[
    Path | None, typer.Argument(help="The output_dir of a training run, or a checkpoint in it.")
]
RunsGrader = Annotated[
    str | None, typer.Option(help="Judges all answers: a name or a dotted path; else each task's own.")
]
Dtype = Annotated[str | None, typer.Option(help="auto (default), float32, bfloat16 or float16.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Runs the code that comes with the model.")
]
DockerImage = Annotated[
    str | None,
    typer.Option(help="The image that docker and auto start; $TRL_DBBENCH_DOCKER_IMAGE, else mysql:8.4."),
]
EvalTasks = Annotated[
    str | None, typer.Option(help="A task file, folder or hub id; left out, the run's held-out tasks.")
]
Delimiter = Annotated[
    str | None, typer.Option(help="What separates the cells of CSV files; detected by default.")
]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of CSV files, such as cp1252; detected by default.")
]
ColumnTypes = Annotated[
    list[str] | None,
    typer.Option("--type", help="NAME=TYPE or TABLE.NAME=TYPE, the type of a CSV column; once for each."),
]

Limit = Annotated[
    int | None, typer.Option(min=1, help="Number of tasks to play, from the first; all by default.")
]
Temperature = Annotated[float | None, typer.Option(help="Sampling temperature (default: 1).")]
TopP = Annotated[
    float | None,
    typer.Option(help="Samples only the likeliest tokens that have this probability together (default: 1)."),
]
TopK = Annotated[
    int | None, typer.Option(help="Samples only this many of the likeliest tokens; 0 (default): all.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the samples (default: 0).")]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Writes a page with figures and transcripts.")]


def engine(
    use_vllm: Annotated[
        bool,
        typer.Option("--use-vllm", help="Generates with vLLM in this process, which loads the model itself."),
    ] = False,
    vllm_gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(
            "--vllm-gpu-memory-utilization",
            help="With --use-vllm: the share of the GPU's memory that vLLM takes (0.9), or of the main "
            "memory where there is no GPU (0.3).",
        ),
    ] = None,
    database: RunsDatabase = None,
    docker_image: DockerImage = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Episodes played at a time.")] = 64,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Options for the engine and the database."""


def episodes(
    protocol: Annotated[
        str | None, typer.Option(help="text (default), tools, text_sql, tools_sql or a dotted path.")
    ] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="Replaces the model's: a jinja file, or the name of one of TRL's.")
    ] = None,
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help="JSON, passed on to the chat template: '{\"enable_thinking\": false}'.")
    ] = None,
    system_prompt: Annotated[
        str | None, typer.Option(help="Replaces the protocol's: a text, or a file (.txt, .md) that holds it.")
    ] = None,
    harness: Annotated[
        str | None,
        typer.Option(help="A program that plays: a function's dotted path, file.py:name, or a command line."),
    ] = None,
    grader: RunsGrader = None,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Maximum turns of an episode (default: 3).")
    ] = None,
    max_turn_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of a turn (default: 512).")
    ] = None,
    max_completion_length: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of an episode after its prompt (default: 2048).")
    ] = None,
    observation_characters: Annotated[
        int | None, typer.Option(min=0, help="Longer observations are cut; 0 cuts nothing (default: 800).")
    ] = None,
    dtype: Dtype = None,
) -> None:
    """Options for how episodes are played."""


def few_shot(
    few_shot: Annotated[
        int | None,
        typer.Option(min=0, help="Number of right episodes of other tasks shown before the question."),
    ] = None,
    few_shot_memory: Annotated[
        str | None,
        typer.Option(
            help="Source of the few-shot episodes: a run's output_dir, or a JSONL file of episodes."
        ),
    ] = None,
    few_shot_by: Annotated[
        str | None,
        typer.Option(help="How few-shot episodes are chosen: bm25 (default), skill, latest or random."),
    ] = None,
) -> None:
    """Options for few-shot episodes in the prompt."""


def drawing(
    samples: Annotated[
        int | None, typer.Option(min=1, help="Episodes sampled per task, beside the greedy one.")
    ] = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    seed: Seed = None,
    scorer: Annotated[
        str | None,
        typer.Option(
            "--reward-model", help="Chooses the best sample: model:PATH, prm:PATH or a reward's dotted path."
        ),
    ] = None,
) -> None:
    """Options for the samples drawn in addition to greedy episodes."""


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    return list(signature(function, eval_str=True).parameters.values())


SETTINGS_OPTIONS = tuple(each.name for group in (episodes, few_shot) for each in _parameters(group))
"""Names of the options that set how episodes are played."""


def taking(*groups: Callable[..., None]) -> Callable[[Command], Command]:
    """Add the options of these groups to a command, which reads them from `context.params`."""

    def add(command: Command) -> Command:
        own = [each for each in _parameters(command) if each.kind is not Parameter.VAR_KEYWORD]
        more = [each for group in groups for each in _parameters(group)]
        whole = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*own, *more)]
        command.__signature__ = Signature(whole)  # type: ignore[attr-defined]
        return command

    return add


def files_of(path: Path | None) -> list[Path]:
    """Return the files of a run that no command may overwrite; for a checkpoint, also those of its run.

    A path that is not a folder is returned as it is; `None` gives an empty list.
    """
    if path is None:
        return []
    names = (EPISODES_FILE, TASKS_FILE, SETTINGS_FILE, METRICS_FILE, SHOTS_FILE, STREAM_FILE)
    folders = (path, path.parent) if path.is_dir() else ()
    return [folder / name for folder in folders for name in names] or [path]


def given_options(context: typer.Context) -> list[str]:
    """Return the options and arguments given on the command line, such as `--json`."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if (source := context.get_parameter_source(parameter.name or "")) and source.name == "COMMANDLINE"
    ]


def refuse(context: typer.Context, why: str, *options: str) -> None:
    """Raise ConfigError if one of these options, which would have no effect, is on the command line."""
    if useless := [option for option in given_options(context) if option in options]:
        raise ConfigError(f"{useless[0]} has no effect: {why}.")


def settings_options(context: typer.Context) -> dict[str, Any]:
    """Return the given options that set how episodes are played, with files and JSON read."""
    from trl_dbbench.cli.arguments import read_system_prompt, read_template_kwargs
    from trl_dbbench.episode.templates import load_chat_template

    read: dict[str, Callable[[Any], Any]] = {
        "chat_template": load_chat_template,
        "chat_template_kwargs": read_template_kwargs,
        "system_prompt": read_system_prompt,
    }
    given = {name: context.params.get(name) for name in SETTINGS_OPTIONS}
    return {
        name: read[name](value) if name in read else value
        for name, value in given.items()
        if value is not None
    }


def plan_of(context: typer.Context) -> Plan | None:
    """Return the sampling plan that a command's options ask for; `None` without --samples."""
    from trl_dbbench.episode.plan import Plan

    given = context.params
    if given["samples"] is None:
        why = "say by --samples how many samples are to be drawn"
        refuse(context, why, "--temperature", "--top-p", "--top-k", "--seed", "--reward-model")
        return None
    how = {name: given[name] for name in ("temperature", "top_p", "top_k", "seed")}
    return Plan(given["samples"], "all", **{name: value for name, value in how.items() if value is not None})


def csv_options(delimiter: str | None, encoding: str | None, types: list[str] | None) -> CsvOptions:
    """Return how CSV files are read; each of `types` is `NAME=TYPE`."""
    by_name = {}
    for each in types or ():
        name, sign, type_ = each.rpartition("=")
        if not sign or not name.strip() or not type_.strip():
            raise ConfigError(f"--type {each!r} is not NAME=TYPE, such as --type zip=TEXT.")
        by_name[name.strip()] = type_.strip()
    return CsvOptions(delimiter, encoding, by_name)


def engine_settings(given: Mapping[str, Any]) -> EngineSettings:
    """Return the engine settings of a command's options; raise ConfigError if they are wrong."""
    import torch

    from trl_dbbench.engines.base import EngineSettings, server_addresses

    urls, share = names(given.get("vllm_server_urls")), given["vllm_gpu_memory_utilization"]
    if urls is not None and given["use_vllm"]:
        raise ConfigError("--use-vllm and --vllm-server-urls name two engines; leave one of them out.")
    if share is not None and not given["use_vllm"]:
        raise ConfigError("--vllm-gpu-memory-utilization goes with --use-vllm, which is not given.")
    if share is None:
        share = 0.9 if torch.cuda.is_available() else 0.3
    check_number("vllm_gpu_memory_utilization", share)
    return EngineSettings(
        vllm_server_urls=None if urls is None else server_addresses(urls),
        use_vllm=given["use_vllm"],
        vllm_gpu_memory_utilization=share,
        trust_remote_code=given["trust_remote_code"],
    )


def names(joined: str | None) -> list[str] | None:
    """Split names that are joined by commas."""
    return None if joined is None else [name.strip() for name in joined.split(",") if name.strip()]


def trained_by(context: typer.Context, adapter: str | None, run: Path | None = None) -> Trained:
    """Return the weights and settings that a command plays with; print the run's notes about them."""
    from trl_dbbench.runs.few_shot import DEFAULT_WAY, check_few_shot
    from trl_dbbench.runs.trained import find_trained

    trained = find_trained(run, context.params["model"], adapter, **settings_options(context))
    if trained.said:
        typer.echo(trained.said)
    used, update = trained.settings, context.params.get("few_shot_update") or trained.settings.few_shot_update
    check_few_shot(used.few_shot or 0, used.few_shot_memory, used.few_shot_by or DEFAULT_WAY, bool(update))
    if not used.few_shot:
        refuse(context, "no examples are shown without --few-shot", "--few-shot-by")
    return trained


def tasks_in(source: str, trained: Trained) -> list[Task]:
    """Return the tasks of a source, with their schemas shown as in the run."""
    return with_schema(load_tasks(source), trained.settings.schema)


def tasks_to_evaluate(trained: Trained, tasks: str | None, limit: int | None) -> list[Task]:
    """Return the first `limit` of the named tasks, or of the run's held-out ones."""
    from trl_dbbench.runs.trained import held_out_tasks

    if tasks is not None:
        return tasks_in(tasks, trained)[:limit]
    if trained.run is not None:
        return held_out_tasks(trained.run)[:limit]
    raise ConfigError("say by --tasks what to play: a task file, a folder of parquet, or a hub id.")
