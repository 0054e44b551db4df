"""How often ids were used of late, counted in a fixed amount of memory."""

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
from .places import Ids

_RENEW = 2.0**40  # a use's weight, at which all counts are made smaller


class Uses:
    """Counts that fade: a use of `half_life_steps` ago counts half. Single-owner.

    Two rows of cells, of which the smaller counts: an id may share both cells with others, and then
    seems to be used more. That moves a row for nothing, and changes no number. Which ids do is a
    secret, drawn at random: ids chosen to share cells would all seem hot. The cells lie on
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
        # Under a random odd factor ids share upper bits of their products only by chance.
        self._factors = tuple(signed64(slot_key_of(None) | 1) for _ in range(2))
        self._growth = 2.0 ** (1 / half_life_steps)
        self.weight = 1.0  # of a use now: older ones keep the smaller one they were counted with

    def step(self, ids: Ids) -> None:
        """A step used these ids, which differ."""
        self.fade()
        places = self._at(ids)
        counted = self._least(places) + self.weight
        for cells, at in zip(self._cells, places, strict=True):  # what others added more stays
            cells.scatter_reduce_(0, at, counted, "amax")

    def fade(self) -> None:
        """A step begins: uses before it count less than those of it."""
        self.weight *= self._growth
        if self.weight > _RENEW:
            self._cells /= self.weight
            self.weight = 1.0

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
        return [(half * self._many) >> 32 for half in self.halves(words.to(self._cells.device))]

    def halves(self, words: Int64[Tensor, "n"]) -> Iterator[Int64[Tensor, "n"]]:
        """Two numbers of 32 bits of each id."""
        words = words ^ ((words >> 32) & 0xFFFFFFFF)
        return (((words * factor) >> 32) & 0xFFFFFFFF for factor in self._factors)


class SeveralUses:
    """`Uses` of several tables, counted together: their cells become one piece. Single-owner.

    Nothing is counted yet: all take the secret of the first.
    """

    def __init__(self, each: Sequence[Uses]) -> None:
        self._each = each
        device = each[0]._cells.device
        self._cells = torch.cat([one._cells.view(-1) for one in each])
        sizes = [one._cells.numel() for one in each]
        for one, cells in zip(each, self._cells.split(sizes), strict=True):
            one._cells, one._factors = cells.view(2, -1), each[0]._factors
        self._many = torch.tensor([one._many for one in each], device=device)
        self._firsts = torch.tensor([0, *accumulate(sizes[:-1])], device=device)
        self._last: tuple[tuple[int, ...], Tensor | None] = ((), None)

    def step(self, keys: TableKeys) -> None:
        """A step used these keys, each of which counts once."""
        for one in self._each:
            one.fade()
        table = self._tables_of(keys)
        weights = torch.tensor([one.weight for one in self._each], dtype=torch.float32)
        many, first = self._many[table], self._firsts[table]
        halves = self._each[0].halves(keys.ids)
        places = [first + row * many + ((half * many) >> 32) for row, half in enumerate(halves)]
        least = torch.minimum(*(self._cells[at] for at in places))
        # Floats above 0 stand in the order of their bits, and those have a maximum in one go.
        counted = (least + weights.to(least.device)[table]).view(torch.int32)
        for at in places:  # what others added more stays
            self._cells.view(torch.int32).scatter_reduce_(0, at, counted, "amax")

    def _tables_of(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """The number of each key's table; most calls of a model have the same."""
        splits, table = self._last
        if table is None or splits != keys.splits:
            sizes = [stop - start for start, stop in pairwise(keys.splits)]
            numbers = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
            table = numbers.to(self._cells.device)
            self._last = (keys.splits, table)
        return table
