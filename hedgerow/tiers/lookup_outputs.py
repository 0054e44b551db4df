"""The outputs of a lookup over two tiers: the rows of all keys, or the vectors of bags."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from ..kernels.pool_features import Features, Known, Pooled
from ..tables.multi.device_bags import BagsOfFeatures
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys


class LookupOutput(Protocol):
    """Takes the rows of the keys of one lookup, from the device and from the slow tier.

    Rows that miss on the device are written to `rows`, each at the position of its key. The caller
    holds the lock that prevents rows from moving.
    """

    @property
    def rows(self) -> Float32[Tensor, "n dim"]:
        """One row per key."""
        ...

    def find(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """Returns the slot of each key within its table; -1 = not resident.

        Lookups that list misses call `read` after it; other lookups do not.
        """
        ...

    def read(self, keys: TableKeys, slots: Int64[Tensor, "n"]) -> None:
        """Starts to read the rows in these slots, before the number of misses is known."""
        ...

    def finish(self, keys: TableKeys, slots: Int64[Tensor, "n"], *, missed: bool) -> None:
        """Completes the output. If keys have `missed`, their rows are in `rows` now."""
        ...


class RowsOutput:
    """The rows of all keys."""

    def __init__(self, group: DeviceGroup, rows: Float32[Tensor, "n dim"]) -> None:
        self._group, self.rows = group, rows

    def find(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """Returns the slots of keys, and reads their rows."""
        return self._group.lookup(keys, self.rows, born=False)

    def read(self, keys: TableKeys, slots: Int64[Tensor, "n"]) -> None:
        """Reads the rows in these slots."""
        self._group.read(keys, slots, self.rows)

    def finish(self, keys: TableKeys, slots: Int64[Tensor, "n"], *, missed: bool) -> None:
        """Does nothing: all rows are in `rows`."""


class PooledOutput:
    """Vectors of the bags of all features, pooled from rows in place.

    Rows on the device are not copied to `rows`. It holds only the rows that missed.
    """

    def __init__(
        self, group: DeviceGroup, features: Features, bags: BagsOfFeatures, shape: tuple[int, int]
    ) -> None:
        self._group, self._features, self._bags, self._shape = group, features, bags, shape
        self._rows: Tensor | None = None
        self.pooled: Pooled | None = None

    @property
    def rows(self) -> Float32[Tensor, "n dim"]:
        """Memory for the rows that miss, allocated on first use."""
        if self._rows is None:
            self._rows = torch.empty(self._shape, dtype=torch.float32, device=self._group.device)
        return self._rows

    def find(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """Returns the slots of keys."""
        return self._group.find(keys)

    def read(self, keys: TableKeys, slots: Int64[Tensor, "n"]) -> None:
        """Pools the rows in these slots. If no key misses, which is most frequent, this is all."""
        self.pooled = self._group.pool(self._features, keys, self._bags, Known(slots))

    def finish(self, keys: TableKeys, slots: Int64[Tensor, "n"], *, missed: bool) -> None:
        """Pools again, together with the rows that missed."""
        if missed or self.pooled is None:
            known = Known(slots, self.rows if missed else None)
            self.pooled = self._group.pool(self._features, keys, self._bags, known)
