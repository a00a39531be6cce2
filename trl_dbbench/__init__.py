"""Train language-model agents to work a MySQL database, with TRL.

Names are imported when they are first used: reading tasks should not wait for torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "alarms": ["AlarmCallback"],
    "advantages": ["AdvantageBatch"],
    "arguments": ["DatabaseArguments", "RewardArguments", "TaskArguments"],
    "callbacks": ["EpisodeLogCallback", "GreedyEvalCallback"],
    "config": ["DBBenchGRPOConfig"],
    "database": ["Database", "Limits", "QueryResult", "Sandbox", "open_database"],
    "dataset": ["to_dataset"],
    "errors": [
        "ConfigError",
        "DBBenchError",
        "DatabaseError",
        "EngineError",
        "EnvironmentFault",
        "RankError",
        "TaskError",
    ],
    "evaluation": ["Evaluation", "evaluate"],
    "engines.base": ["Backend", "open_backend"],
    "engines.policy": ["Policy", "ServedPolicy"],
    "grading": ["grade"],
    "grading.states": ["state_hash"],
    "judge": ["Judge", "Verdict"],
    "outcome": ["OUTCOME_PRESETS", "OutcomeReward"],
    "player": ["Player"],
    "ppo": ["DBBenchPPOConfig", "DBBenchPPOTrainer"],
    "protocol": ["AgentProtocol", "get_protocol"],
    "rewards": [
        "ExecutionReward",
        "format_reward",
        "load_reward_functions",
    ],
    "rollout": ["Episode", "Rules", "Sampling", "Start", "Status", "Turn"],
    "runs.records": ["Accuracy", "EpisodeRecord", "TurnRecord"],
    "tasks": ["Column", "Gold", "Table", "Task", "load_tasks"],
    "trainer": ["DBBenchGRPOTrainer"],
    "validation": ["validate"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trl_dbbench' has no attribute '{name}'")
    return getattr(import_module(f"trl_dbbench.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
