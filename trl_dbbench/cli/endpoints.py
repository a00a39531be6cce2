"""`eval --endpoint`: a model behind an OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_dbbench.cli.options import tasks_to_evaluate
from trl_dbbench.database import open_database
from trl_dbbench.errors import ConfigError

if TYPE_CHECKING:
    from trl_dbbench.endpoint_evaluation import EndpointEvaluation

NEEDS_TOKENS = {
    "adapter": "--adapter",
    "urls": "--vllm-server-urls",
    "chat_template": "--chat-template",
    "dtype": "--dtype",
    "few_shot_memory": "--few-shot-memory",
    "few_shot_by": "--few-shot-by",
    "few_shot_update": "--few-shot-update",
}
"""Options that say how text becomes tokens, or where a model is that is ours."""


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
    where: EndpointOptions,
    run: Path | None,
    model: str | None,
    tasks: str | None,
    database: str | None,
    docker_image: str | None,
    options: dict[str, Any],
) -> EndpointEvaluation:
    """Evaluates the model; a run lends its tasks and how its episodes were played.

    Args:
        options: those of `eval`, by name; `None` where one was left out.

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
    if model is None:
        raise ConfigError("--endpoint needs --model, the model's name on that server.")
    for name, option in NEEDS_TOKENS.items():
        if options.pop(name, None):
            raise ConfigError(f"{option} does not go with --endpoint: the server has the model.")
    kwargs = options.pop("chat_template_kwargs", None)
    options["system_prompt"] = read_system_prompt(options["system_prompt"])
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
    loaded = tasks_to_evaluate(trained, tasks)
    spec = database or settings.database_spec
    with open_database(spec, docker_image=docker_image, limits=settings.limits) as opened:
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
