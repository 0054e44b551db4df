"""Pins the host tensors that torch's factories make, so that copies to a GPU need no staging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_FACTORIES = frozenset(
    {
        *(torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones),
        *(torch.rand, torch.randint, torch.randn, torch.randperm, torch.tensor, torch.zeros),
    }
)


class PinnedTensors(TorchFunctionMode):
    """Tensors that torch's factories make in host memory are pinned, unless the call decides.

    Results of other operations are as always. It needs CUDA, and holds for the thread that
    enters it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Adds `pin_memory=True` to the calls of factories."""
        given = dict(kwargs or {})
        if func in _FACTORIES and _in_host_memory(given):
            given.setdefault("pin_memory", True)
        return func(*args, **given)


def _in_host_memory(given: Mapping[str, Any]) -> bool:
    device = given.get("device")
    place = torch.get_default_device() if device is None else torch.device(device)
    dense = given.get("layout") in (None, torch.strided)
    return place.type == "cpu" and dense and given.get("out") is None


def pin_new_tensors() -> None:
    """Pins from now on in this thread; a second call changes nothing."""
    if not any(isinstance(mode, PinnedTensors) for mode in _entered()):
        PinnedTensors().__enter__()


def _entered() -> list[Any]:
    from torch.overrides import _get_current_function_mode_stack

    return _get_current_function_mode_stack()
