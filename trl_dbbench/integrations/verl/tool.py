"""Tools for verl's `ToolAgentLoop`, as verl 0.9 calls them; docs/integrations.md shows their configuration.

verl creates and releases a tool for each call, so the episode belongs to the trajectory's `agent_data`: the
first call begins it, and it ends with its answer, at the limit on calls, or when verl drops `agent_data`. Its
state is noted in `agent_data.extra_fields`, where `reward.compute_score` reads it.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from contextlib import suppress
from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from trl_dbbench.episode.protocol import AgentProtocol, get_protocol
from trl_dbbench.episode.types import Episode, Rules, Start, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.integrations.calls import OVER, Calls, Refused, play_calls
from trl_dbbench.integrations.endpoints.messages import Call
from trl_dbbench.integrations.verl.reward import PLAYED, failed, opened, standing
from trl_dbbench.tasks import Task
from trl_dbbench.utils.lookup import check_choice

SETTINGS = ("type", "tool", "database", "protocol", "max_turns", "observation_characters")


_Playing = tuple[Calls, asyncio.Task[Episode]]

_PLAYING: weakref.WeakKeyDictionary[Any, _Playing] = weakref.WeakKeyDictionary()
"""`agent_data` -> its episode, which all tools of the trajectory share."""

_RUNNING: set[asyncio.Task[Episode]] = set()  # an event loop holds its tasks weakly


class DatabaseTool(BaseTool):
    """Tool of a protocol.

    Args:
        config: `tool`, its name; `database`; `protocol`, `tools` (default) or `tools_sql`; `max_turns`, the
            calls of an episode (default: 3); `observation_characters`, beyond which results are cut (default:
            800; 0 cuts nothing). All tools of a training share these settings except `tool`.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        for name in config:
            check_choice("setting of a DatabaseTool", name, SETTINGS)
        characters = config.get("observation_characters", 800)
        self._protocol = get_protocol(config.get("protocol", "tools"), characters)
        self._rules = Rules(max_turns=config.get("max_turns", Rules.max_turns))
        self._database, self._judge = opened(config.get("database"))
        super().__init__(config, tool_schema or _schema(self._protocol, config.get("tool")))

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], *, agent_data: Any, **others: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Play a call as the trajectory's next turn. The reward function scores the episode."""
        try:
            calls, playing = _PLAYING.get(agent_data) or self._begin(agent_data)
            if not playing.done():
                with suppress(Refused):  # another call has ended the episode meanwhile
                    # the model's arguments, which need not be an object
                    call = Call("", self.name, json.dumps(parameters, ensure_ascii=False))
                    came = await calls.call(call.text())
                    if isinstance(came, Turn):
                        agent_data.extra_fields[PLAYED] = standing(None)
                        return ToolResponse(text=came.observation), 0.0, {}
            ended = await playing
        except Exception as error:
            # verl shows the error to the model and continues
            agent_data.extra_fields[PLAYED] = failed(f"the tool {self.name} failed: {error!r}")
            raise
        agent_data.extra_fields[PLAYED] = standing(ended)
        return ToolResponse(text=OVER[ended.status]), 0.0, {}

    def _begin(self, agent_data: Any) -> _Playing:
        line = agent_data.tools_kwargs.get("task")
        if not isinstance(line, str):
            raise ConfigError(
                "the row has no 'extra_info.tools_kwargs.task': write the parquet again with `trl-dbbench "
                "convert`."
            )
        start = Start(Task.from_json(line), [])
        self._judge.check_task(start.task, self._protocol)
        calls = Calls(self._protocol)
        episode = asyncio.create_task(play_calls(start, calls, self._database, self._judge, self._rules))
        _RUNNING.add(episode)
        episode.add_done_callback(_RUNNING.discard)
        loop = asyncio.get_running_loop()
        leaving = weakref.finalize(agent_data, lambda: loop.call_soon_threadsafe(calls.leave))
        leaving.atexit = False  # its loop is closed by then
        _PLAYING[agent_data] = calls, episode
        return _PLAYING[agent_data]


def _schema(protocol: AgentProtocol, name: str | None) -> OpenAIFunctionToolSchema:
    tools = {tool["function"]["name"]: tool for tool in protocol.tools or ()}
    check_choice(f"tool of the protocol {protocol.name!r}", name, tools)
    return OpenAIFunctionToolSchema.model_validate(tools[name])
