"""Copies of whole rows and of small values between host memory and a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class MovingRows:
    """Rows as they lie in memory: nothing is checked, so that nothing can be refused.

    >>> ids = torch.tensor([7, 8])
    >>> two = MovingRows(ids, ids > 0, torch.ones(2, 1), torch.zeros(2, 0), ids)
    >>> two.where(ids == 8).ids.tolist(), len(MovingRows.joined([two, two]))
    ([8], 4)
    """

    ids: Int64[Tensor, "n"]
    found: Bool[Tensor, "n"]
    rows: Float32[Tensor, "n dim"]
    states: Float32[Tensor, "n floats"]  # of all segments, raw
    ts: Int64[Tensor, "n"]

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, chosen: Bool[Tensor, "n"]) -> MovingRows:
        """Some of them."""
        parts = (self.ids, self.found, self.rows, self.states, self.ts)
        return MovingRows(*(part[chosen] for part in parts))

    def to(self, device: torch.device | str) -> MovingRows:
        """The same rows on another device, or themselves."""
        parts = (self.ids, self.found, self.rows, self.states, self.ts)
        return MovingRows(*(part.to(device) for part in parts))

    @staticmethod
    def joined(parts: Sequence[MovingRows]) -> MovingRows:
        """Several as one, in their order."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*((p.ids, p.found, p.rows, p.states, p.ts) for p in parts), strict=True)
        return MovingRows(*(torch.cat(column) for column in columns))


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
