"""One adapter per stage of a stream, so that a later stage overwrites nothing of an earlier one.

```
stage_adapters  one      one adapter, trained further from stage to stage
                each     each stage trains its own adapter from the run's initial weights; an evaluation
                         plays a task with the adapter of its stage
                linear, ties, dare_linear
                         the same training; an evaluation plays all tasks with the stages' adapters merged
```

A task of a future stage is played with the latest adapter. The merges are PEFT's (`add_weighted_adapter`):
linear averages each of the two factors, A and B; TIES (Yadav et al., 2023) keeps the largest weights and
those that agree in sign; DARE (Yu et al., 2024) drops weights at random and scales up the rest. Checkpoints
keep the adapters.
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
"""Maximum number of characters of a stage's name in its folder's name."""

DENSITY = 0.5
"""Share of weights that TIES and DARE keep, as in PEFT's examples."""


def check_stage_adapters(args: Any) -> None:
    """Raise ConfigError for settings that exclude an adapter per stage."""
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
    """Adapters of the stages that have ended, kept beside the trained one.

    Raises:
        ConfigError: if the model has no LoRA adapter, or ranks divide its weights.
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
        self._trains = False  # whether the current stage has had an update

    def _trained(self) -> Mapping[str, torch.nn.Parameter]:
        return {name: p for name, p in self._trainer.model.named_parameters() if p.requires_grad}

    def _copy(self) -> Weights:
        # in main memory, since a stream may have many stages
        return {name: weight.detach().to("cpu", copy=True) for name, weight in self._trained().items()}

    @torch.no_grad()
    def _put(self, weights: Weights) -> None:
        # in place, but not through `.data`: engines check the weights' version counters
        for name, weight in self._trained().items():
            weight.copy_(weights[name])

    def note_update(self) -> None:
        self._trains = True

    def end_stage(self, last: bool) -> None:
        """Keep the stage's adapter. The next one starts from the run's first weights and a fresh optimizer.

        Args:
            last: whether no stage follows. Then the trained adapter stays as it is, or is replaced by the
                merged one, so that this is saved.
        """
        self._ended.append(self._copy())
        self._trains = False
        if self._way in MERGES:
            self._merged = self._merge()
        if not last:
            self._put(self._start)
            for weight in self._trained().values():  # a critic keeps its weights and moments
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
        # PEFT sums the factors, times the roots of these weights; its TIES averages by itself
        weights_of = [1.0 if self._way == "ties" else len(names) ** -2] * len(names)
        device = self._trainer.accelerator.device
        used = [] if device.type == "cpu" else [device]
        with torch.random.fork_rng(used, device_type=device.type):  # training's random draws do not change
            torch.manual_seed(self._trainer.args.seed)
            model.add_weighted_adapter(names, weights_of, "merged", combination_type=self._way, **options)
        merged = {}
        for name in self._start:
            # PEFT multiplies the root of the adapters' scaling into each of the merged one's two factors
            scaling = model.get_submodule(name.partition(".lora_")[0]).scaling["default"]
            weight = model.get_parameter(of_adapter(name, "merged"))
            merged[name] = weight.detach().to("cpu", copy=True) / math.sqrt(scaling)
        for name in (*names, "merged"):
            model.delete_adapter(name)
        model.set_adapter("default")
        return merged

    @contextmanager
    def playing(self, stage: int | None) -> Iterator[None]:
        """Replace the trained adapter, during the block, by the one that plays a stage's held-out tasks.

        `stage` is `None` for tasks that belong to no stage.
        """
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
        """Return the weights of a stage's adapter; `None` for the trained ones."""
        if not self._ended or (self._trains and (stage is None or stage >= len(self._ended))):
            return None
        if self._merged is not None:
            return self._merged
        return self._ended[stage] if stage is not None and stage < len(self._ended) else self._ended[-1]

    def save(self, folder: Path, names: Sequence[str]) -> None:
        """Save the adapter of each stage in its own folder.

        Args:
            names: names of the stages; of a path only the file's name is used, and long names are cut.
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
