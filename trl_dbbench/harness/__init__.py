"""Episodes played by the user's own program, which talks to a chat API.

```
player.py     plays an episode: starts the program, waits for its answer, judges the database
program.py    the programs, one process for each episode (`zygote.py`)
session.py    the calls of an episode: replies become turns, messages become token ids
endpoint.py   the HTTP server that the program calls: chat completions, SQL
answer.py     rows and answers as JSON
mysql.py      the episode's database, for MySQL clients
task.py       the task, as the program gets it
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trl_dbbench.errors import ConfigError
from trl_dbbench.harness.task import DEFAULT_SECONDS

if TYPE_CHECKING:
    from trl_dbbench.episode.player import Player


def played_by(player: Player, harness: str, seconds: float = DEFAULT_SECONDS) -> Player:
    """Return a player with the same settings whose episodes are played by the program `harness`."""
    try:
        from trl_dbbench.harness.player import HarnessPlayer
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"harness needs the package {error.name}, which is not there: pip install 'trl-dbbench[harness]'."
        ) from None
    return HarnessPlayer(player.chat, player.database, player.judge, player.rules, harness, seconds)
