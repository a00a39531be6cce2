"""The parquet files that verl trains on, with the whole task in each row.

The columns follow verl's "Prepare Data for Post-Training"
(https://verl.readthedocs.io/en/latest/preparation/prepare_data.html): `data_source`, which chooses the reward
function; `prompt`, messages to which `RLHFDataset` (verl/utils/dataset/rl_dataset.py) applies the chat
template; `ability`; `reward_model` with `style` and `ground_truth`; and `extra_info`. `RLHFDataset` reads its
`index`, tools get its `tools_kwargs`, and the reward function gets the rest.

`extra_info.task` has the whole task, so nothing is lost, and reading a file only reads this field.
`tools_kwargs` repeats it, since tools get nothing else of a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.formats.base import WriteContext
from trl_dbbench.tasks.model import Task

if TYPE_CHECKING:
    import pyarrow

DATA_SOURCE = "trl_dbbench"
"""Value of verl's `data_source`, by which a reward function is chosen."""


class VerlFormat:
    name = "verl"
    suffix = ".parquet"

    def matches(self, entry: Mapping[str, Any]) -> bool:
        return "data_source" in entry and "reward_model" in entry

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        info = entry.get("extra_info")
        line = info.get("task") if isinstance(info, dict) else None
        if not isinstance(line, str):
            raise TaskError(
                "has no 'extra_info.task', which holds tables and gold in verl files made here; verl files "
                "of others have no tables to read."
            )
        return Task.from_json(line)

    def write(self, task: Task, context: WriteContext) -> dict[str, Any]:
        line = task.to_json()
        return {
            "data_source": DATA_SOURCE,
            "prompt": context.messages(task),
            "ability": "sql",
            "reward_model": {"style": "rule", "ground_truth": _ground_truth(task)},
            "extra_info": {
                "split": context.split,
                "index": context.index,
                "id": task.id,
                "operation": task.operation,
                "skills": list(task.skills),
                "task": line,
                "protocol": context.protocol,
                "tools_kwargs": {"task": line},
            },
        }

    def arrow_schema(self) -> pyarrow.Schema:
        import pyarrow as pa

        text = pa.string()
        info = {"split": text, "index": pa.int64(), "id": text, "operation": text, "skills": pa.list_(text)}
        info |= {"task": text, "protocol": text, "tools_kwargs": pa.struct({"task": text})}
        return pa.schema(
            {
                "data_source": text,
                "prompt": pa.list_(pa.struct({"role": text, "content": text})),
                "ability": text,
                "reward_model": pa.struct({"style": text, "ground_truth": text}),
                "extra_info": pa.struct(info),
            }
        )


def _ground_truth(task: Task) -> str:
    """Return the gold as JSON. verl passes it on unchanged, and Arrow needs one type for all rows."""
    fields = ("answer", "sql", "state_md5", "results", "grader")
    entry = task.to_entry()
    return json.dumps({key: entry[key] for key in fields if key in entry}, ensure_ascii=False)
