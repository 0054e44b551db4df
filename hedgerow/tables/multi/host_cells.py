"""Keys that several ranks ask of one rank's host tables: one call of the core reads or learns them.

A cell is the keys that one rank asks of one table. The core keeps where it found their rows, so
that an update at the same cells searches for no key again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from ... import native
from ...core.shapes import Float32, Int32, Int64
from ..host import HostTable
from ..host_core import RowsMark
from ..memory_errors import memory_errors
from ..policy import UpdatePolicy
from ..store import Applied
from .host_bags import found_rows


@dataclass(frozen=True, slots=True, eq=False)
class CellsRead:
    """Where the rows of cells were found. `floats` holds where the rows of each cell begin."""

    found: native.BagRows
    floats: tuple[int, ...]


class HostCells:
    """The cells that `ranks` ranks ask of some host tables: rank after rank, table after table.

    It serves tables that count no ids: tables without rules of admission and of room.
    """

    def __init__(self, tables: Sequence[HostTable], ranks: int) -> None:
        self._tables = tuple(tables)
        self._places = list(range(ranks * len(self._tables)))
        self._dims = [table.layout.dim for table in self._tables] * ranks
        fixed = [table.core.fixed_rates for table in self._tables]
        self._fixed_rates = [rates for rates in fixed if rates is not None] if all(fixed) else None
        self._core = native.Bags(
            [
                (table.core.reader(0), k, "none", 0, True)
                for _ in range(ranks)
                for k, table in enumerate(self._tables)
            ]
        )

    @staticmethod
    def serves(tables: Sequence[HostTable]) -> bool:
        """Whether cells of these tables can be read and learnt so."""
        return all(
            table.config.admit is None and table.order is None and not table.config.serving
            for table in tables
        )

    def read(
        self,
        ids: Int64[Tensor, "n"],
        sizes: Sequence[int],
        out: Float32[Tensor, "floats"],
        *,
        training: bool,
        step: int,
    ) -> CellsRead | None:
        """Writes the rows of cells of these `sizes` to `out`; in training it keeps their places."""
        offsets = torch.tensor((0, *accumulate(sizes)), dtype=torch.int64, device="cpu")
        floats = (0, *accumulate(map(mul, sizes, self._dims)))
        cells = (ids.data_ptr(), len(ids), offsets.data_ptr(), self._places, 1, 0)
        at = out.data_ptr()
        addresses = [at + 4 * start for start in floats[:-1]]
        found = self._core.lookup(cells, training, step, addresses, False, training)
        return None if found is None else CellsRead(found, floats)

    def rows_of(self, read: CellsRead) -> tuple[Int32[Tensor, "n"], tuple[RowsMark | None, ...]]:
        """Where the rows of all keys were found, and until when that holds for each table."""
        tables = len(self._tables)
        return found_rows(read.found, [cell % tables for cell in self._places], self._tables)

    def learn(
        self,
        reads: Sequence[CellsRead],
        grads: Sequence[Float32[Tensor, "floats"]],
        *,
        step: int,
        ts: int,
        policy: UpdatePolicy,
    ) -> Applied:
        """One optimizer step per table and distinct id, at the cells of one or several reads."""
        given = []
        for read, own in zip(reads, grads, strict=True):
            at, places = own.data_ptr(), list[int]()
            for start, dim in zip(read.floats, self._dims, strict=False):
                places += (at + 4 * start, dim, 0, 1)  # the address, and strides
            given.append((self._core, read.found, places))
        rates = self._fixed_rates or [table.core.rates_at(step) for table in self._tables]
        times = [self._tables[0].core.stamps.stamp(ts, 0)] * len(
            self._tables
        )  # they have one clock
        clip = 0.0 if policy.clip is None else policy.clip.norm
        with memory_errors():
            done = native.learn_bags(given, step, rates, times, clip)
        return Applied.of(*done)
