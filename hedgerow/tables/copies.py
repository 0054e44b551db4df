"""Copies between a device and host memory, through memory that the device reaches by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.shapes import Int64
from .moving import MovingRows


def host_room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Host memory for what goes to this device or comes from it."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_host(*there: Tensor) -> list[Tensor]:
    """The same in host memory; waits for the device once."""
    if all(x.device.type == "cpu" for x in there):
        return list(there)
    here = [host_room(tuple(x.shape), x.dtype, x.device) for x in there]
    for target, source in zip(here, there, strict=True):
        target.copy_(source, non_blocking=True)
    for device in {x.device for x in there if x.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    return here


def in_host(rows: MovingRows) -> MovingRows:
    """Rows on their way, in host memory."""
    return MovingRows(*to_host(rows.ids, rows.found, rows.rows, rows.states, rows.ts))


def to_device(here: Tensor, device: torch.device) -> Tensor:
    """The same on a device; waits for nothing if it lies in `host_room`."""
    return here.to(device, non_blocking=True)


def numbers_on(numbers: Sequence[int], device: torch.device) -> Int64[Tensor, "n"]:
    """A few numbers on a device; waits for nothing."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # A graph would copy them again from memory that is another's by then: it sets them itself.
        there = torch.empty(len(numbers), dtype=torch.int64, device=device)
        for place, number in enumerate(numbers):
            there[place].fill_(number)
        return there
    here = torch.tensor(numbers)
    return to_device(here.pin_memory() if device.type == "cuda" else here, device)
