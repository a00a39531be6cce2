"""Servers that offer tasks to external agents and trainers.

```
desk.py        the open episodes: `episode.play` plays them, and the agent's calls are their turns
folder.py      saved episodes, in a folder like a run's that several servers may write to
http.py        the HTTP server: address, access control, connection limits, monitoring routes
stopping.py    shutdown: a signal stops the server in an orderly way
mcp.py         for any MCP client: the tools start_task, execute_sql and submit
openenv/       for trainers: an OpenEnv environment with reset, step and rewards
```

`mcp` and `openenv` need conflicting packages, so only one of them can be installed.
"""
