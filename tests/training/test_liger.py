"""`use_liger_kernel`: Liger's kernels for layers are used in rollouts and updates; its losses are not.

Its kernels need a GPU, so a stand-in takes its place here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from launching import QUICKSTART, RECIPE, SMALL, run_here
from training import quickstart_trainer
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

pytestmark = pytest.mark.filterwarnings("ignore:.*use_liger_kernel=True.* is deprecated")


class Liger(ModuleType):
    """Patches the norms of a model, as `liger_kernel.transformers` does."""

    def __init__(self) -> None:
        super().__init__("liger_kernel.transformers")
        self.asked: dict[str, bool] = {}
        self.trained = self.played = 0

    def _apply_liger_kernel_to_instance(self, model: torch.nn.Module, **kernels: bool) -> None:
        self.asked = kernels

        def norm(module: Qwen2RMSNorm, states: torch.Tensor) -> torch.Tensor:
            self.trained += torch.is_grad_enabled()
            self.played += not torch.is_grad_enabled()
            return Qwen2RMSNorm.forward(module, states)

        for module in model.modules():
            if isinstance(module, Qwen2RMSNorm):
                module.forward = norm.__get__(module)


@pytest.mark.slow
def test_layers_are_ligers_and_the_loss_is_trls(monkeypatch, sqlite_database, tmp_path):
    liger = Liger()
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", liger)
    monkeypatch.setattr("transformers.integrations.liger.is_liger_kernel_available", lambda: True)

    def train(name: str, **settings: Any) -> tuple[float, float]:
        trainer = quickstart_trainer(sqlite_database, tmp_path / name, lora=True, max_steps=1, **settings)
        shared: list[bool] = []
        score = trainer.sharing.score
        trainer.sharing.score = lambda *batch: [result := score(*batch), shared.append(result is not None)][0]
        trainer.train()
        assert shared and all(shared), "prompts are computed once, with Liger too"
        return trainer.state.log_history[0]["loss"], trainer.state.log_history[0]["grad_norm"]

    without = train("without")
    assert not liger.asked
    assert train("with", use_liger_kernel=True) == pytest.approx(without, rel=1e-6)
    assert liger.asked == {"fused_linear_cross_entropy": False}
    assert liger.trained and liger.played


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.integrations.liger.is_liger_kernel_available", lambda: False)
    options = ["--use_liger_kernel", "true", "--max_steps", 1, "--output_dir", tmp_path]
    with pytest.raises(
        SystemExit, match=r"^error: .* is not available. Please install it with `pip install liger-kernel`"
    ):
        run_here(monkeypatch, RECIPE, "--config", QUICKSTART, *SMALL, *options)
