"""Which keys of a call miss on the device, and reading their rows in host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.ids import distinct_ids
from ..core.shapes import Bool, Int64
from ..kernels.coming import Coming
from ..tables.copies import host_room, to_device, to_host
from ..tables.host_moves import read_several
from ..tables.store import TableKeys
from .caching import CachingTable
from .residency_map import Ids

if TYPE_CHECKING:
    from ..kernels.absent import Listing


@dataclass(frozen=True, slots=True, eq=False)
class Misses:
    """Keys of a call that are not on the device, table after table, and their positions in it."""

    ids: Int64[Tensor, "m"]
    splits: tuple[int, ...]
    there: Int64[Tensor, "m"]  # the ids, on the device
    at: Int64[Tensor, "m"]

    @staticmethod
    def of(keys: TableKeys, slots: Int64[Tensor, "n"]) -> Misses:
        """Waits for the device."""
        at = (slots < 0).nonzero()[:, 0]
        there = keys.ids[at]
        ids, where = to_host(there, at)
        cuts = np.searchsorted(where.numpy(), np.array(keys.splits))
        return Misses(ids, tuple(cuts.tolist()), there, at)

    def shares(self) -> Iterator[tuple[int, slice]]:
        """Number and part of each table that has some."""
        for k, (start, stop) in enumerate(pairwise(self.splits)):
            if start < stop:
                yield k, slice(start, stop)

    def counts(self, which: Bool[Tensor, "m"]) -> list[int]:
        """How many of each table's; `which` lies on the host."""
        flags = which.numpy()
        return [int(np.count_nonzero(flags[a:b])) for a, b in pairwise(self.splits)]


class HostReadback:
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
class Residency:
    """Where the keys of a call are: slots within each table, -1 = not on the device."""

    slots: Int64[Tensor, "n"]
    epoch: tuple[object, ...]
    told: HostReadback  # how many keys are not on the device, by table for caches, and a list
    since: int = 0  # the time of uses of caches when they were not
    asked: bool = False  # they were asked for, and could not come
    brought: bool = False  # they have come, but for those that found no lane
    rest: Misses | None = None  # they, once somebody needed them
    listing: Listing | None = None  # of caches

    @property
    def absent(self) -> int:
        """How many keys are not on the device; waits for it."""
        return sum(self.told.counts)

    def rest_of(self, keys: TableKeys) -> Misses:
        """The keys that are not on the device; waits for it if that was not asked for before."""
        return self.rest or Misses.of(keys, self.slots)


_LEAST = 256  # keys of a table


class ListRoom:
    """Room for keys of each table: for about twice what lately was lacking; single-owner.

    >>> import torch
    >>> room, keys = ListRoom(2), TableKeys(torch.arange(10_000), (0, 5000, 10_000))
    >>> room.lacked([1000, 7])
    >>> [room.of(keys) for _ in range(4)]
    [2000, 1000, 500, 256]
    """

    def __init__(self, tables: int) -> None:
        self._tables, self._rows = tables, _LEAST

    def of(self, keys: TableKeys) -> int:
        """Of each table: no more memory than for all keys, however much more one table lacks."""
        room = min(self._rows, max(_LEAST, keys.splits[-1] // self._tables))
        self._rows = max(_LEAST, self._rows // 2)
        return room

    def lacked(self, counts: Sequence[int]) -> None:
        """So many of each table were to be listed: to list them again would take time."""
        self._rows = max(self._rows, 2 * max(counts))


def listed(ids: Ids, counts: Sequence[int], room: int) -> list[Ids]:
    """The ids of each table in a list that has `room` for as many of each.

    >>> import numpy as np
    >>> [part.tolist() for part in listed(np.arange(6), [1, 5], 3)]
    [[0], [3, 4, 5]]
    """
    return [ids[k * room : k * room + min(n, room)] for k, n in enumerate(counts)]


_WORD = 8  # bytes


class MissRead:
    """Room for rows of some keys of each table, read without a lock.

    What is written behind the caches from the moment it is made on is noted, until it is closed.
    The keys were not cached at the time `since`; 0 = of that nothing is known.
    """

    def __init__(
        self, caches: Sequence[CachingTable], asked: Sequence[Ids], since: int = 0
    ) -> None:
        self._caches, self._since = caches, since
        self.device = caches[0].device
        self.splits = (0, *accumulate(map(len, asked)))
        layout = caches[0].layout
        shape = (len(caches), self.splits[-1], layout.dim, layout.state_floats)
        words = Coming.words_of(*shape)
        memory = host_room((words + len(caches),), torch.int64, self.device)
        self._here = Coming(memory, *shape)
        self.room_to_tell: Int64[Tensor, "K"] = memory[words:]
        whole, (ids, *_, found) = memory.numpy(), self._here.places
        whole[: len(self.splits)] = self.splits
        self.ids: Ids = whole[ids : ids + shape[1]]
        np.concatenate(asked, out=self.ids)
        self.found: np.ndarray = whole[found:].view(np.bool_)[
            : shape[1]
        ]  # who has a row that comes
        self.counts = [0] * len(caches)  # of each table, how many rows come at most
        self.have_rows = False  # whether all of the ids have one that comes
        self._there: Coming | None = None
        self._arrived: torch.Event | torch.cuda.Event | None = None
        self._left_out = False  # some, since the copy began
        self._book = caches[0]._notes
        with caches[0]._writing:
            self._notes = self._book.begin(since)

    def close(self) -> None:
        """Nothing is noted any more; a second call does nothing."""
        self._book.end(self._notes)

    def shares(self) -> Iterator[tuple[int, slice]]:
        """Number of each table that was asked for some, and where its ids are."""
        for k, (start, stop) in enumerate(pairwise(self.splits)):
            if start < stop:
                yield k, slice(start, stop)

    def read(self) -> None:
        """Reads them, those that are on their way back after they have arrived."""
        # A row that came, was changed and was chosen to leave since its key was not cached arrives
        # without a note if it was chosen before the notes began.
        self._caches[0]._back.land(self._since)
        if any(not table._back.is_empty() for table in self._caches):
            for k, share in self.shares():
                self._caches[k].settle(torch.from_numpy(self.ids[share]))
        begin = self._here.words.data_ptr()
        ids, times, rows, states, found = (begin + _WORD * at for at in self._here.places)
        self.counts = read_several(
            [table.slow for table in self._caches],
            self.splits,
            ids_at=ids,
            found_at=found,
            rows_at=rows,
            states_at=states,
            times_at=times,
        )
        self.have_rows = sum(self.counts) == len(self.ids)

    def copy(self) -> None:
        """Starts to copy them to the device, on the stream of the caller.

        For who needs them later: a kernel that needs them now reads them where they are, which
        takes half as long as a copy of what the processor has just written.
        """
        self._there = replace(self._here, words=to_device(self._here.words, self.device))
        if self.device.type == "cuda":
            self._arrived = torch.cuda.current_stream(self.device).record_event()

    def keep_unchanged(self) -> None:
        """Rows that were written since do not come; the caller has the caches' lock."""
        if not self._book.is_written(self._notes):
            return
        for k, share in self.shares():
            self._book.keep_unchanged(
                *(self._notes, self._caches[k], self.ids[share], self.found[share])
            )
            # Of some tables equal ids were counted once.
            self.counts[k] = min(self.counts[k], int(np.count_nonzero(self.found[share])))
        self._left_out, self.have_rows = True, bool(self.found.all())

    def count_distinct(self, k: int) -> None:
        """Equal ids of a table count once."""
        self.counts[k] = len(distinct_ids(self._ids_of(k)[self._found_of(k)]))

    def keep(self, k: int, rows: int) -> None:
        """Only so many different ids of a table bring their rows: the first of them."""
        ids, found = self._ids_of(k), self._found_of(k)
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        coming = np.flatnonzero(found[first])
        coming = coming[np.argsort(first[coming])][:rows]
        kept = np.zeros(len(first), bool)
        kept[coming] = True
        found &= kept[which]
        self._left_out, self.have_rows = True, False
        self.counts[k] = len(coming)

    def coming(self) -> Coming:
        """The rows, for a kernel on the caller's stream.

        Of those in host memory torch does not know that a kernel reads them: whoever starts one has
        `room_to_tell` filled behind it, and until that is done the memory is not given to others.
        """
        if self._there is None:
            return self._here
        if self._arrived is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(self._arrived)
            self._there.words.record_stream(stream)  # it may be another's
        if self._left_out:
            found = self._there.parts()[1]
            found.copy_(self._here.parts()[1], non_blocking=True)
        return self._there

    def _ids_of(self, k: int) -> Ids:
        return self.ids[self.splits[k] : self.splits[k + 1]]

    def _found_of(self, k: int) -> np.ndarray:
        return self.found[self.splits[k] : self.splits[k + 1]]
