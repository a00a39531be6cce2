"""The task, as a program gets it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

DEFAULT_SECONDS = 300.0
"""Time limit of a program, in seconds; time in which its calls are being answered does not count."""


@dataclass(frozen=True)
class HarnessTask:
    """A task, and the URLs that the agent's program calls. A command finds it in `DBBENCH_TASK_FILE`.

    Args:
        question: the question, or the change to make.
        tables: names of the tables.
        messages: the system prompt and the question with its tables, as the protocol words them.
        tools: the protocol's tools in OpenAI's form; empty for text protocols.
        base_url: URL of the chat API: `OpenAI(base_url=task.base_url, api_key=task.api_key)`.
        api_key: the episode's own key, which expires when it ends.
        model: the model's name in requests.
        sql_url: URL that executes SQL, by a POST of `{"sql": ...}` with the key; see `execute`.
        database_url: URL of the episode's database for a MySQL client such as SQLAlchemy. Each statement
            takes effect at once.
        max_calls: largest number of calls of the chat API.
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
            `rows`, a list of lists or `None`; `error`, the server's message or `None`; `affected`, the number
            of rows that a change matched; `limit`, the limit that cut `rows` (`rows`, `text`) or ended the
            statement (`time` and others), or `None`; `text`, the observation that the protocol makes of it.

        Raises:
            RuntimeError: if the statement is not executed; the message says why, as when a limit is reached.
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
