"""Rows as they are behind several caches, on their way to the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Bool, Int64
from ..tables.copies import host_room, to_device
from ..tables.host_moves import read_several
from ..tables.moving import MovingRows
from .caching import CachingTable
from .found import Asked
from .places import Ids

_TOGETHER = 16  # rows: then every part of a piece begins where the device reads it in one go


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where the parts of some rows lie in one piece of memory, which one copy takes along."""

    tables: int
    rows: int
    dim: int
    state_floats: int

    @property
    def _room(self) -> int:
        return -(-self.rows // _TOGETHER) * _TOGETHER

    @property
    def _head(self) -> int:
        """Words before the ids: where the rows of each table begin, and of the last end."""
        return -(-(self.tables + 1) // 2) * 2

    @property
    def size_bytes(self) -> int:
        """Of all of it."""
        return 8 * self._head + (16 + 4 * (self.dim + self.state_floats) + 1) * self._room

    def split(self, memory: Tensor) -> tuple[Int64[Tensor, "K+1"], MovingRows]:
        """Where the rows of each table begin, and the rows."""
        n, room, dim, states = self.rows, self._room, self.dim, self.state_floats
        words, floats = self._head + 2 * room, (dim + states) * room
        whole, numbers, found = memory.split([8 * words, 4 * floats, room])
        whole, numbers = whole.view(torch.int64), numbers.view(torch.float32)
        at = room * dim
        return whole[: self.tables + 1], MovingRows(
            ids=whole[self._head : self._head + n],
            found=found[:n].view(torch.bool),
            rows=numbers[: n * dim].view(n, dim),
            states=numbers[at : at + n * states].view(n, states),
            ts=whole[self._head + room : self._head + room + n],
        )


class Behind:
    """Room for rows of some keys, read without a lock.

    What is written behind the caches from the moment it is made on is noted, until it is closed.
    The keys were not cached at the time `since`; 0 = of that nothing is known.
    """

    def __init__(self, caches: Sequence[CachingTable], asked: Asked, since: int = 0) -> None:
        self._caches, self.asked = caches, asked
        self._since = since
        self.device = caches[0].device
        layout = caches[0].layout
        self._piece = _Piece(len(caches), len(asked.ids), layout.dim, layout.state_floats)
        self._memory = host_room((self._piece.size_bytes,), torch.uint8, self.device)
        cuts, self._room = self._piece.split(self._memory)
        cuts.numpy()[:] = asked.splits
        self._room.ids.copy_(asked.ids)
        self.counts = [0] * len(caches)  # of each table, how many rows come at most
        self.have_rows = False  # whether all of the ids have one that comes
        self._there: Tensor | None = None
        self._arrived: torch.Event | torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        self._left_out = False  # some, since the copy began
        with caches[0]._writing:
            self._notes = {k: caches[k].begin_notes(since) for k, _ in asked.shares()}

    def close(self) -> None:
        """Nothing is noted any more; a second call does nothing."""
        for k, notes in self._notes.items():
            self._caches[k].end_notes(notes)

    @property
    def found(self) -> Bool[Tensor, "m"]:
        """On the host, which ids have a row that may come."""
        return self._room.found

    def read(self) -> None:
        """Reads them, those that are on their way back after they have arrived."""
        # A row that came, was changed and was chosen to leave since its key was not cached arrives
        # without a note if it was chosen before the notes began.
        self._caches[0]._back.land(self._since)
        for k, share in self.asked.shares():
            if not self._caches[k]._back.is_empty():
                self._caches[k].settle(self.asked.ids[share])
        read_several([table.slow for table in self._caches], self.asked.splits, self._room)
        self._count()

    def copy(self) -> None:
        """Starts to copy them to the device, on the stream of the caller."""
        self._there = to_device(self._memory, self.device)
        if self.device.type == "cuda":
            self._stream = torch.cuda.current_stream(self.device)
            self._arrived = self._stream.record_event()

    def keep_unchanged(self) -> None:
        """Rows that were written since do not come; the caller has the caches' lock."""
        for k, share in self.asked.shares():
            if self._caches[k].is_noted(self._notes[k]):
                ids, found = self.asked.ids[share], self.found[share]
                self._caches[k].keep_unchanged(self._notes[k], ids, found)
                self._left_out = True
        if self._left_out:
            before = self.counts  # of some tables, different ids
            self._count()
            self.counts = [min(both) for both in zip(before, self.counts, strict=True)]

    def count_distinct(self, k: int) -> None:
        """Equal ids of a table count once."""
        self.counts[k] = len(np.unique(self._ids_of(k)[self._found_of(k)]))

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

    def coming(self) -> tuple[Int64[Tensor, "K+1"], MovingRows]:
        """Where those of each table begin, and the rows, on the device; for the caller's stream."""
        assert self._there is not None
        if self._arrived is not None:
            stream = torch.cuda.current_stream(self.device)
            if stream != self._stream:
                stream.wait_event(self._arrived)
                self._there.record_stream(stream)  # its memory is another stream's
        cuts, rows = self._piece.split(self._there)
        if self._left_out:
            rows.found.copy_(self.found, non_blocking=True)
        return cuts, rows

    def _count(self) -> None:
        self.counts = self.asked.counts(self.found)
        self.have_rows = sum(self.counts) == len(self.asked.ids)

    def _share(self, k: int) -> slice:
        return slice(self.asked.splits[k], self.asked.splits[k + 1])

    def _ids_of(self, k: int) -> Ids:
        return self.asked.ids[self._share(k)].numpy()

    def _found_of(self, k: int) -> Ids:
        return self.found[self._share(k)].numpy()
