"""How often ids were used of late, counted in a fixed amount of memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from .places import Ids

_ODD = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
_RENEW = 2.0**40  # a use's weight, at which all counts are made smaller


class Uses:
    """Counts that fade: a use of `half_life_steps` ago counts half. Single-owner.

    Two rows of cells, of which the smaller counts: an id may share both cells with others, and then
    seems to be used more. That moves a row for nothing, and changes no number. They lie on
    `device`, where the fast rows are.

    >>> uses = Uses(1000, half_life_steps=1)
    >>> hot, cold = np.array([7]), np.array([8])
    >>> uses.step(cold)
    >>> uses.step(hot)
    >>> bool(uses.of(hot)[0] == 2 * uses.of(cold)[0])
    True
    """

    def __init__(
        self, ids: int, *, half_life_steps: int, device: torch.device = checks.CPU
    ) -> None:
        # A step may use many ids that are never seen again, and half-lives are many steps.
        self._many = max(1 << 10, 4 * ids)
        self._cells: Float32[Tensor, "2 cells"] = torch.zeros(
            2, self._many, dtype=torch.float32, device=device
        )
        self._growth = 2.0 ** (1 / half_life_steps)
        self.weight = 1.0  # of a use now: older ones keep the smaller one they were counted with

    def step(self, ids: Ids, steps: int = 1) -> None:
        """A step used these ids, which differ: the last of so many, of which it alone counts."""
        self.weight *= self._growth**steps
        if self.weight > _RENEW:
            self._cells /= self.weight
            self.weight = 1.0
        places = self._at(ids)
        counted = self._least(places) + self.weight
        for cells, at in zip(self._cells, places, strict=True):  # what others added more stays
            cells.scatter_reduce_(0, at, counted, "amax")

    def of(self, ids: Ids | Int64[Tensor, "n"]) -> Float32[Tensor, "n"]:
        """Uses of each id, in weights, where the cells are."""
        return self._least(self._at(ids))

    def nbytes(self) -> int:
        """Memory of the cells."""
        return self._cells.nbytes

    def _least(self, places: list[Int64[Tensor, "n"]]) -> Float32[Tensor, "n"]:
        first, second = (  # index_select: on a CPU a small fraction of the time of cells[at]
            cells.index_select(0, at) for cells, at in zip(self._cells, places, strict=True)
        )
        return torch.minimum(first, second)

    def _at(self, ids: Ids | Int64[Tensor, "n"]) -> list[Int64[Tensor, "n"]]:
        words = torch.from_numpy(np.ascontiguousarray(ids)) if isinstance(ids, np.ndarray) else ids
        words = words.to(self._cells.device)
        words = words ^ ((words >> 32) & 0xFFFFFFFF)
        halves = (((words * signed64(odd)) >> 32) & 0xFFFFFFFF for odd in _ODD)
        return [(half * self._many) >> 32 for half in halves]
