"""The makers of the tiny models' worlds: tasks, a model of random weights, and a warm start on a teacher's answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM
from worlds import make

from trl_dbbench.tasks import load_tasks


@pytest.mark.slow
@pytest.mark.parametrize("name", make.WORLDS)
def test_a_world_is_made_anew(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["make.py"])
    for count, value in (("TRAIN", 6), ("TEST", 3)):
        monkeypatch.setattr(make, count, value)
    monkeypatch.setitem(make.WORLDS, name, replace(make.WORLDS[name], demonstrations=10))
    make.main(name, "--max_steps", "1", "--per_device_train_batch_size", "2", "--max_length", "2048")
    folder = make.WORLDS[name].folder
    assert [len(load_tasks(folder / f"{split}.jsonl")) for split in ("train", "test")] == [6, 3]
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert model.config.num_hidden_layers == make.WORLDS[name].num_layers
