"""Counts how often ids are used, in a fixed amount of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from ..tables.slot_key import slot_key_of
from ..tables.store import TableKeys
from .residency_map import Ids

_RENEW_WEIGHT = 2.0**40  # all counts are scaled down once a use weighs so much


class UseCounts:
    """How often ids were used of late, in a fixed amount of memory. Single-owner.

    A use `half_life_steps` ago counts half. There are two rows of cells, and the smaller of an id's
    two cells counts. An id that shares both cells with other ids seems to be used more. That moves
    a row for nothing, and changes no number. Which ids share cells is a secret drawn at random, so
    that chosen ids cannot all seem hot. The cells are on `device`, with the fast rows.

    >>> uses = UseCounts(1000, half_life_steps=1)
    >>> hot, cold = np.array([7]), np.array([8])
    >>> uses.step(cold)
    >>> uses.step(hot)
    >>> bool(uses.of(hot)[0] == 2 * uses.of(cold)[0])
    True
    """

    def __init__(
        self, ids: int, *, half_life_steps: int, device: torch.device = checks.CPU
    ) -> None:
        # A step may use many ids that are never seen again, and a half-life is many steps.
        self.columns = max(1 << 10, 4 * ids)
        self.cells: Float32[Tensor, "2 cells"] = torch.zeros(
            2, self.columns, dtype=torch.float32, device=device
        )
        # Under a random odd factor, ids share upper bits of their products only by chance.
        self.factors = tuple(signed64(slot_key_of(None) | 1) for _ in range(2))
        self._growth = 2.0 ** (1 / half_life_steps)
        self.weight = 1.0  # of a use now: earlier uses keep the smaller weight they had

    def step(self, ids: Ids) -> None:
        """A step used these ids, which differ."""
        self.fade()
        places = self._cells_of(ids)
        counted = self._least(places) + self.weight
        for cells, at in zip(self.cells, places, strict=True):  # a larger count of others stays
            cells.scatter_reduce_(0, at, counted, "amax")

    def fade(self) -> None:
        """A step begins: earlier uses count less than those of this step."""
        self.weight *= self._growth
        if self.weight > _RENEW_WEIGHT:
            self.cells /= self.weight
            self.weight = 1.0

    def of(self, ids: Ids | Int64[Tensor, "n"]) -> Float32[Tensor, "n"]:
        """The uses of each id, in weights, on the device of the cells."""
        return self._least(self._cells_of(ids))

    def nbytes(self) -> int:
        """Memory of the cells."""
        return self.cells.nbytes

    def _least(self, places: list[Int64[Tensor, "n"]]) -> Float32[Tensor, "n"]:
        first, second = (  # on a CPU index_select takes a small fraction of the time of cells[at]
            cells.index_select(0, at) for cells, at in zip(self.cells, places, strict=True)
        )
        return torch.minimum(first, second)

    def _cells_of(self, ids: Ids | Int64[Tensor, "n"]) -> list[Int64[Tensor, "n"]]:
        words = torch.from_numpy(np.ascontiguousarray(ids)) if isinstance(ids, np.ndarray) else ids
        return [(half * self.columns) >> 32 for half in self.halves(words.to(self.cells.device))]

    def halves(self, words: Int64[Tensor, "n"]) -> Iterator[Int64[Tensor, "n"]]:
        """Two numbers of 32 bits per id."""
        words = words ^ ((words >> 32) & 0xFFFFFFFF)
        return (((words * factor) >> 32) & 0xFFFFFFFF for factor in self.factors)


class GroupUseCounts:
    """The `UseCounts` of several tables, counted together. Single-owner.

    Their cells become parts of one tensor. They must be empty: all take the secret of the first.
    """

    def __init__(self, each: Sequence[UseCounts]) -> None:
        self._each = each
        device = each[0].cells.device
        self._cells = torch.cat([one.cells.view(-1) for one in each])
        sizes = [one.cells.numel() for one in each]
        for one, cells in zip(each, self._cells.split(sizes), strict=True):
            one.cells, one.factors = cells.view(2, -1), each[0].factors
        self._columns = torch.tensor([one.columns for one in each], device=device)
        self._firsts = torch.tensor([0, *accumulate(sizes[:-1])], device=device)
        self._last: tuple[tuple[int, ...], Tensor | None] = ((), None)

    def step(self, keys: TableKeys) -> None:
        """A step used these keys. A key that occurs twice counts once."""
        for one in self._each:
            one.fade()
        table = self._tables_of(keys)
        weights = torch.tensor([one.weight for one in self._each], dtype=torch.float32)
        columns, first = self._columns[table], self._firsts[table]
        halves = self._each[0].halves(keys.ids)
        places = [
            first + row * columns + ((half * columns) >> 32) for row, half in enumerate(halves)
        ]
        least = torch.minimum(*(self._cells[at] for at in places))
        # Floats above 0 have the order of their bits, and a maximum of integers is one operation.
        counted = (least + weights.to(least.device)[table]).view(torch.int32)
        for at in places:  # a larger count of others stays
            self._cells.view(torch.int32).scatter_reduce_(0, at, counted, "amax")

    def _tables_of(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """The number of each key's table; kept, because most calls have the same splits."""
        splits, table = self._last
        if table is None or splits != keys.splits:
            sizes = [stop - start for start, stop in pairwise(keys.splits)]
            numbers = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
            table = numbers.to(self._cells.device)
            self._last = (keys.splits, table)
        return table
