"""`eval --endpoint`: a model behind an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trl_dbbench.cli.options import SETTINGS_OPTIONS, tasks_to_evaluate
from trl_dbbench.database import open_database
from trl_dbbench.errors import ConfigError

if TYPE_CHECKING:
    from trl_dbbench.endpoint_evaluation import EndpointEvaluation
    from trl_dbbench.judging.arms import Arm

NEEDS_TOKENS = {
    "adapter": "--adapter",
    "vllm_server_urls": "--vllm-server-urls",
    "chat_template": "--chat-template",
    "dtype": "--dtype",
    "few_shot_memory": "--few-shot-memory",
    "few_shot_by": "--few-shot-by",
    "few_shot_update": "--few-shot-update",
    "samples": "--samples",
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


def evaluate_endpoint(where: EndpointOptions, given: Mapping[str, Any]) -> EndpointEvaluation:
    """Evaluates the model; a run lends its tasks and how its episodes were played.

    Args:
        given: the options of `eval`, by name; `None` where one was left out.

    Raises:
        ConfigError: if they do not go together.
    """
    from trl_dbbench.arguments import read_system_prompt, read_template_kwargs
    from trl_dbbench.endpoint_evaluation import evaluate_endpoint as evaluate
    from trl_dbbench.endpoints.http import Endpoint, read_key
    from trl_dbbench.endpoints.play import EndpointPlayer
    from trl_dbbench.judge import Judge
    from trl_dbbench.runs.conversations import protocol_of
    from trl_dbbench.runs.trained import find_trained

    assert where.url is not None
    run, model = given["run"], given["model"]
    if model is None:
        raise ConfigError("--endpoint needs --model, the model's name on that server.")
    for name, option in NEEDS_TOKENS.items():
        if given[name]:
            raise ConfigError(
                f"{option} does not go with --endpoint, which gives text, greedily: leave it out."
            )
    kwargs = given["chat_template_kwargs"]
    options = {name: given[name] for name in SETTINGS_OPTIONS if name not in NEEDS_TOKENS}
    options |= {"chat_template_kwargs": None, "system_prompt": read_system_prompt(given["system_prompt"])}
    trained = find_trained(run, None if run else model, **options)
    settings = trained.settings
    if settings.few_shot:
        raise ConfigError(
            "--endpoint shows no earlier episodes in the prompt; add --few-shot 0 to do without them."
        )
    endpoint = Endpoint(
        where.url,
        model,
        key=read_key(where.api_key_env),
        template_kwargs=None if kwargs is None else read_template_kwargs(kwargs),
    )
    loaded = tasks_to_evaluate(trained, given["tasks"], given["limit"])
    spec, image = given["database"] or settings.database_spec, given["docker_image"]
    with open_database(spec, docker_image=image, limits=settings.limits) as opened:
        player = EndpointPlayer(
            endpoint,
            protocol_of(settings),
            opened,
            Judge(opened, settings.grader),
            settings.rules,
            settings.system_prompt,
            where.concurrency or EndpointPlayer.concurrency,
        )
        return evaluate(loaded, player)


def arm_of(evaluation: EndpointEvaluation) -> Arm:
    """What `compare` reads of it."""
    from trl_dbbench.judging.arms import Arm, gold_of
    from trl_dbbench.runs.records import episode_record

    episodes = evaluation.episodes
    records = [episode_record(episode, "eval", 0) for episode in episodes]
    tasks = [episode.task for episode in episodes]
    return Arm(evaluation.endpoint, records, gold=gold_of(tasks), model=evaluation.endpoint)
