"""Whole rows on their way between stores, and copies between host memory and a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class MovingRows:
    """Whole rows as they are stored, with raw states and stamps. Their values are not checked.

    >>> ids = torch.tensor([7, 8])
    >>> two = MovingRows(ids, ids > 0, torch.ones(2, 1), torch.zeros(2, 0), ids)
    >>> two.where(ids == 8).ids.tolist(), len(MovingRows.joined([two, two]))
    ([8], 4)
    """

    ids: Int64[Tensor, "n"]
    found: Bool[Tensor, "n"]
    rows: Float32[Tensor, "n dim"]
    states: Float32[Tensor, "n floats"]  # raw states of all segments
    ts: Int64[Tensor, "n"]

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, chosen: Bool[Tensor, "n"]) -> MovingRows:
        """Returns the chosen rows."""
        parts = (self.ids, self.found, self.rows, self.states, self.ts)
        return MovingRows(*(part[chosen] for part in parts))

    def to(self, device: torch.device | str) -> MovingRows:
        """Returns the same rows on another device; tensors already there are not copied."""
        parts = (self.ids, self.found, self.rows, self.states, self.ts)
        return MovingRows(*(part.to(device) for part in parts))

    @staticmethod
    def joined(parts: Sequence[MovingRows]) -> MovingRows:
        """Concatenates several into one, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*((p.ids, p.found, p.rows, p.states, p.ts) for p in parts), strict=True)
        return MovingRows(*(torch.cat(column) for column in columns))


def host_room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns host memory for copies to or from this device; pinned if the device is a GPU."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_host(*there: Tensor) -> list[Tensor]:
    """Returns the same tensors in host memory; waits for the device once."""
    if all(x.device.type == "cpu" for x in there):
        return list(there)
    here = [host_room(tuple(x.shape), x.dtype, x.device) for x in there]
    for target, source in zip(here, there, strict=True):
        target.copy_(source, non_blocking=True)
    for device in {x.device for x in there if x.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    return here


def in_host(rows: MovingRows) -> MovingRows:
    """Returns the same rows in host memory."""
    return MovingRows(*to_host(rows.ids, rows.found, rows.rows, rows.states, rows.ts))


def to_device(here: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on a device. Does not wait if it is in memory from `host_room`."""
    return here.to(device, non_blocking=True)


def numbers_on(numbers: Sequence[int], device: torch.device) -> Int64[Tensor, "n"]:
    """Returns a few numbers as a tensor on a device; does not wait."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # A graph would copy again from host memory that is reused by then, so it sets the numbers
        # itself.
        there = torch.empty(len(numbers), dtype=torch.int64, device=device)
        for place, number in enumerate(numbers):
            there[place].fill_(number)
        return there
    here = torch.tensor(numbers)
    return to_device(here.pin_memory() if device.type == "cuda" else here, device)
