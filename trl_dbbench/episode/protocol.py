"""Protocols between agent and database: model text -> `Action`, `QueryResult` -> observation.

- **text**: free thoughts, then `Action: Operation` and one fenced `sql` block, or `Action: Answer` and a
  line `Final Answer: ...`. Any other turn is invalid and ends the episode.
- **tools**: tool calls of `execute_sql` and `commit_final_answer`. An invalid call gets an error as
  observation, and the episode goes on.
- **text_sql**, **tools_sql**: the same with SQL as the answer, which is executed: a block after
  `Final Answer:`, or a call of `submit_sql`.

All are pure functions of the text. They never evaluate it as code, and no text makes them raise. Your own
protocol is any class with the members of `AgentProtocol`; `protocol:` in a YAML takes its dotted path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from trl_dbbench.episode.prompts import (
    EACH_ROW,
    EACH_VALUE,
    EXAMPLE_ROWS,
    TEXT_SQL_SYSTEM_PROMPT,
    TEXT_SYSTEM_PROMPT,
    TOOLS_SQL_SYSTEM_PROMPT,
    TOOLS_SYSTEM_PROMPT,
    Opening,
)
from trl_dbbench.episode.tool_calls import after_thoughts, as_list, tool_call, well_formed
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading import Grader, SQLGrader, get_grader
from trl_dbbench.grading.states import as_mysql_prints
from trl_dbbench.utils.lookup import look_up

if TYPE_CHECKING:
    from trl_dbbench.database import QueryResult
    from trl_dbbench.tasks import Task


@dataclass(frozen=True)
class Operation:
    """Action that runs one statement."""

    sql: str


@dataclass(frozen=True)
class Answer:
    """Action that ends the episode with an answer.

    `values` are the strings of a tools answer; a text answer has only `text`.
    """

    text: str
    values: tuple[str, ...] | None = None

    def for_grader(self, grader: str) -> str:
        """Return the answer as the named grader reads it: a grader of rows needs a tuple per value.

        A value may be a row of several cells, as the database prints it or as a JSON list. Dates and DECIMALs
        may be written as the database's reply shows them, `datetime.date(1985, 12, 1)`, `Decimal('2.50')`.
        """
        in_rows = get_grader(grader).rows
        if self.values is None:
            return _as_mysql_prints(self.text, in_rows)
        values = [_as_mysql_prints(value, in_rows) for value in self.values]
        return f"[{', '.join(map(_row, values))}]" if in_rows else str(values)


def _as_mysql_prints(text: str, in_rows: bool) -> str:
    """Return an answer with dates and DECIMALs as MySQL prints them.

    Within brackets they are quoted, except numbers for a grader of rows.
    """
    quote = "'" if text.lstrip().startswith(("(", "[")) else ""
    return as_mysql_prints(text, quote, number_quote="" if in_rows else quote)


def _row(value: str) -> str:
    """Return a value of an answer as the database prints a row."""
    value = value.strip()
    cells = as_list(value)
    if isinstance(cells, list) and len(cells) > 1:  # a list of one is a value of a JSON column
        return str(tuple(cells))
    in_parentheses = value.startswith("(") and value.endswith(")")
    return value if in_parentheses and ("," in value or _ONE_CELL.match(value)) else f"({value},)"


_ONE_CELL = re.compile(r"""\(\s*(?:[-+.\d'"]|None\s*\)|\))""")
"""Start of a row with one cell: a number, a quoted text or NULL. `(none)` is a text."""


def given_answer(given: Any) -> Answer:
    """Return the answer that a program gave (see `harness`).

    Args:
        given: a text, a list of values, a list of rows as `execute` returns them, or `None`.
    """
    if given is None:
        return Answer("done", ("done",))
    if isinstance(given, list):
        values = tuple(map(value_text, given))
        return Answer(str(list(values)), values)
    return Answer(value_text(given))


def value_text(given: Any) -> str:
    """Return a JSON value, or a row's only cell, as text; a longer row as the database prints it."""
    if isinstance(given, list | tuple) and len(given) == 1:
        (given,) = given
    if given is None or isinstance(given, str):
        return str(given)
    if isinstance(given, bool):
        given = int(given)  # as in MySQL
    try:
        return str(tuple(given)) if isinstance(given, list | tuple) else json.dumps(given, ensure_ascii=False)
    except RecursionError:
        return "nested too deep"


@dataclass(frozen=True)
class Invalid:
    """A turn that the protocol cannot read; `reason` says what was expected."""

    reason: str


@dataclass(frozen=True)
class Reply:
    """A message to a program that plays the episode, which may use it as it likes (see `harness`)."""

    text: str


Action = Operation | Answer | Invalid

CUT = "[TRUNCATED]"
"""Mark at the end of an observation that was cut, as in AgentBench."""


class AgentProtocol(Protocol):
    """The members of a protocol. Your own class is called with `observation_characters` as its argument.

    Attributes:
        name: for logs and records.
        grader: judges the answers of tasks that name no grader; a name from `grading.GRADERS`.
        tools: function schemas that the chat template shows to the model, if any.
        invalid_ends_episode: whether a turn that `parse` cannot read ends the episode. Otherwise the agent
            reads `observe(invalid)` and goes on.
        observation_role: the chat role of observations.
    """

    @property
    def name(self) -> str: ...

    @property
    def grader(self) -> str: ...

    @property
    def tools(self) -> list[dict[str, Any]] | None: ...

    @property
    def invalid_ends_episode(self) -> bool: ...

    @property
    def observation_role(self) -> str: ...

    def messages(self, task: Task, system_prompt: Opening | None = None) -> list[dict[str, str]]:
        """Return the prompt of a task as chat messages; the last one has the question.

        Args:
            system_prompt: replaces the protocol's; a list replaces all messages before the question.
        """

    def parse(self, text: str) -> Action:
        """Return the action that a turn means. No text makes it raise."""

    def write(self, action: Operation | Answer) -> str | dict[str, Any]:
        """Return a turn that `parse` reads as this action: a text, or a message with tool calls."""

    def observe(self, result: QueryResult | Invalid) -> str:
        """Return the observation of a statement's result, or of a turn that could not be read."""


@dataclass(frozen=True)
class _BuiltIn:
    """Base class of the library's protocols.

    Args:
        observation_characters: longer observations are cut and marked, as AgentBench does at 800;
            `None` cuts nothing, as in LifelongAgentBench.
        judged_by: the grader of all answers, instead of each task's own; the prompt asks for the form that
            it reads.
    """

    observation_characters: int | None = 800
    judged_by: str | None = None

    system_prompt: ClassVar[str]
    grader: ClassVar[str]

    def messages(self, task: Task, system_prompt: Opening | None = None) -> list[dict[str, str]]:
        opening = system_prompt
        if not isinstance(opening, list):
            opening = [{"role": "system", "content": opening or self._own_prompt(task)}]
        return [*opening, {"role": "user", "content": task.prompt()}]

    def _own_prompt(self, task: Task) -> str:
        return self.system_prompt.replace("MySQL", PRODUCTS[task.dialect])

    def _judge_of(self, task: Task) -> Grader | SQLGrader:
        return get_grader(self.judged_by or task.grader or self.grader)

    def observe(self, result: QueryResult | Invalid) -> str:
        if isinstance(result, Invalid):
            text = result.reason
        elif result.error is not None:
            text = result.error
        else:
            text = f"{result.rows or []} {CUT}" if result.limit else str(result.rows or [])
        most = self.observation_characters
        return text if most is None or len(text) <= most else f"{text[:most]}{CUT}"


@dataclass(frozen=True)
class TextProtocol(_BuiltIn):
    """The "Action" protocol of AgentBench and LifelongAgentBench."""

    system_prompt: ClassVar[str] = TEXT_SYSTEM_PROMPT
    name: ClassVar[str] = "text"
    grader: ClassVar[str] = "agentbench_text"
    tools: ClassVar[list[dict[str, Any]] | None] = None
    invalid_ends_episode: ClassVar[bool] = True
    observation_role: ClassVar[str] = "user"

    def _own_prompt(self, task: Task) -> str:
        """Return the prompt with the example answer in the form that the task's grader reads."""
        own, grader = super()._own_prompt(task), self._judge_of(task)
        if isinstance(grader, Grader):
            return own.replace(str(EXAMPLE_ROWS), grader.answer(EXAMPLE_ROWS))
        return own  # the answer is SQL

    def parse(self, text: str) -> Action:
        """Read a turn as LifelongAgentBench's parser does, after any `</think>`."""
        text = after_thoughts(text)
        action = re.search(r"Action: (Operation|Answer)", text)
        if action is None:
            return Invalid("no 'Action: Operation' or 'Action: Answer'")
        if action[1] == "Operation":
            # the published pattern, ```sql\n([\s\S]*?)\n```, takes minutes on a long text of open blocks
            _, opened, rest = text.partition("```sql\n")
            block, closed, _ = rest.partition("\n```")
            if not (opened and closed):
                return Invalid("'Action: Operation' without a closed ```sql block")
            # the published parser joins the lines, so a `--` comment hides the rest; agents must learn that
            return Operation(block.strip().replace("\n", " "))
        answer = re.search(r"\nFinal Answer:(.*)", text)
        if answer is None:
            return Invalid("'Action: Answer' without a line 'Final Answer: ...'")
        return Answer(answer[1].strip())

    def write(self, action: Operation | Answer) -> str:
        if isinstance(action, Operation):
            return f"Action: Operation\n```sql\n{action.sql}\n```"
        return f"Action: Answer\nFinal Answer: {action.text}"


def _tool(name: str, does: str, argument: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a function with one argument."""
    parameters = {"type": "object", "properties": {argument: schema}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": does, "parameters": parameters}}


def _execute_sql(database: str) -> dict[str, Any]:
    does = f"Runs one SQL statement on the {database} and returns its rows or its error."
    return _tool("execute_sql", does, "query", {"type": "string", "description": "The SQL statement."})


_VALUES = {
    "type": "array",
    "items": {"type": "string"},
    "description": "The answer, each value or row as a string.",
}
EXECUTE_SQL = _execute_sql("MySQL database")
COMMIT_FINAL_ANSWER = _tool(
    "commit_final_answer",
    "Ends the session with the answer. After a change of the tables, any answer will do.",
    "answers",
    _VALUES,
)


@dataclass(frozen=True)
class ToolsProtocol(_BuiltIn):
    """The function-calling protocol of AgentBench FC.

    Reads the forms in which open models write tool calls (see `tool_calls`). Only the first call counts.
    """

    system_prompt: ClassVar[str] = TOOLS_SYSTEM_PROMPT
    name: ClassVar[str] = "tools"
    grader: ClassVar[str] = "agentbench_fc"
    tools: ClassVar[list[dict[str, Any]] | None] = [EXECUTE_SQL, COMMIT_FINAL_ANSWER]
    invalid_ends_episode: ClassVar[bool] = False
    observation_role: ClassVar[str] = "tool"

    def _own_prompt(self, task: Task) -> str:
        """Return the prompt, which asks for values or for rows, as the task's grader reads them."""
        own, grader = super()._own_prompt(task), self._judge_of(task)
        return own.replace(EACH_VALUE, EACH_ROW) if grader.rows else own

    def parse(self, text: str) -> Action:
        try:
            call = tool_call(after_thoughts(text), self.tools or ())
        except ValueError as error:
            return Invalid(f"Error: {error}")
        looking, ending = (tool["function"]["name"] for tool in self.tools or ())
        if call is None:
            return Invalid(f"Error: no tool call found. Call execute_sql or {ending}.")
        name, arguments = call
        if name == looking:
            query = arguments.get("query")
            if isinstance(query, str):
                return Operation(well_formed(query))
            return Invalid("Error: execute_sql needs the argument query, a string.")
        if name == ending:
            return self._answer(arguments)
        return Invalid(f"Error: unknown function {name!r}. Call execute_sql or {ending}.")

    def _answer(self, arguments: dict[str, Any]) -> Action:
        answers = as_list(arguments.get("answers"))  # some models encode it twice
        if isinstance(answers, list):
            values = tuple(well_formed(value_text(value)) for value in answers)
            return Answer(str(list(values)), values)
        return Invalid("Error: commit_final_answer needs the argument answers, an array of strings.")

    def write(self, action: Operation | Answer) -> dict[str, Any]:
        """Return the message of a tool call; the chat template formats it."""
        if isinstance(action, Operation):
            call = {"name": "execute_sql", "arguments": {"query": action.sql}}
        else:
            call = self._answer_call(action)
        return {"content": "", "tool_calls": [{"type": "function", "function": call}]}

    def _answer_call(self, action: Answer) -> dict[str, Any]:
        answers = [action.text] if action.values is None else list(action.values)
        return {"name": "commit_final_answer", "arguments": {"answers": answers}}


_LABEL = re.compile(
    r"\A(?:\w*?sql(?=(?:select|with|values|table|insert|update|delete)\b)|\w*sql\w*)", re.IGNORECASE
)
"""Labels that models write after the opening backticks of a block: `sql`, `sqlite3`, `postgresql`."""


def _without_marks_of_code(sql: str) -> str:
    """Return an SQL answer without a fence or backticks around it. No statement begins with a backtick."""
    sql = sql.strip()
    ticks = "`" * (len(sql) - len(sql.lstrip("`")))
    if len(ticks) < 3:
        return sql.removeprefix(ticks).rstrip(";").removesuffix(ticks).strip() if ticks else sql
    return _LABEL.sub("", sql.removeprefix("```").partition("```")[0]).strip()


@dataclass(frozen=True)
class TextSQLProtocol(TextProtocol):
    """The text protocol with SQL as the answer. An empty answer means the last statement executed."""

    system_prompt: ClassVar[str] = TEXT_SQL_SYSTEM_PROMPT
    name: ClassVar[str] = "text_sql"
    grader: ClassVar[str] = "strict"

    def parse(self, text: str) -> Action:
        action = super().parse(text)
        if not isinstance(action, Answer):
            return action
        answer = after_thoughts(text).partition("\nFinal Answer:")[2]
        before, fence, block = answer.partition("```")
        return Answer(_without_marks_of_code(fence + block if fence else before))

    def write(self, action: Operation | Answer) -> str:
        if isinstance(action, Operation):
            return super().write(action)
        return f"Action: Answer\nFinal Answer:\n```sql\n{action.text}\n```"


SUBMIT_SQL = _tool(
    "submit_sql",
    "Ends the session with the query whose rows are the answer.",
    "query",
    {"type": "string", "description": "The SQL query."},
)


@dataclass(frozen=True)
class ToolsSQLProtocol(ToolsProtocol):
    """The function-calling protocol with SQL as the answer."""

    system_prompt: ClassVar[str] = TOOLS_SQL_SYSTEM_PROMPT
    name: ClassVar[str] = "tools_sql"
    grader: ClassVar[str] = "strict"
    tools: ClassVar[list[dict[str, Any]] | None] = [_execute_sql("database"), SUBMIT_SQL]

    def _answer(self, arguments: dict[str, Any]) -> Action:
        query = arguments.get("query")
        if isinstance(query, str):
            return Answer(_without_marks_of_code(well_formed(query)))
        return Invalid("Error: submit_sql needs the argument query, a string.")

    def _answer_call(self, action: Answer) -> dict[str, Any]:
        return {"name": "submit_sql", "arguments": {"query": action.text}}


PROTOCOLS: dict[str, Callable[[int | None], AgentProtocol]] = {
    "text": TextProtocol,
    "tools": ToolsProtocol,
    "text_sql": TextSQLProtocol,
    "tools_sql": ToolsSQLProtocol,
}


def get_protocol(
    name: str, observation_characters: int | None = 800, grader: str | None = None
) -> AgentProtocol:
    """Return the protocol of that name, or your own class at that dotted path.

    Args:
        observation_characters: longer observations are cut; 0 or `None` cuts nothing.
        grader: judges all answers instead of the tasks' own graders; the built-in prompts ask for the form
            that it reads.

    Raises:
        ConfigError: if there is no such protocol, or it lacks a member of `AgentProtocol`.
    """
    protocol = look_up("protocol", name, PROTOCOLS)(observation_characters or None)
    if isinstance(protocol, _BuiltIn):
        protocol = replace(protocol, judged_by=grader)
    members = [member for member in vars(AgentProtocol) if not member.startswith("_")]
    if missing := [member for member in members if not hasattr(protocol, member)]:
        raise ConfigError(
            f"the protocol {name!r} lacks {', '.join(missing)}; see trl_dbbench.protocol.AgentProtocol."
        )
    return protocol


PRODUCTS = {"mysql": "MySQL", "sqlite": "SQLite"}
"""Names of the databases in system prompts, by a task's dialect."""
