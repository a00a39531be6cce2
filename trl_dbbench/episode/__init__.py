"""One episode: a task, a conversation between an agent and a database, and a verdict.

Start with `play` (one episode, start to verdict) and `types` (its data). `player` plays many. `protocol`
turns text into actions and results into text; `chat` turns messages into token ids; `judge` compares answers
and tables with the gold solution.
In: tasks, a database and an engine. Out: episodes with token ids, masks, statements and verdicts.
"""
