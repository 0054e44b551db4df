"""A guard that makes waiting for a device an error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def _tensors(args: Any) -> list[torch.Tensor]:
    if isinstance(args, list | tuple):
        return [x for part in args for x in _tensors(part)]
    return [args] if isinstance(args, torch.Tensor) else []


class _NoHost(TorchDispatchMode):
    """Stands in for a device: what would have to wait for one is an error."""

    WAITING = (
        "_local_scalar_dense",
        "nonzero",
        "_unique",
        "unique",
        "masked_select",
        "is_nonzero",
        "equal",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not any(name.startswith(word) for word in self.WAITING), f"{name} waits"
        if name.startswith("index"):
            assert not any(x.dtype == torch.bool for x in _tensors(args[1:])), f"{name} waits"
        return func(*args, **(kwargs or {}))


@contextmanager
def without_waiting(device: torch.device) -> Iterator[None]:
    """What would wait for `device` raises; on the CPU, what would wait if it were a device."""
    if device.type == "cpu":
        with _NoHost():
            yield
        return
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the guard may miss something
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
