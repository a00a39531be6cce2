"""`run.json`: how a run's episodes were played and rewarded, for whoever looks at them later.

```
run.json        this
episodes.jsonl  every episode, one a line (`records.EpisodeRecord`)
tasks.jsonl     the tasks they played, each once
```
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trl_dbbench.database import Limits
from trl_dbbench.errors import ConfigError
from trl_dbbench.files import write_atomically
from trl_dbbench.player import Player
from trl_dbbench.runs.records import EPISODES_FILE, TASKS_FILE

SETTINGS_FILE = "run.json"


@dataclass(frozen=True)
class RunSettings:
    """How a run's episodes were played and rewarded.

    `observation_characters` is 0 where none were cut; `max_turns`, `max_completion_length` and `context` are
    those of `rollout.Rules`; `database` and `dialect` say what it was played on; `rewards` maps each reward's
    name to what `rewards.describe_reward` says of it; `grader` judged the answers of all tasks, where one was
    set; `advantage` names what gave each episode its advantage.
    """

    protocol: str
    observation_characters: int
    max_turns: int
    max_completion_length: int | None = None
    context: int | None = None
    database: str | None = None
    dialect: str | None = None
    limits: Limits = field(default_factory=Limits)
    rewards: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    grader: str | None = None
    advantage: str = "grpo"

    @classmethod
    def of(cls, args: Any, player: Player, rewards: dict[str, dict[str, Any] | None]) -> RunSettings:
        """Those of a training.

        Args:
            args: a `DBBenchGRPOConfig`.
            rewards: by name, what `rewards.describe_reward` says of them.
        """
        return cls(
            args.protocol,
            args.observation_characters,
            player.rules.max_turns,
            player.rules.max_completion_length,
            player.rules.context,
            player.database.describe(),
            player.database.dialect.name,
            player.database.limits,
            rewards,
            args.grader,
            args.advantage,
        )

    def write(self, folder: Path) -> None:
        with write_atomically(folder / SETTINGS_FILE) as file:
            file.write(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: str | Path, **given: Any) -> RunSettings:
        """Reads a run's folder; what is `given` (and not `None`) comes first.

        Raises:
            ConfigError: if it is no run's folder, or says neither there nor in what is given how it was
                played.
        """
        for name in (EPISODES_FILE, TASKS_FILE):
            if not (Path(folder) / name).is_file():
                raise ConfigError(
                    f"'{folder}' has no {name}. Give the output_dir of a training run, a folder."
                )
        path = Path(folder) / SETTINGS_FILE
        known = {name: value for name, value in given.items() if value is not None}
        try:
            known = json.loads(path.read_bytes()) | known
            return cls(**known | {"limits": Limits(**known["limits"])})
        except FileNotFoundError:
            needed = ("protocol", "max_turns", "observation_characters")
            if missing := [f"--{name.replace('_', '-')}" for name in needed if name not in known]:
                raise ConfigError(
                    f"'{path}' is not there, which later versions write. Say how the run's episodes were "
                    "played, as in --protocol text --max-turns 3 --observation-characters 800; missing: "
                    f"{', '.join(missing)}."
                ) from None
            return cls(**known)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"'{path}' cannot be read: {error}. Move it away and say in options how the run was played."
            ) from None
