"""The task as a program gets it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

DEFAULT_SECONDS = 300.0
"""Time limit of a program, in seconds of its own."""


@dataclass(frozen=True)
class HarnessTask:
    """A task, and where the agent's program calls. A command finds the same in `DBBENCH_TASK_FILE`.

    Args:
        question: what is asked, or to be changed.
        tables: the tables' names.
        messages: the system prompt and the question with its tables, as the protocol asks it.
        tools: the tools of the protocol, in OpenAI's form; empty for a protocol of texts.
        base_url: of the chat API: `OpenAI(base_url=task.base_url, api_key=task.api_key)`.
        api_key: this episode's own; it ends with the episode.
        model: the name to ask for.
        sql_url: where SQL is executed, by a POST of `{"sql": ...}` with the key; see `execute`.
        database_url: the episode's database for a MySQL client of the program's own, such as SQLAlchemy. Each
            statement takes effect at once.
        max_calls: most calls of the chat API.
    """

    question: str
    tables: list[str]
    messages: list[dict[str, Any]]
    base_url: str
    api_key: str
    sql_url: str
    database_url: str
    model: str = "policy"
    max_calls: int = 3
    tools: list[dict[str, Any]] = field(default_factory=list)

    def execute(self, sql: str) -> dict[str, Any]:
        """Execute one statement in the episode's database.

        Returns:
            `rows`, a list of lists or `None`; `error`, the server's message or `None`; `affected`, the rows
            that a change matched; `limit`, the limit that has cut `rows` (`rows`, `text`) or ended the
            statement (`time` and others), or `None`; `text`, what the protocol would show of it.

        Raises:
            RuntimeError: if it is not executed, saying why, such as a limit that is reached.
        """
        request = urllib.request.Request(
            self.sql_url,
            json.dumps({"sql": sql}).encode(),
            {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["error"]["message"]) from None
