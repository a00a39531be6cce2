"""Train language-model agents to work a MySQL database, with TRL.

Names are imported on first use, so that reading tasks does not wait for torch.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "training.alarms": ["AlarmCallback"],
    "advantages.registry": ["AdvantageBatch"],
    "cli.arguments": ["DatabaseArguments", "RewardArguments", "TaskArguments"],
    "training.callbacks": ["EpisodeLogCallback", "GreedyEvalCallback"],
    "training.config": ["DBBenchGRPOConfig"],
    "database": ["Database", "Limits", "QueryResult", "Sandbox", "open_database"],
    "episode.dataset": ["to_dataset"],
    "errors": [
        "ConfigError",
        "DBBenchError",
        "DatabaseError",
        "EngineError",
        "EnvironmentFault",
        "RankError",
        "TaskError",
    ],
    "evaluation.evaluate": ["Evaluation", "evaluate"],
    "engines.base": ["Backend", "open_backend"],
    "engines.policy": ["Policy", "ServedPolicy"],
    "grading": ["grade"],
    "grading.states": ["state_hash"],
    "episode.judge": ["Judge", "Verdict"],
    "rewards.outcome": ["OUTCOME_PRESETS", "ExecutionReward", "OutcomeReward", "format_reward"],
    "episode.player": ["Player"],
    "training.ppo": ["DBBenchPPOConfig", "DBBenchPPOTrainer"],
    "episode.protocol": ["AgentProtocol", "get_protocol"],
    "rewards.registry": ["load_reward_functions"],
    "episode.types": ["Episode", "Rules", "Sampling", "Start", "Status", "Turn"],
    "runs.records": ["Accuracy", "EpisodeRecord", "TurnRecord"],
    "tasks": ["Column", "Gold", "Table", "Task", "load_tasks"],
    "training.trainer": ["DBBenchGRPOTrainer"],
    "episode.validation": ["validate"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)

_ALIASES = {
    "markup": "episode.tool_calls",
    "protocol": "episode.protocol",
    "rollout": "episode.types",
    "verl": "integrations.verl",
}
"""Names under which users' code imports some modules -> where these modules are."""


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trl_dbbench' has no attribute '{name}'")
    return getattr(import_module(f"trl_dbbench.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Aliases(MetaPathFinder, Loader):
    """Import hook for `_ALIASES`: both names give the same module object."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == __name__ and name in _ALIASES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"{__name__}.{_ALIASES[spec.name.rpartition('.')[2]]}")
        spec.loader_state = module.__spec__  # Python overwrites it; see `exec_module`
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


sys.meta_path.append(_Aliases())
