"""Tasks for external agents, by a protocol that they speak.

```
desk.py        the open episodes: each is played by `episode.play`, and its turns are the agent's calls
folder.py      saved episodes: a run's folder, which several servers may write to
http.py        an application over HTTP: address, access, limits of connections, pages for monitors
stopping.py    the end: a signal stops the server in order
mcp.py         for any MCP client: the tools start_task, execute_sql and submit
openenv/       for trainers: an OpenEnv environment with reset, step and rewards
```

`mcp` and `openenv` need packages that exclude each other, so only one is installed at a time.
"""
