"""System prompts, one per protocol, and a user's own opening messages.

The rules are the benchmark's, the words ours. The turn limit is left out on purpose: an agent trained with
one limit is often evaluated with another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.lookup import check_choice

Messages = list[dict[str, str]]

Opening = str | Messages
"""Messages before a question: a system prompt, or a list of all messages."""

MODES = ("replace", "prepend")

_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "agent": "assistant"}
"""Roles by their names in files, including LifelongAgentBench's `agent`."""


def opening(
    own: Sequence[Mapping[str, str]], system_prompt: Opening | None, mode: str, prelude: str | None
) -> Opening | None:
    """Return the messages before the questions of a run; `None` for the protocol's own.

    Args:
        own: the protocol's messages before a question.
        system_prompt: the user's own.
        mode: `"replace"` drops the protocol's system prompt; `"prepend"` puts the user's before it.
        prelude: a file of messages after the system prompt; see `read_messages`. A system message at its
            start replaces the system prompt.

    Raises:
        ConfigError: if the settings contradict each other, or the file cannot be read.
    """
    check_choice("system_prompt_mode", mode, MODES)
    if mode == "prepend":
        if not isinstance(system_prompt, str):
            raise ConfigError(
                "system_prompt_mode: prepend needs a text as system_prompt; set that, or leave it out."
            )
        system_prompt = "\n\n".join([system_prompt, *(m["content"] for m in own if m["role"] == "system")])
    if prelude is None:
        return system_prompt
    messages = read_messages(prelude)
    if messages[0]["role"] == "system":
        if system_prompt is not None:
            raise ConfigError(
                f"both system_prompt and the prelude '{prelude}' have a system message; leave one out."
            )
        return messages
    if isinstance(system_prompt, list):
        return [*system_prompt, *messages]
    before = [{"role": "system", "content": system_prompt}] if system_prompt else list(map(dict, own))
    return [*before, *messages]


def read_messages(path: str) -> Messages:
    """Read opening messages from JSON: a list, or an object with numbers as keys (LifelongAgentBench).

    ```json
    {"0": {"role": "user", "content": "I will ask you ..."}, "1": {"role": "agent", "content": "Ok."}}
    ```

    Raises:
        ConfigError: if the file cannot be read, has another form, or user and assistant do not alternate
            with the assistant last.
    """
    try:
        whole: Any = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        if isinstance(whole, dict):
            whole = [whole[key] for key in sorted(whole, key=int)]
        messages = [{"role": _ROLES[each["role"]], "content": _text(each["content"])} for each in whole]
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ConfigError(
            f"the messages of '{path}' cannot be read ({type(error).__name__}: {error}). It must be a JSON "
            f"list of objects with 'role' ({', '.join(_ROLES)}) and 'content', or an object of such by "
            "number."
        ) from None
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not roles or turns != (["user", "assistant"] * len(turns))[: len(turns)] or len(turns) % 2:
        raise ConfigError(
            f"the messages of '{path}' have the roles {', '.join(roles) or 'none'}; after at most one of the "
            "system, user and assistant must take turns, and the assistant has the last one."
        )
    return messages


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the content {value!r} is not text")
    value.encode()  # half of a surrogate pair raises a ValueError here, as it would in the tokenizer
    return value


EXAMPLE_ROWS = [("pear",), ("plum",)]
"""The rows of the text protocol's example answer."""

TEXT_SYSTEM_PROMPT = f"""\
You are a database assistant. A MySQL database holds the tables named below the request. Work on it step \
by step until you can answer the request or have carried it out.

In each turn, first think in a few words, then do exactly one of two things.

1. Run one SQL statement. Write this, with the statement in a single sql block:
Action: Operation
```sql
SELECT name FROM fruits WHERE price > 2;
```
The database's reply comes back as the next message: a list of rows, an empty list if there are none, or \
the error.

2. Finish. Write this:
Action: Answer
Final Answer: {EXAMPLE_ROWS}
Give the values as the database replied them. If the request was to change the tables, change them first \
by running statements; then finish with any answer, since the tables themselves are checked.

A turn in any other form ends the session as failed. Names with blanks or special characters need \
backticks. The number of turns is small: do not repeat a statement without need."""

EACH_VALUE = "each value of the answer as one string, as the database replied it"
EACH_ROW = (
    "each row of the answer as one string, as the database replied it: its one value, or all its values in "
    "parentheses, such as ('pear', 2.5)"
)
"""Form of a tools answer, for graders of values (`EACH_VALUE`) and of rows."""

TOOLS_SYSTEM_PROMPT = f"""\
You are a database assistant. A MySQL database holds the tables named below the request. Work on it with \
the tool execute_sql, one statement a call, and read what comes back: a list of rows, an empty list if \
there are none, or the error.

When you know the answer, or have made the change that was asked for, call commit_final_answer. Give \
{EACH_VALUE}; after a change any answer will do, since \
the tables themselves are checked. A reply without a tool call does nothing. Names with blanks or special \
characters need backticks. The number of turns is small: do not repeat a statement without need."""


TEXT_SQL_SYSTEM_PROMPT = """\
You are a database assistant. A MySQL database holds the tables of the question below. Write one SQL query \
whose rows answer the question. You may run statements first, to look at the tables and to try a query out.

In each turn, first think in a few words, then do exactly one of two things.

1. Run one SQL statement. Write this, with the statement in a single sql block:
Action: Operation
```sql
SELECT DISTINCT colour FROM fruits;
```
The database's reply comes back as the next message: a list of rows, an empty list if there are none, or \
the error.

2. Finish. Write this, with the query in a single sql block:
Action: Answer
Final Answer:
```sql
SELECT name FROM fruits WHERE colour = 'red';
```
That query is executed on the tables as they were at the start, and its rows are checked. It must give just \
the columns that were asked for. If the request was to change the tables, change them by running statements, \
then finish with any answer, since the tables themselves are checked.

A turn in any other form ends the session as failed. The number of turns is small: do not repeat a \
statement without need."""

TOOLS_SQL_SYSTEM_PROMPT = """\
You are a database assistant. A MySQL database holds the tables of the question below. Write one SQL query \
whose rows answer the question. With the tool execute_sql you may run statements first, one a call, to look \
at the tables and to try a query out; a list of rows comes back, an empty list if there are none, or the \
error.

When the query is right, call submit_sql with it. It is executed on the tables as they were at the start, \
and its rows are checked; it must give just the columns that were asked for. If the request was to change \
the tables, change them with execute_sql first; any query will do then, since the tables themselves are \
checked. A reply without a tool call does nothing. The number of turns is small: do not repeat a statement \
without need."""
