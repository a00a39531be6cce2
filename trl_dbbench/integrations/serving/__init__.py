"""Tasks for agents that come to us, by a protocol that they speak.

```
desk.py        the open episodes: each is played by `loop.play`, and its turns are the agent's calls
folder.py      what is kept of them: a run's folder, which several servers may write to
http.py        an application over HTTP: the address, and who may come
monitoring.py  what monitors ask over HTTP: whether it is well, and figures
stopping.py    how serving ends: a signal ends it in order
mcp/           for any MCP client: the tools start_task, execute_sql and submit
openenv/       for trainers: an OpenEnv environment with reset, step and rewards
```

`mcp` and `openenv` need packages that exclude each other, so one of them is there at a time.
"""
