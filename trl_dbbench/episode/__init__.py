"""One episode: a task, a conversation between an agent and a database, and a verdict.

`types` says what an episode is, `play` plays one, `player` plays many. `protocol` turns text into actions and
results into text; `chat` turns messages into token ids; `judge` compares the answer or the tables with the
gold solution.
In: tasks, a database and an engine. Out: episodes with token ids, masks, statements and verdicts.
"""
