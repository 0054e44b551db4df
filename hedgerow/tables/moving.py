"""Whole rows on their way from one store of a table to another."""

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
