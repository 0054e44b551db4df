"""Where the keys of a call on several tables are, and which of them are not on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Bool, Int64
from ..tables.copies import host_room, to_host
from ..tables.store import TableKeys

if TYPE_CHECKING:  # it needs Triton
    from ..kernels.absent import Listing


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """Keys of a call that are not on the device, table after table, and their positions in it."""

    ids: Int64[Tensor, "m"]
    splits: tuple[int, ...]
    there: Int64[Tensor, "m"]  # the ids, on the device
    at: Int64[Tensor, "m"]

    @staticmethod
    def of(keys: TableKeys, slots: Int64[Tensor, "n"]) -> Rest:
        """Waits for the device."""
        at = (slots < 0).nonzero()[:, 0]
        there = keys.ids[at]
        ids, where = to_host(there, at)
        cuts = np.searchsorted(where.numpy(), np.array(keys.splits))
        return Rest(ids, tuple(cuts.tolist()), there, at)

    def shares(self) -> Iterator[tuple[int, slice]]:
        """Number and part of each table that has some."""
        for k, (start, stop) in enumerate(pairwise(self.splits)):
            if start < stop:
                yield k, slice(start, stop)

    def counts(self, which: Bool[Tensor, "m"]) -> list[int]:
        """How many of each table's; `which` lies on the host."""
        flags = which.numpy()
        return [int(np.count_nonzero(flags[a:b])) for a, b in pairwise(self.splits)]


class Told:
    """Numbers of the device on their way to the host; whoever asks for them waits.

    The first of them are counts, as many as `counts` says, or all. They come to `here` if given.
    """

    def __init__(
        self,
        there: Int64[Tensor, "n"],
        counts: int | None = None,
        here: Int64[Tensor, "n"] | None = None,
    ) -> None:
        device = there.device
        self._here = host_room(tuple(there.shape), there.dtype, device) if here is None else here
        self._here.copy_(there, non_blocking=True)
        self._counts = there.shape[0] if counts is None else counts
        self._event: torch.Event | torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    @cached_property
    def counts(self) -> list[int]:
        """The counts."""
        self._wait()
        counts = self._here.numpy()[: self._counts].tolist()
        if self._counts == self._here.shape[0]:  # nobody asks for more: `here` may be part of much
            self._here = torch.empty(0, dtype=torch.int64)
        return counts

    def others(self) -> np.ndarray:
        """What stands behind the counts."""
        self._wait()
        return self._here.numpy()[self._counts :]

    def is_there(self) -> bool:
        """Whether nobody would wait."""
        return self._event is None or self._event.query()

    def _wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where the keys of a call are: slots within each table, -1 = not on the device."""

    slots: Int64[Tensor, "n"]
    epoch: tuple[object, ...]
    told: Told  # how many keys are not on the device; of caches by table, and what else is listed
    since: int = 0  # the time of uses of caches when they were not
    asked: bool = False  # they were asked for, and could not come
    brought: bool = False  # they have come, but for those that found no lane
    rest: Rest | None = None  # they, once somebody needed them
    listing: Listing | None = None  # of caches

    @property
    def absent(self) -> int:
        """How many keys are not on the device; waits for it."""
        return sum(self.told.counts)

    def rest_of(self, keys: TableKeys) -> Rest:
        """The keys that are not on the device; waits for it if that was not asked for before."""
        return self.rest or Rest.of(keys, self.slots)
