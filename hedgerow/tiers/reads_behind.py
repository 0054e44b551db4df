"""Rows as they are behind several caches, on their way to the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from ..core.ids import distinct_ids
from ..core.shapes import Int64
from ..kernels.coming import Coming
from ..tables.copies import host_room, to_device
from ..tables.host import read_several
from .caching import CachingTable
from .places import Ids

_WORD = 8  # bytes


class Behind:
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
