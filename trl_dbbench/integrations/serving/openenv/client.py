"""Messages between a trainer and the environment, and a client that sends them.

```python
with DatabaseEnv(base_url="http://127.0.0.1:8000").sync() as env:
    result = env.reset(task_id="orders-count-lamps")
    result = env.step(ValuesAction(sql="SELECT COUNT(*) FROM orders WHERE item = 'desk lamp'"))
    result = env.step(ValuesAction(answer=["2"]))
    result.reward, result.done  # 1.0, True
```

`openenv`'s `GenericEnvClient` does the same with dictionaries, and does not need this package.
"""

from __future__ import annotations

from typing import Annotated, Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from trl_dbbench.episode.protocol import value_text
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS

Text = Annotated[str, Field(max_length=MAX_STATEMENT_CHARACTERS)]
Value = Annotated[Text, BeforeValidator(value_text)]
"""Value or row as text; some models write it as a number, null or a list."""


class SQLAction(Action):
    """One call of an agent: either `sql`, or the `answer`, which ends the episode."""

    sql: Text | None = Field(
        None,
        description="One SQL statement, which is executed. Its rows, or its error, are what comes back.",
    )
    answer: Any = None

    @model_validator(mode="after")
    def _one_of_both(self) -> SQLAction:
        if (self.sql is None) is (self.answer is None):
            # not a ValueError, whose details OpenEnv cannot send
            raise PydanticCustomError("sql_or_answer", "an action has either 'sql' or 'answer'")
        return self


class ValuesAction(SQLAction):
    """Action whose answer is a list of values, for the protocol `tools`."""

    answer: list[Value] | None = Field(
        None,
        max_length=MAX_STATEMENT_CHARACTERS,
        description="Ends the episode with the answer: each value as one string, as the database replied it; "
        "a row of several values as one string, such as ('pear', 2.5). If the request was to change the "
        "tables, do that first with sql: the tables themselves are checked, and any answer will do.",
    )


class QueryAction(SQLAction):
    """Action whose answer is SQL, for the protocol `tools_sql`."""

    answer: Text | None = Field(
        None,
        description="Ends the episode with one SQL query, which is executed on the tables as they were at "
        "the start; its rows are checked, and must have just the columns that were asked for. If the request "
        "was to change the tables, change them first with sql: the tables themselves are checked.",
    )


class SQLObservation(Observation):
    """Reply to an action. `reward` is 0 until the episode is done."""

    text: str = Field(description="After a reset the request and its tables, then what the database replied.")
    task_id: str
    database: str = Field(description="The SQL that is spoken: MySQL or SQLite.")
    calls_left: int = Field(description="Actions that the episode still has, its answer included.")


class SQLState(State):
    """State of an episode; `status` and `right` are set when it is over."""

    task_id: str | None = None
    status: str | None = Field(None, description="How it ended, a value of trl_dbbench.episode.types.Status.")
    right: bool | None = None


class DatabaseEnv(EnvClient[SQLAction, SQLObservation, SQLState]):
    """Client of one session: one episode after another, each starting at `reset`."""

    def _step_payload(self, action: SQLAction) -> dict[str, Any]:
        return action.model_dump(exclude_none=True)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[SQLObservation]:
        done, reward = payload["done"], payload["reward"]
        observation = SQLObservation(**payload["observation"], done=done, reward=reward)
        return StepResult(observation, reward=reward, done=done, metadata=payload.get("metadata"))

    def _parse_state(self, payload: dict[str, Any]) -> SQLState:
        return SQLState(**payload)
