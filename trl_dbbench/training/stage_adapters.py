"""An adapter for each stage of a stream, so that a later stage overwrites nothing of an earlier one.

```
stage_adapters  one      one adapter, trained on from stage to stage
                each     each stage trains an adapter of its own from the run's start; an evaluation plays
                         a task with the adapter of its stage
                linear, ties, dare_linear
                         the same, and an evaluation plays all tasks with the stages' adapters merged
```

A task of a stage that is still to come is played by the latest adapter. The merges are PEFT's
(`add_weighted_adapter`): the mean of the two factors, A and B; TIES (Yadav et al., 2023), which keeps the
largest weights and those that agree in sign; DARE (Yu et al., 2024), which drops weights at random and
scales up the rest. Checkpoints keep the adapters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from transformers import SchedulerType
from trl import GRPOTrainer

from trl_dbbench.advantages.gradients import check_whole_weights
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks.stages import kind_of
from trl_dbbench.training.kl import of_adapter

Weights = dict[str, torch.Tensor]

MERGES = ("linear", "ties", "dare_linear")
WAYS = ("one", "each", *MERGES)

MAX_NAME = 60
"""Characters of a stage in the name of its folder."""

DENSITY = 0.5
"""Share of the weights that TIES and DARE keep, as in PEFT's examples."""


def check_stage_adapters(args: Any) -> None:
    """Raise ConfigError for settings that an adapter for each stage excludes."""
    if args.stage_adapters == "one":
        return
    if args.stage_adapters == "each" and args.stream and kind_of(args.stream)[0] == "file":
        raise ConfigError(
            "stage_adapters: each plays a held-out task with the adapter of its stage, and with stream: file "
            "it belongs to none. Set a merge, as stage_adapters: ties, or leave it out."
        )
    schedule = SchedulerType(args.lr_scheduler_type).value
    if not schedule.startswith("constant"):
        raise ConfigError(
            f"stage_adapters: {args.stage_adapters} trains each stage anew, and lr_scheduler_type: "
            f"{schedule} leaves the last ones next to no learning rate; set lr_scheduler_type: constant."
        )


class StageAdapters:
    """The adapters of the stages that have ended, beside the one that is trained.

    Raises:
        ConfigError: if there is no LoRA adapter, or ranks share its weights.
    """

    changes_within_a_step = False

    def __init__(self, trainer: GRPOTrainer, way: str):
        config = trainer.model.peft_config["default"] if isinstance(trainer.model, PeftModel) else None
        if not isinstance(config, LoraConfig):
            raise ConfigError(f"stage_adapters: {way} needs LoRA; set use_peft: true, or leave it out.")
        if way in MERGES and config.modules_to_save:
            raise ConfigError(
                f"stage_adapters: {way} merges LoRA alone, and lora_modules_to_save trains "
                f"{', '.join(config.modules_to_save)} whole; leave one of them out, or set each."
            )
        if way in MERGES and config.use_dora:
            raise ConfigError(f"stage_adapters: {way} cannot merge DoRA; set each, or leave use_dora out.")
        if way in MERGES and config.target_parameters:
            named = ", ".join(config.target_parameters)
            raise ConfigError(
                f"stage_adapters: {way}: PEFT cannot merge adapters of {named}, which are no linear layers "
                "(all-linear takes the experts of a mixture too). Set each, or name linear layers by "
                "lora_target_modules: [q_proj, v_proj]."
            )
        check_whole_weights(trainer, f"stage_adapters: {way}")
        self._trainer, self._way = trainer, way
        self._start = self._copy()
        self._ended: list[Weights] = []
        self._merged: Weights | None = None
        self._trains = False  # whether the stage under way has had an update

    def _trained(self) -> Mapping[str, torch.nn.Parameter]:
        return {name: p for name, p in self._trainer.model.named_parameters() if p.requires_grad}

    def _copy(self) -> Weights:
        # kept in main memory: a stream may have many stages
        return {name: weight.detach().to("cpu", copy=True) for name, weight in self._trained().items()}

    @torch.no_grad()
    def _put(self, weights: Weights) -> None:
        # in place, and not by `.data`: engines look at the weights' versions
        for name, weight in self._trained().items():
            weight.copy_(weights[name])

    def note_update(self) -> None:
        self._trains = True

    def end_stage(self, last: bool) -> None:
        """Keep the stage's adapter. The next stage starts from the run's start, with a new optimizer's state.

        Args:
            last: no stage follows. The trained adapter stays, or becomes the merged one, to be saved.
        """
        self._ended.append(self._copy())
        self._trains = False
        if self._way in MERGES:
            self._merged = self._merge()
        if not last:
            self._put(self._start)
            for weight in self._trained().values():  # a critic's moments stay, as its weights do
                self._trainer.optimizer.state.pop(weight, None)
        elif self._merged is not None:
            self._put(self._merged)

    def _merge(self) -> Weights:
        model = self._trainer.model
        names = [f"stage-{number}" for number in range(len(self._ended))]
        for name, weights in zip(names, self._ended, strict=True):
            model.add_adapter(name, model.peft_config["default"])
            for of_default, weight in weights.items():
                model.get_parameter(of_adapter(of_default, name)).data.copy_(weight)
        options = {} if self._way == "linear" else {"density": DENSITY}
        # PEFT multiplies the factors by the roots of their weights and sums; its TIES takes the mean itself
        weights_of = [1.0 if self._way == "ties" else len(names) ** -2] * len(names)
        device = self._trainer.accelerator.device
        used = [] if device.type == "cpu" else [device]
        with torch.random.fork_rng(used, device_type=device.type):  # the training's draws stay as they are
            torch.manual_seed(self._trainer.args.seed)
            model.add_weighted_adapter(names, weights_of, "merged", combination_type=self._way, **options)
        merged = {}
        for name in self._start:
            # PEFT puts the scaling of the adapters into the merged one's two factors, half into each
            scaling = model.get_submodule(name.partition(".lora_")[0]).scaling["default"]
            weight = model.get_parameter(of_adapter(name, "merged"))
            merged[name] = weight.detach().to("cpu", copy=True) / math.sqrt(scaling)
        for name in (*names, "merged"):
            model.delete_adapter(name)
        model.set_adapter("default")
        return merged

    @contextmanager
    def playing(self, stage: int | None) -> Iterator[None]:
        """Put the adapter that plays held-out tasks of a stage, `None` for tasks of no stage, in the place of
        the trained one."""
        chosen = self._adapter_of(stage)
        if chosen is None:
            yield
            return
        before = self._copy()
        self._put(chosen)
        try:
            yield
        finally:
            self._put(before)

    def _adapter_of(self, stage: int | None) -> Weights | None:
        """Return the weights of the adapter for a stage; `None` for those that are trained."""
        if not self._ended or (self._trains and (stage is None or stage >= len(self._ended))):
            return None
        if self._merged is not None:
            return self._merged
        return self._ended[stage] if stage is not None and stage < len(self._ended) else self._ended[-1]

    def save(self, folder: Path, names: Sequence[str]) -> None:
        """Save the adapter of each stage as a folder of its own.

        Args:
            names: of the stages; a path counts by its file, and a long name by its beginning.
        """
        before = self._copy()
        for number, (name, weights) in enumerate(zip(names, self._ended, strict=True), 1):
            self._put(weights)
            own = folder / f"{number}-{Path(name).name[:MAX_NAME]}"
            self._trainer.model.save_pretrained(own, selected_adapters=["default"])
        self._put(before)

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start, "ended": self._ended, "merged": self._merged, "trains": self._trains}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start, self._ended = state["start"], state["ended"]
        self._merged, self._trains = state["merged"], state["trains"]
