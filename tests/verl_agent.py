"""Trajectories of verl's own agent loop and reward manager, for the Python of an environment that has verl.

Reads `{"parquet": path, "tools": path, "cache": path, "database": spec, "calls": [...]}` from standard input: for each row the calls
of a trajectory, `[name, arguments]`. Writes what each call gave and what the reward manager says, or its error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.agent_loop.tool_agent_loop import AgentData, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.tools.tool_registry import initialize_tools_from_config
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.utils.dataset.rl_dataset import RLHFDataset


class Loop(ToolAgentLoop):
    """verl's loop without the part that asks a model."""

    def __init__(self, tools: list[Any]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.max_tool_response_length, self.tool_response_truncate_side = 1000, "middle"


class NoTokens:
    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return "I give up."


async def trajectory(loop: Loop, manager: Any, row: dict[str, Any], calls: list[list[Any]]) -> dict[str, Any]:
    data = AgentData([], [], [], None, None, {}, "request", row["tools_kwargs"])
    texts = []
    for name, arguments in calls:
        called = FunctionCall(name=name, arguments=json.dumps(arguments))
        response, *_ = await loop._call_tool(called, data.tools_kwargs, data)
        texts.append(response.text)
    ids = torch.ones(1, 1, dtype=torch.long)
    fields = {name: row[name] for name in ("data_source", "reward_model", "extra_info")}
    fields |= {"tool_extra_fields": data.extra_fields}
    batch = DataProto.from_dict(
        {"responses": ids, "attention_mask": ids},
        non_tensors={name: np.array([value], dtype=object) for name, value in fields.items()},
    )
    try:
        scored = await manager.run_single(batch)
    except Exception as error:
        return {"texts": texts, "error": repr(error)}
    return {"texts": texts, "score": scored["reward_score"], "acc": scored["reward_extra_info"]["acc"]}


async def main(asked: dict[str, Any]) -> list[dict[str, Any]]:
    rows = RLHFDataset(
        asked["parquet"],
        None,
        OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": asked["cache"]}),
    )
    reward = {
        "path": "pkg://trl_dbbench.integrations.verl.reward",
        "name": "compute_score",
        "reward_kwargs": {"database": asked["database"]},
    }
    config = OmegaConf.create({"reward": {"custom_reward_function": reward}})
    manager = NaiveRewardManager(config, NoTokens(), get_custom_reward_fn(config))
    loop = Loop(initialize_tools_from_config(asked["tools"]))
    played = [await trajectory(loop, manager, rows[n], calls) for n, calls in enumerate(asked["calls"])]
    from trl_dbbench.integrations.verl import tool

    for _ in range(200):
        if not tool._RUNNING:
            break
        await asyncio.sleep(0.05)
    return [*played, {"open": len(tool._RUNNING)}]


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # verl prints
        came = asyncio.run(main(json.load(sys.stdin)))
    print(json.dumps(came))
