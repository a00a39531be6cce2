"""Marks of model families in a turn, which show where thoughts end and how tool calls are written.

| a call | as written by |
|---|---|
| `<tool_call>{"name": "f", "arguments": {...}}</tool_call>` | Qwen 2.5 and 3, Hermes, Granite 4 |
| `<function=f><parameter=key>value</parameter></function>` | Qwen 3.5, Nemotron 3, Seed-OSS |
| `<tool_call>f<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>` | GLM 4.5 and later |
| `<invoke name="f"><parameter name="key">value</parameter></invoke>` | MiniMax M2, Muse, DeepSeek V3.2 |
| `<|tool_call>call:f{key:<|"|>value<|"|>}<tool_call|>` | Gemma 4 |
| `<function=f>{...}</function>` | Llama 3.1's own |
| `[TOOL_CALLS] [{"name": "f", "arguments": {...}}]`, `[TOOL_CALLS]f[ARGS]{...}` | Mistral |
| `<|tool_call|>[{"name": "f", "arguments": {...}}]`, `functools[...]` | Granite 3, Phi-4-mini, and others |
| `<|START_ACTION|>[{"tool_name": "f", "parameters": {...}}]` | Command R7B and A |
| `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}` | Kimi K2 |
| `<|tool_call_start|>[f(key='value')]<|tool_call_end|>` | LFM2 |
| ` to=functions.f<|channel|>commentary json<|message|>{...}` | gpt-oss |
| `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f` and a fenced object | DeepSeek |
| `{"name": "f", "parameters": {...}}`, bare, in a list or in a fence | Llama 3.1 and 4, xLAM, and others |

Only the text is read, so saved turns need no tokenizer; no two families share a mark. Every reader takes time
linear in the text; TRL's response templates backtrack, and miss gpt-oss's own header.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trl_dbbench.utils.nesting import not_nested_deeply

THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)
"""Marks before and after a thought."""

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message with the model's thoughts, as templates and servers name them."""

_MESSAGE_START = "<|start|>"


def _thought(form: str) -> str:
    """Return the pattern of any family's thought, given its form with `{0}` and `{1}` for the marks."""
    return "|".join(form.format(*map(re.escape, marks)) for marks in THOUGHTS)


_TAIL = re.compile("(?:" + _thought(r"{0}\s*(?:{1}\s*)?") + rf"|{re.escape(_MESSAGE_START)}assistant)\Z")
_OWN_THOUGHTS = re.compile(r"(?:\s*+(?:" + _thought(r"{0}.*?(?:{1}|\Z)") + "))+", re.DOTALL)
"""The thoughts that a turn begins with."""

_EMPTY_THOUGHT = re.compile(r"\s*(?:" + _thought(r"{0}\s*{1}") + r")\s*")

Call = tuple[str, dict[str, Any]]
"""A function's name and its arguments."""


# --- thoughts -----------------------------------------------------------------------------------------


def split_prompt(prompt: str) -> tuple[str, str]:
    """Split off the start of the agent's turn at a prompt's end; it is usually empty.

    Otherwise it is an opened thought (`<think>`), an empty thought that switches thoughts off, or a message
    header (gpt-oss).
    """
    tail = _TAIL.search(prompt)
    return (prompt[: tail.start()], tail[0]) if tail else (prompt, "")


def after_thoughts(text: str) -> str:
    """Drop a reasoning model's thoughts, which may hold drafts of actions, and a message's header.

    A header that names a function stays.

    Args:
        text: a turn, including the part in the prompt. If its thought does not end, nothing is left.
    """
    if has_header(text):
        text = text.rpartition(_MESSAGE_START)[2]
        header, begun, body = text.partition("<|message|>")
        if not begun or _thinks(header):
            return ""
        text = text if "to=functions" in header else body
    return _split(text)[1].removesuffix("<|END_RESPONSE|>")  # Cohere's, before the token that ends the turn


def _split(text: str) -> tuple[str, str]:
    """Split a text without a header into its thoughts, with their marks, and the rest.

    An empty thought at its start, which switches thoughts off, is in neither. A mark after the turn's own
    thought is text, as in SQL.
    """
    if switched_off := _EMPTY_THOUGHT.match(text):
        text = text[switched_off.end() :]
    if own := _OWN_THOUGHTS.match(text):
        end = own.end()
    else:
        end = max(text.rfind(closed) + len(closed) if closed in text else 0 for _, closed in THOUGHTS)
    return text[:end], text[end:]


def _thinks(header: str) -> bool:
    """Return whether a message is a thought. A call never is, on whatever channel gpt-oss writes it."""
    return "to=functions" not in header and ("analysis" in header or "to=self" in header)


def thought_of(text: str) -> str:
    """Return a turn's thought, without the marks around it."""
    if has_header(text):
        messages = (message.partition("<|message|>") for message in text.split(_MESSAGE_START))
        return "\n".join(body.partition("<|end|>")[0] for header, _, body in messages if _thinks(header))
    thoughts, _ = _split(text)
    for opened, closed in THOUGHTS:
        thought, found, _ = thoughts.rpartition(closed)
        if found:
            return thought.strip().removeprefix(opened).strip()
    return ""


def without_marks(body: str) -> str:
    """Escape the closing tags, and the marks of thoughts and headers, in the texts of a JSON value."""
    for mark in ("</", _MESSAGE_START, *(mark for pair in THOUGHTS for mark in pair)):
        body = body.replace(mark, f"\\u{ord(mark[0]):04x}{mark[1:]}")
    return body


def has_header(text: str) -> bool:
    """Return whether a turn is written as messages with headers (gpt-oss, Muse Glimmer)."""
    return _MESSAGE_START in text


def has_thought(text: str) -> bool:
    """Return whether a turn has more than `after_thoughts` returns: a thought, perhaps an empty one."""
    if has_header(text):
        return text.count(_MESSAGE_START) > 1
    return after_thoughts(text).strip() != text.strip()


def well_formed(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can hold but no server or tokenizer accepts."""
    return text.encode("utf-8", "replace").decode("utf-8")


def end_thought(tail: str, turn: str) -> str:
    """Return a rendered turn as the agent must write it after a prompt that ends in `tail`."""
    for opened, closed in THOUGHTS:
        if opened in tail and closed not in tail:
            return f"\n{closed}\n\n{_EMPTY_THOUGHT.sub('', turn, count=1)}"
    return turn


# --- calls --------------------------------------------------------------------------------------------


def tool_call(text: str, tools: Sequence[dict[str, Any]]) -> Call | None:
    """Return the first tool call of a turn, with the name of the tool that it means; `None` if there is none.

    Args:
        text: a turn without its thoughts.
        tools: in OpenAI's form. Their schemas give the types of values between tags.

    Raises:
        ValueError: saying what is wrong with the call.
    """
    found = _first_call(text)
    if found is None:
        return None
    _, read, (name, arguments) = found
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    name = meant_tool(name, functions)
    if isinstance(read, _Tagged):
        schemas = _inside(_inside(functions.get(name), "parameters"), "properties")
        arguments = {key: _typed(value, _inside(schemas, key)) for key, value in arguments.items()}
    return name, arguments


def call_alone(text: str) -> str:
    """Return the first tool call of a turn, without the words around it; the whole text if it has none."""
    found = None
    with suppress(ValueError):
        found = _first_call(text)
    if found is None:
        return text
    call, end = text[found[0].start() :], "</tool_call>"
    return call.partition(end)[0] + end if call.startswith("<tool_call>") and end in call else call


def _first_call(text: str) -> tuple[re.Match[str], Callable[[re.Match[str], str], Call], Call] | None:
    """Return the mark of a turn's first call, the mark's reader, and the call; `None` if there is none."""
    marks = [(match, read) for mark, read in _FORMS if (match := mark.search(text))]
    marks.sort(key=lambda each: each[0].start())
    for match, read in marks:
        try:
            return match, read, read(match, text[match.end() :])
        except ValueError:  # generic JSON may be rows quoted before the call
            if match.re not in _GENERIC or match is marks[-1][0]:
                raise
    return None


def meant_tool(name: str, known: Collection[str]) -> str:
    """Return the tool that a call's name means, without the marks of the model's format.

    Examples: `functions.execute_sql`, `execute_sql:0`, `execute_sql<|channel|>commentary`,
    `mcp_db_execute_sql`, `executeSql`. An unknown or ambiguous name is returned unchanged.
    """
    if name in known:
        return name
    meant = sorted((tool for tool in known if _names(name, tool)), key=len)
    longest = meant[-1] if meant else name
    return longest if all(_names(longest, tool) for tool in meant) else name


def _names(name: str, tool: str) -> bool:
    """Return whether a name contains the tool's name as whole words, in whatever spelling."""
    letters = re.sub(r"[\W_]+", "", tool).casefold()
    words = _BETWEEN_WORDS.sub(" ", name).casefold()
    return re.search(rf"\b{' ?'.join(letters)}\b", words) is not None


_BETWEEN_WORDS = re.compile(
    r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\D)(?=\d)|(?<=\d)(?=\D)"
)


@dataclass(frozen=True)
class _Tagged:
    """Reader of calls whose arguments are texts between tags."""

    opened: re.Pattern[str]
    closed: str
    end: str = "</tool_call>"

    def __call__(self, mark: re.Match[str], rest: str) -> Call:
        arguments: dict[str, Any] = {}
        rest = rest.partition(self.end)[0]
        position = 0
        while tag := self.opened.search(rest, position):
            value_end = rest.find(self.closed, tag.end())
            if value_end < 0:
                raise ValueError(
                    f"the argument {tag[1].strip()} of the tool call does not end in {self.closed}."
                )
            arguments[tag[1].strip()] = rest[tag.end() : value_end].strip()
            position = value_end + len(self.closed)
        return mark["name"].strip(), arguments


def _typed(text: str, schema: Any) -> Any:
    """Return an argument in the type of its schema: the text itself, or the JSON value that it encodes.

    Without a type in the schema, only a JSON array or object is decoded.
    """
    types = _types(schema)
    if "string" in types and not (text == "null" and "null" in types):
        return text
    if types or text.startswith(("[", "{")):
        with suppress(ValueError, RecursionError):
            return not_nested_deeply(json.loads(text, strict=False))
        with suppress(*_NOT_PYTHON):
            return _literal(text)  # templates and models write Python too
    return text


def _literal(source: str | ast.expr) -> Any:
    """Return the value of a Python literal, in JSON's types. An expression may hold JSON's constants, too."""
    if isinstance(source, ast.expr):
        source = _Constants().visit(source)
    return not_nested_deeply(json.loads(json.dumps(ast.literal_eval(source))))


class _Constants(ast.NodeTransformer):
    """Replaces the names of JSON's constants, which LFM2's templates write within lists and objects."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        constants = {"true": True, "false": False, "null": None}
        return ast.Constant(constants[node.id]) if node.id in constants else node


_NOT_PYTHON = (ValueError, TypeError, AttributeError, LookupError, SyntaxError, RecursionError, MemoryError)
"""Errors of text that is not a Python literal or call."""


def _types(schema: Any) -> set[str]:
    """Return the types that a JSON schema allows; empty if it names none."""
    named = _inside(schema, "type")
    types = {each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)}
    ways = [_inside(schema, word) for word in ("anyOf", "oneOf")]
    return types.union(*(_types(each) for way in ways if isinstance(way, list) for each in way))


def _inside(schema: Any, key: str) -> Any:
    return schema.get(key) if isinstance(schema, dict) else None


def as_list(value: Any) -> Any:
    """Return the list that a JSON or Python text encodes; return anything else unchanged."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        for read in (json.loads, _literal):
            with suppress(*_NOT_PYTHON):
                return read(value.strip())
    return value


def _quoted(mark: re.Match[str], rest: str) -> Call:
    """Read a call of Gemma 4: JSON with bare keys and its own quotation marks."""
    texts = rest.partition("<tool_call|>")[0].split('<|"|>')
    between = (re.sub(r"\bNone\b(?!:)", "null", each) for each in texts[::2])  # its template writes None
    texts[::2] = [re.sub(r"(\w{1,64}):", r'"\1":', each) for each in between]
    texts[1::2] = map(json.dumps, texts[1::2])
    return mark["name"], as_arguments(_decoded("".join(texts)))


def _named(mark: re.Match[str], rest: str) -> Call:
    """Read a call whose name stands before its arguments, a JSON object."""
    return mark["name"], as_arguments(_decoded(rest))


def _whole(mark: re.Match[str], rest: str) -> Call:
    """Read a call that is a JSON object, or the first of an array of them."""
    if mark[0] == "<tool_call>":
        rest = rest.partition("</tool_call>")[0]
    call = _decoded(rest.strip())
    if isinstance(call, list) and call:
        call = call[0]
    name = call.get("name", call.get("tool_name")) if isinstance(call, dict) else None
    if not isinstance(name, str):
        raise ValueError('a tool call is an object like {"name": ..., "arguments": {...}}.')
    return name, as_arguments(call.get("arguments", call.get("parameters")))


_RAW_CALL = re.compile(r"\[?([\w.]{1,64})\((\w{1,64})='(.*)'\)\]?", re.DOTALL)


def _pythonic(mark: re.Match[str], rest: str) -> Call:
    """Read a call in Python (LFM2, Llama 4), or the first of a list. LFM2.5's template escapes no quotes."""
    text = re.split(r"<\|(?:tool_call|python)_end\|>", rest, maxsplit=1)[0].strip()
    with suppress(*_NOT_PYTHON):
        call: Any = ast.parse(text, mode="eval").body
        call = call.elts[0] if isinstance(call, ast.List) else call
        return ast.unparse(call.func), {word.arg: _literal(word.value) for word in call.keywords}
    if raw := _RAW_CALL.fullmatch(text):
        return raw[1], {raw[2]: raw[3]}
    raise ValueError("the tool call is not valid: write [name(key='value')].")


def _decoded(body: str) -> Any:
    try:
        # raw_decode, since models often write more after the call
        return not_nested_deeply(json.JSONDecoder(strict=False).raw_decode(body)[0])
    except RecursionError:
        raise ValueError("the tool call is not valid JSON: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"the tool call is not valid JSON: {error}") from None


def as_arguments(arguments: Any) -> dict[str, Any]:
    """Return a call's arguments, which some models encode twice or put into a list.

    Raises:
        ValueError: if they are not an object.
    """
    for _ in range(_LAYERS):
        if isinstance(arguments, str):
            with suppress(ValueError):
                arguments = _decoded(arguments.strip())
        elif isinstance(arguments, list) and len(arguments) == 1:
            arguments = arguments[0]
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a tool call must be a JSON object.")
    return arguments


_LAYERS = 4
"""Most layers of encoding or lists that are removed around a call's arguments."""

_PARAMETER = re.compile(r"<parameter=([^>\n]{1,64})>")

_NAME = r"(?P<name>[\w.-]{1,64})"

_GENERIC = (
    re.compile(r"```(?:json)?\s*(?=[\[{])"),
    re.compile(r"\A\s*+(?:<\|python_(?:tag|start|end)\|>\s*+)*+(?=\[?\s*+{)"),
    # after words, on a line of its own
    re.compile(r'^(?={\s*"name":\s*"[\w.-]{1,64}",\s*"(?:arguments|parameters)":)', re.MULTILINE),
)
"""Marks that belong to no family: the JSON after them may be a call or something else."""

# a mark, and the reader of the text after it; the first of two marks at the same place wins
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], Call]], ...] = (
    (
        re.compile(r"<tool_call>\s*<function=(?P<name>[^>\n]{1,64})>"),
        _Tagged(_PARAMETER, "</parameter>"),
    ),
    # some models leave out the first tag
    (
        re.compile(r"<function=(?P<name>[^>\n]{1,64})>(?=\s*<(?:parameter=|/function>))"),
        _Tagged(_PARAMETER, "</parameter>", "</function>"),
    ),
    (
        re.compile(rf"<tool_call>\s*(?!\d+\s*</){_NAME}\s*(?=<arg_key>|</tool_call>)"),
        _Tagged(re.compile(r"<arg_key>([^<]{1,64})</arg_key>\s*<arg_value>"), "</arg_value>"),
    ),
    *(
        (
            re.compile(rf'<{prefix}invoke name="(?P<name>[^"\n]{{1,64}})">'),
            _Tagged(
                re.compile(rf'<{prefix}parameter name="([^"\n]{{1,64}})"[^>\n]{{0,32}}>'),
                f"</{prefix}parameter>",
                f"</{prefix}invoke>",
            ),
        )
        for prefix in ("", "atem:", "｜DSML｜")
    ),
    *(
        (re.compile(mark), _named)
        for mark in (
            rf"<function={_NAME}>?\s*(?={{)",  # some models leave out the bracket
            rf"\[TOOL_CALLS\]\s*{_NAME}(?:\[CALL_ID\]\w{{1,64}})?(?:\[ARGS\]|(?={{))",
            # a recipient may stand before the channel or after it
            rf"to=functions\.{_NAME}(?:<\|channel\|>\w{{1,32}})?\s*(?:<\|constrain\|>)?\w{{0,32}}<\|message\|>",
            rf"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{_NAME}\s*```json\s*",
            rf"<｜tool▁call▁begin｜>{_NAME}<｜tool▁sep｜>",
            r"<\|tool_call_begin\|>\s*(?P<name>[\w.:-]{1,64})\s*<\|tool_call_argument_begin\|>",
        )
    ),
    (re.compile(rf"<\|tool_call>call:{_NAME}"), _quoted),
    (re.compile(r"<\|tool_call_start\|>(?=\s*+\[?\s*+\w)"), _pythonic),
    (
        re.compile(r"\A\s*+(?:<\|python_start\|>\s*+)?(?=\[[a-zA-Z_][\w.]{0,63}\((?:\w{1,64}=|\)[\],]))"),
        _pythonic,
    ),
    (
        re.compile(
            r"<tool_call>|<TOOLCALL>|\[TOOL_CALLS\]|<\|tool_call\|>|functools(?=\[)"
            r"|<\|START_ACTION\|>|<\|tool_call_start\|>|<tool_calls>(?=\s*\[)|<\|plugin\|>"
            r"|<tools>(?=\s*[\[{])|<\|python_tag\|>(?=\s*[\[{])"
        ),
        _whole,
    ),
    *((mark, _whole) for mark in _GENERIC),
)
