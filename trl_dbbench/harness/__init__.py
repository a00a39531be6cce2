"""Episodes played by a program of the user's that talks to a chat API.

```
player.py     an episode: starts the program, waits for its answer, judges the database
program.py    the programs: each episode's is a process of its own (`zygote.py`)
session.py    what an episode's calls are: replies as turns, messages as token ids
endpoint.py   where it calls, over HTTP: chat completions, SQL
answer.py     rows and answers as JSON
mysql.py      the episode's database, for clients of MySQL
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trl_dbbench.errors import ConfigError
from trl_dbbench.harness.task import DEFAULT_SECONDS

if TYPE_CHECKING:
    from trl_dbbench.episode.player import Player


def played_by(player: Player, harness: str, seconds: float = DEFAULT_SECONDS) -> Player:
    """Return a player with the same settings whose episodes this program plays."""
    try:
        from trl_dbbench.harness.player import HarnessPlayer
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"harness needs the package {error.name}, which is not there: pip install 'trl-dbbench[harness]'."
        ) from None
    return HarnessPlayer(player.chat, player.database, player.judge, player.rules, harness, seconds)
