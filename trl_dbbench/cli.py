"""The `trl-dbbench` command."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from trl_dbbench.database import open_database
from trl_dbbench.errors import ConfigError, user_errors
from trl_dbbench.files import check_writable, write_atomically
from trl_dbbench.grading import get_grader
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import load_tasks
from trl_dbbench.validation import validate as validate_tasks

if TYPE_CHECKING:
    from trl_dbbench.evaluation import Evaluation
    from trl_dbbench.runs.differences import Replayed
    from trl_dbbench.runs.trained import Trained

app = typer.Typer(
    help="Train language-model agents to work a MySQL database: checks, evaluation and reports.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

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


@app.command()
def validate(
    tasks: Tasks,
    format: TaskFormatName = None,
    grader: GraderName = None,
    database: DatabaseSpec = "auto",
    docker_image: DockerImage = None,
) -> None:
    """Executes every gold solution through the sandboxes and graders that training uses.

    Exits with 1 if one does not score as correct.
    """
    if grader is not None:
        get_grader(grader)  # an unknown one is an error before a server starts
    loaded = load_tasks(tasks, format=format)
    correct = 0
    with open_database(database, docker_image=docker_image) as opened:
        for validation in validate_tasks(loaded, opened, grader=grader):
            if validation.problem:
                typer.echo(f"{validation.task.id}: {validation.problem}")
            else:
                correct += 1
    typer.echo(f"{correct} of {len(loaded)} gold solutions score as correct")
    raise typer.Exit(int(correct < len(loaded)))


@app.command(name="eval")
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
    from trl_dbbench.arguments import read_system_prompt, read_template_kwargs
    from trl_dbbench.runs.trained import find_trained
    from trl_dbbench.templates import load_chat_template

    if json_file is not None:
        check_writable(json_file)
    options: dict[str, Any] = {"protocol": protocol, "grader": grader, "dtype": dtype}
    options |= {"system_prompt": read_system_prompt(system_prompt)}
    options |= {"max_turns": max_turns, "max_turn_tokens": max_turn_tokens}
    options |= {"max_completion_length": max_completion_length}
    if chat_template is not None:
        options["chat_template"] = load_chat_template(chat_template)
    if chat_template_kwargs is not None:
        options["chat_template_kwargs"] = read_template_kwargs(chat_template_kwargs)
    trained = find_trained(run, model, adapter, **options, observation_characters=observation_characters)
    if trained.said:
        typer.echo(trained.said)
    evaluation = _evaluate(trained, tasks, _names(vllm_server_urls), database, docker_image, batch_size)
    typer.echo(evaluation)
    if json_file is not None:
        with write_atomically(json_file) as file:
            json.dump(evaluation.to_dict(), file, ensure_ascii=False, indent=1)


def _evaluate(
    trained: Trained,
    tasks: str | None,
    vllm_server_urls: list[str] | None,
    database: str | None,
    docker_image: str | None,
    batch_size: int,
) -> Evaluation:
    from trl_dbbench.engines.base import server_addresses
    from trl_dbbench.evaluation import evaluate as evaluate_model
    from trl_dbbench.evaluation import open_model, player_of
    from trl_dbbench.runs.trained import held_out_tasks

    settings = trained.settings
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
        return evaluate_model(
            loaded, player, backend, system_prompt=settings.system_prompt, batch_size=batch_size
        )


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A training run's output_dir, finished, running or killed.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; RUN/report.html if left out.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder of the PNG files; figures/ beside the HTML file if left out.")
    ] = None,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Writes no PNG files.")] = False,
) -> None:
    """Writes a run's curves and transcripts as one HTML file that needs no network, and the curves as PNG."""
    from trl_dbbench.report import read_run, write_figures, write_report

    read = read_run(run)
    for note in read.notes:
        typer.echo(f"note: {note}")
    page = write_report(read, out or run / "report.html")
    typer.echo(f"{page}: {len(read.episodes):,} episodes, {page.stat().st_size / 1e6:.1f} MB")
    if not no_figures:
        written = write_figures(read, figures or page.parent / "figures")
        typer.echo(f"{written[0].parent if written else 'no data for figures'}: {len(written)} PNG files")


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Tasks in any format, or with --tables a file of questions.")
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The file to write: .jsonl, .json (lifelong), .parquet (verl)."),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            help="own, agentbench, lifelong, verl or a dotted path; read off OUT's name if left out."
        ),
    ] = None,
    source_format: Annotated[
        str | None,
        typer.Option("--from", help="The format of IN, or its dotted path; recognised if left out."),
    ] = None,
    tables: Annotated[
        list[Path] | None, typer.Option(help="A CSV file that is a table of the questions; once for each.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split of IN, where it has some; verl's extra_info.split.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="text, tools or a dotted path; for verl's prompts")] = "text",
    skip: Annotated[
        bool, typer.Option("--skip", help="Leaves out tasks that OUT's format cannot hold.")
    ] = False,
) -> None:
    """Writes tasks in another format, or makes them of CSV files; says what the format cannot hold."""
    from trl_dbbench.convert import convert as convert_tasks

    conversion = convert_tasks(
        source,
        target,
        to,
        source_format=source_format,
        tables=tables or (),
        split=split,
        protocol=protocol,
        skip=skip,
    )
    for warning in conversion.warnings():
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{conversion.path}: {conversion.written} tasks in the format {conversion.format}")


@app.command()
def generate(
    num_tasks: Annotated[int, typer.Option(help="How many tasks.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    skills: Annotated[str | None, typer.Option(help="Only these, joined by commas; all by default.")] = None,
    single_skill: Annotated[
        bool, typer.Option("--single-skill", help="Each task has one skill and what that one needs.")
    ] = False,
    max_skills: Annotated[int | None, typer.Option(help="Most skills of a task.")] = None,
    split: Annotated[str, typer.Option(help="train or test; they share no table and no question")] = "train",
    level: Annotated[str, typer.Option(help="full; tiny or multi (several turns) for a tiny model")] = "full",
    workers: Annotated[int | None, typer.Option(help="Processes; one per CPU core by default.")] = None,
) -> None:
    """Makes tasks of tables, questions and gold SQL that has been executed."""
    from tqdm.auto import tqdm

    from trl_dbbench.generate import iterate_tasks

    workers = workers if workers is not None else min(os.cpu_count() or 1, 8)
    asked = _names(skills)
    with write_atomically(out) as file:
        tasks = iterate_tasks(num_tasks, seed, asked, single_skill, max_skills, split, level, workers)
        for task in tqdm(tasks, total=num_tasks, desc="generate", unit="task"):
            file.write(task.to_json() + "\n")
    typer.echo(f"{num_tasks} tasks written to {out}")


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="A training run's output_dir, finished, running or killed.")],
    database: RunsDatabase = None,
    docker_image: DockerImage = None,
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
        Path | None, typer.Option(help="Writes the episodes with the rewards of now and the saved ones.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="text or tools; for runs without run.json.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="For runs without run.json.")] = None,
    observation_characters: Annotated[
        int | None, typer.Option(min=0, help="For runs without run.json.")
    ] = None,
) -> None:
    """Plays every saved episode again on fresh sandboxes and prints what does not come out as it was.

    Checks how turns are read, observations, final tables, status and rewards; exits with 1 if one differs.
    With other rewards it scores an old run anew.
    """
    from trl_dbbench.arguments import outcome_reward
    from trl_dbbench.runs.replay import replay as replay_run

    outcome = outcome_reward(outcome_preset) if outcome_preset else None
    only_steps = _steps(steps) if steps else None
    settings = RunSettings.read(
        run, protocol=protocol, max_turns=max_turns, observation_characters=observation_characters
    )
    spec = database or settings.database_spec
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
            reward_funcs=_names(reward_funcs),
            outcome=outcome,
            phase=phase,
            steps=only_steps,
            notes=notes,
        )
        differing = _tell(replayed, notes, file, rescored=bool(reward_funcs or outcome_preset))
    raise typer.Exit(int(differing > 0))


def _tell(episodes: Iterable[Replayed], notes: Sequence[str], file: IO[str] | None, *, rescored: bool) -> int:
    """Prints differences as they come and the sum at the end; returns how many episodes differ."""
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


def _names(joined: str | None) -> list[str] | None:
    return None if joined is None else [name.strip() for name in joined.split(",") if name.strip()]


def _steps(text: str) -> tuple[int, int]:
    try:
        first, end = map(int, text.split(":"))
    except ValueError:
        raise ConfigError(
            f"--steps {text} must be two numbers with a colon between, as in 100:200."
        ) from None
    return first, end


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with user_errors():
        app()


if __name__ == "__main__":
    main()
