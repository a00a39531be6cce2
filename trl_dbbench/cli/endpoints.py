"""`eval --endpoint`: a model behind an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_dbbench.cli.options import SETTINGS_OPTIONS, tasks_to_evaluate
from trl_dbbench.database import database_for, open_database
from trl_dbbench.errors import ConfigError

if TYPE_CHECKING:
    from trl_dbbench.episode.plan import Plan
    from trl_dbbench.evaluation.compare.arms import Arm
    from trl_dbbench.integrations.endpoints.evaluate import EndpointEvaluation
    from trl_dbbench.integrations.endpoints.http import Endpoint
    from trl_dbbench.runs.journal import Journal
    from trl_dbbench.runs.trained import Trained

NEEDS_TOKENS = {
    "adapter": "--adapter",
    "vllm_server_urls": "--vllm-server-urls",
    "chat_template": "--chat-template",
    "dtype": "--dtype",
    "few_shot_memory": "--few-shot-memory",
    "few_shot_by": "--few-shot-by",
    "few_shot_update": "--few-shot-update",
    "scorer": "--reward-model",
    "top_k": "--top-k",
}
"""Options that need a model that is ours, or say how its text becomes tokens."""


@dataclass(frozen=True)
class EndpointOptions:
    """What says where the model is."""

    url: str | None
    api_key_env: str | None
    concurrency: int | None

    def given(self) -> bool:
        """Whether an endpoint is named.

        Raises:
            ConfigError: if another option is given that makes sense only with one.
        """
        if self.url is None:
            for option, value in (("--api-key-env", self.api_key_env), ("--concurrency", self.concurrency)):
                if value is not None:
                    raise ConfigError(f"{option} goes with --endpoint, which is not given.")
        return self.url is not None


def evaluate_endpoint(
    where: EndpointOptions, given: Mapping[str, Any], plan: Plan | None
) -> tuple[EndpointEvaluation, Journal]:
    """Evaluates the model; a run lends its tasks and how its episodes were played.

    Args:
        given: the options of `eval`, by name; `None` where one was left out.
        plan: the samples of each task.

    Returns:
        The evaluation, and the journal of its episodes.

    Raises:
        ConfigError: if they do not go together.
    """
    from trl_dbbench.data.sample import asked_of
    from trl_dbbench.episode.judge import Judge
    from trl_dbbench.evaluation.compare.play import each_once
    from trl_dbbench.integrations.endpoints.evaluate import evaluate_endpoint as evaluate
    from trl_dbbench.integrations.endpoints.play import EndpointPlayer
    from trl_dbbench.runs.conversations import protocol_of
    from trl_dbbench.runs.journal import open_journal

    run, model = given["run"], given["model"]
    if model is None:
        raise ConfigError("--endpoint needs --model, the model's name on that server.")
    for name, option in NEEDS_TOKENS.items():
        if given[name]:
            raise ConfigError(
                f"{option} does not go with --endpoint, which gives text and no tokens: leave it out."
            )
    kwargs, trained = given["chat_template_kwargs"], _trained(run, model, given)
    settings = trained.settings
    if settings.few_shot:
        raise ConfigError(
            "--endpoint shows no earlier episodes in the prompt; add --few-shot 0 to do without them."
        )
    endpoint = _endpoint(where, model, kwargs)
    loaded = tasks_to_evaluate(trained, given["tasks"], given["limit"])
    if plan is not None:
        loaded = each_once(loaded)  # whose samples would be drawn alike
    asked = {**asked_of(loaded, plan, trained), "endpoint": str(endpoint)}
    journal = open_journal(given["json_file"], asked, given["resume"])
    spec = database_for(loaded, given["database"] or settings.database_spec)
    with open_database(spec, docker_image=given["docker_image"], limits=settings.limits) as opened:
        player = EndpointPlayer(
            endpoint,
            protocol_of(settings),
            opened,
            Judge(opened, settings.grader),
            settings.rules,
            settings.system_prompt,
            where.concurrency or EndpointPlayer.concurrency,
        )
        return evaluate(loaded, player, plan=plan, journal=journal), journal


def _endpoint(where: EndpointOptions, model: str, template_kwargs: str | None) -> Endpoint:
    from trl_dbbench.cli.arguments import read_template_kwargs
    from trl_dbbench.integrations.endpoints.http import Endpoint, read_key

    assert where.url is not None
    kwargs = None if template_kwargs is None else read_template_kwargs(template_kwargs)
    return Endpoint(where.url, model, key=read_key(where.api_key_env), template_kwargs=kwargs)


def _trained(run: Path | None, model: str, given: Mapping[str, Any]) -> Trained:
    """Return how the model plays. Its name is the server's alone: no folder and no hub is asked about it."""
    from trl_dbbench.cli.arguments import read_system_prompt
    from trl_dbbench.runs.trained import DEFAULTS, Trained, find_trained

    options = {name: given[name] for name in SETTINGS_OPTIONS if name not in NEEDS_TOKENS}
    options |= {"chat_template_kwargs": None, "system_prompt": read_system_prompt(given["system_prompt"])}
    if run is not None:
        return find_trained(run, **options)
    known = {name: value for name, value in options.items() if value is not None}
    return Trained(model, None, replace(DEFAULTS, **known))


def arm_of(evaluation: EndpointEvaluation, plan: Plan | None) -> Arm:
    """What `compare` reads of it."""
    from trl_dbbench.evaluation.compare.arms import Arm, gold_of
    from trl_dbbench.evaluation.compare.play import sampling_of

    name = evaluation.endpoint
    arm = Arm(name, evaluation.records, gold=gold_of(evaluation.tasks), model=name)
    if plan is None:
        return arm
    return replace(arm, samples=evaluation.samples, sampling=sampling_of(plan))
