"""Episodes played by a program of the user's that talks to a chat API.

```
player.py     an episode: starts the program, waits for its answer, judges the database
program.py    the programs: each episode's is a process of its own (`zygote.py`)
session.py    what an episode's calls are: replies as turns, messages as token ids
endpoint.py   where it calls, over HTTP: chat completions, SQL
mysql.py      the episode's database, for clients of MySQL
```
"""

DEFAULT_SECONDS = 300.0
"""Time limit of a program, in seconds."""
