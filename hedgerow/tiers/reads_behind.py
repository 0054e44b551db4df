"""Rows as they are behind several caches, on their way to the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Bool
from ..tables.copies import host_room, to_device
from ..tables.host_moves import read_several
from ..tables.moving import MovingRows
from .caching import CachingTable
from .found import Asked


class Behind:
    """Room for rows of some keys, read without a lock.

    What is written behind the caches from the moment it is made on is noted, until it is closed.
    The keys were not cached at the time `since`; 0 = of that nothing is known.
    """

    def __init__(self, caches: Sequence[CachingTable], asked: Asked, since: int = 0) -> None:
        self._caches, self.asked = caches, asked
        self._since = since
        self.device = caches[0].device
        layout, m = caches[0].layout, len(asked.ids)
        # In one piece, which goes to the device in one copy.
        widths = (8, 8, 4 * layout.dim, 4 * layout.state_floats)
        self._memory = host_room((m * sum(widths),), torch.uint8, self.device)
        self._found = host_room((m,), torch.bool, self.device)
        self._cuts = [m * width for width in widths]
        self._room = self._rows_in(self._memory, self._found)
        self._room.ids.copy_(asked.ids)
        self._there: Tensor | None = None
        self._arrived: torch.Event | torch.cuda.Event | None = None
        with caches[0]._writing:
            self._notes = {k: caches[k].begin_notes(since) for k, _ in asked.shares()}

    def close(self) -> None:
        """Nothing is noted any more; a second call does nothing."""
        for k, notes in self._notes.items():
            self._caches[k].end_notes(notes)

    @property
    def found(self) -> Bool[Tensor, "m"]:
        """On the host, which ids have a row that may come."""
        return self._found

    def _rows_in(self, memory: Tensor, found: Tensor) -> MovingRows:
        ids, ts, rows, states = memory.split(self._cuts)
        m, floats = len(found), torch.float32
        return MovingRows(
            *(ids.view(torch.int64), found, rows.view(floats).view(m, -1)),
            *(states.view(floats).view(m, self._caches[0].layout.state_floats),),
            ts.view(torch.int64),
        )

    def read(self) -> None:
        """Reads them, those that are on their way back after they have arrived."""
        # A row that came, was changed and was chosen to leave since its key was not cached arrives
        # without a note if it was chosen before the notes began.
        self._caches[0]._back.land(self._since)
        for k, share in self.asked.shares():
            if not self._caches[k]._back.is_empty():
                self._caches[k].settle(self.asked.ids[share])
        read_several([table.slow for table in self._caches], self.asked.splits, self._room)

    def copy(self) -> None:
        """Starts to copy them to the device, on the stream of the caller."""
        self._there = to_device(self._memory, self.device)
        if self.device.type == "cuda":
            self._arrived = torch.cuda.current_stream(self.device).record_event()

    def keep_unchanged(self) -> None:
        """Rows that were written since do not come; the caller has the caches' lock."""
        for k, share in self.asked.shares():
            if self._caches[k].is_noted(self._notes[k]):
                ids, found = self.asked.ids[share], self.found[share]
                self._caches[k].keep_unchanged(self._notes[k], ids, found)

    def keep_firsts(self, k: int) -> None:
        """Of equal ids of a table only the first brings its row."""
        for number, share in self.asked.shares():
            if number == k:
                _, first = np.unique(self.asked.ids[share].numpy(), return_index=True)
                others = np.ones(share.stop - share.start, bool)
                others[first] = False
                self.found[share][torch.from_numpy(others)] = False

    def coming(self) -> MovingRows:
        """The rows on the device, to be used on the stream of the caller."""
        assert self._there is not None
        if self._arrived is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(self._arrived)
            self._there.record_stream(stream)  # its memory may be another stream's
        return self._rows_in(self._there, to_device(self._found, self.device))
