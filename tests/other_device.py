"""A second device where there is none: tensors that say that they lie elsewhere and, as a GPU's would, refuse to be
computed with the CPU's. Behind each is a tensor of the CPU, with which the work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

CPU = torch.device("cpu")
ELSEWHERE = torch.device("meta")  # of those that are not the CPU, the one that every build of PyTorch knows
MOVES = {"aten::to", "aten::_to_copy", "aten::copy_"}
TAKES_INDICES = {"aten::index", "aten::index_put_"}  # which a GPU takes from the CPU, too


class Elsewhere(torch.Tensor):
    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Elsewhere:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=ELSEWHERE
        )

    def __init__(self, held: torch.Tensor):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})

    def tolist(self) -> Any:
        return self.held.tolist()


class Anywhere(TorchDispatchMode):
    """For what makes new tensors, of none that is elsewhere."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


def compute(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    name = function._schema.name
    given = [each for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)]
    device = next((each for each in tree_iter((args, kwargs)) if isinstance(each, torch.device)), None)
    elsewhere = any(isinstance(each, Elsewhere) for each in given)
    if elsewhere and name not in MOVES:
        asked = [args[0], *args[2:]] if name in TAKES_INDICES else given
        here = [
            tuple(each.shape)
            for each in tree_iter(asked)
            if isinstance(each, torch.Tensor) and not isinstance(each, Elsewhere) and each.dim()
        ]
        assert not here, f"{name} mixes devices: {here} on the CPU"
    summed = elsewhere and name == "aten::cumsum" and args[0].is_floating_point()
    assert not (summed and torch.are_deterministic_algorithms_enabled()), "a GPU has no deterministic cumsum"
    args, kwargs = tree_map_only(Elsewhere, lambda each: each.held, (args, kwargs))
    args, kwargs = tree_map_only(torch.device, lambda _: CPU, (args, kwargs))
    result = function(*args, **kwargs)
    if name.endswith("_") and not name.endswith("__"):  # in place
        return given[0]
    if device is not None:
        elsewhere = device.type == ELSEWHERE.type
    return tree_map_only(torch.Tensor, Elsewhere, result) if elsewhere else result


def move(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(Elsewhere(parameter.detach()), requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, Elsewhere(buffer))
    return model


@contextmanager
def another_device() -> Iterator[Callable[[torch.nn.Module], torch.nn.Module]]:
    """What is made meanwhile may be asked for elsewhere; gives what moves a model there."""
    usual = torch.tensor

    def tensor(data: Any, *, device: torch.device = CPU, **kwargs: Any) -> torch.Tensor:
        made = usual(data, **kwargs)
        return Elsewhere(made) if device.type == ELSEWHERE.type else made

    with pytest.MonkeyPatch.context() as patch, Anywhere():
        patch.setattr(torch, "tensor", tensor)  # the one maker that does not ask modes
        yield move
