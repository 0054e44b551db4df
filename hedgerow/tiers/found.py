"""Where the keys of a call on several tables are, and which of them are not on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

from ..core.shapes import Bool, Int64
from ..tables.copies import to_host
from ..tables.store import TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Keys of several tables on the host, table after table."""

    ids: Int64[Tensor, "m"]
    splits: tuple[int, ...]

    def shares(self) -> Iterator[tuple[int, slice]]:
        """Number and part of each table that has some."""
        for k, (start, stop) in enumerate(pairwise(self.splits)):
            if start < stop:
                yield k, slice(start, stop)

    def counts(self, which: Bool[Tensor, "m"]) -> list[int]:
        """How many of each table's; `which` lies on the host."""
        flags = which.numpy()
        return [int(np.count_nonzero(flags[a:b])) for a, b in pairwise(self.splits)]


@dataclass(frozen=True, slots=True, eq=False)
class Rest(Asked):
    """Keys of a call that are not on the device: there, and their positions in the call."""

    there: Int64[Tensor, "m"]
    at: Int64[Tensor, "m"]

    def keys(self) -> TableKeys:
        """They, on the device."""
        return TableKeys(self.there, self.splits)

    @staticmethod
    def of(keys: TableKeys, slots: Int64[Tensor, "n"]) -> Rest:
        """Waits for the device."""
        at = (slots < 0).nonzero()[:, 0]
        there = keys.ids[at]
        ids, where = to_host(there, at)
        cuts = np.searchsorted(where.numpy(), np.array(keys.splits))
        return Rest(ids, tuple(cuts.tolist()), there, at)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where the keys of a call are: slots within each table, -1 = not on the device."""

    slots: Int64[Tensor, "n"]
    epoch: tuple[object, ...]
    absent: int  # keys that are not on the device
    since: tuple[int, ...] = ()  # the time of each cache when they were not; () = not known
    asked: bool = False  # they were asked for, and could not come
    rest: Rest | None = None  # they, once somebody needed them

    def rest_of(self, keys: TableKeys) -> Rest:
        """The keys that are not on the device; waits for it if that was not asked for before."""
        return self.rest or Rest.of(keys, self.slots)
