"""Where the keys of a call on several tables are, and which of them are not on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Bool, Int64
from ..tables.copies import host_room, to_host
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


class Count:
    """Numbers that the device counts; whoever asks for them waits."""

    def __init__(self, there: Int64[Tensor, "..."]) -> None:
        self._here = host_room(tuple(there.shape), there.dtype, there.device)
        self._here.copy_(there, non_blocking=True)
        self._told: torch.Event | torch.cuda.Event | None = None
        if there.device.type == "cuda":
            self._told = torch.cuda.current_stream(there.device).record_event()

    def numbers(self) -> list[int]:
        """Each."""
        if self._told is not None:
            self._told.synchronize()
        return self._here.view(-1).tolist()


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Keys of a call that are not on the device, in any order: ids, and positions in the call.

    Those of a table begin where its keys do; `counts` are how many of each.
    """

    ids: Int64[Tensor, "n"]
    at: Int64[Tensor, "n"]
    counts: Count

    def rest(self, splits: Sequence[int]) -> Rest:
        """Waits for the device."""
        counts = self.counts.numbers()
        parts = [slice(start, start + n) for start, n in zip(splits, counts, strict=False)]
        there = torch.cat([self.ids[part] for part in parts])
        (ids,) = to_host(there)
        at = torch.cat([self.at[part] for part in parts])
        return Rest(ids, (0, *accumulate(counts)), there, at)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where the keys of a call are: slots within each table, -1 = not on the device."""

    slots: Int64[Tensor, "n"]
    epoch: tuple[object, ...]
    counted: Count  # keys that are not on the device
    since: tuple[int, ...] = ()  # the time of each cache when they were not; () = not known
    asked: bool = False  # they were asked for, and could not come
    is_read: bool = False  # all rows were, whether they are on the device or not
    rest: Rest | None = None  # they, once somebody needed them
    listed: Listed | None = None

    @property
    def absent(self) -> int:
        """How many keys are not on the device; waits for it."""
        return sum(self.counted.numbers())

    def rest_of(self, keys: TableKeys) -> Rest:
        """The keys that are not on the device; waits for it if that was not asked for before."""
        return self.rest or Rest.of(keys, self.slots)
