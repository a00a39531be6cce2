"""Tasks for agents that come to us: a server that any MCP client can connect to.

```
transports.py  over standard input and output, or over HTTP; a signal ends it in order
tools.py       what a client sees: the tools start_task, execute_sql and submit
desk.py        the open episodes: each is played by `loop.play`, and its turns are the agent's calls
monitoring.py  what monitors ask over HTTP: whether it is well, and figures
folder.py      what is kept of them: a run's folder, which several servers may write to
```
"""
