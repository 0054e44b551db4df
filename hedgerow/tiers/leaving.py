"""Changed rows of several caches on one device, on their way to the stores behind them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from ..kernels.leave import Chosen
from ..tables.copies import host_room
from ..tables.host import move_in_several
from ..tables.moving import MovingRows

if TYPE_CHECKING:
    from .caching import CachingTable


class Leaving:
    """Copies of rows that will leave, copied to the host and written there; any thread may do it.

    The rows stay in their caches until these have landed. If that fails they are kept, and who asks
    next tries again.
    """

    def __init__(
        self,
        caches: Sequence[CachingTable],
        chosen: Chosen,
        rows: Float32[Tensor, "room dim"],
        states: Float32[Tensor, "room floats"],
        most: Sequence[int],
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._caches, self._stream = caches, stream
        self.limit = chosen.limit  # none of the rows was used after that time
        self._starts = (0, *accumulate(most))
        self._there = (chosen.ids, rows, states, chosen.times, chosen.counts)
        self._left = stream and torch.cuda.current_stream(stream.device).record_event()
        self._here: list[Tensor] | None = None
        self._copied: torch.Event | torch.cuda.Event | None = None
        self._landed = False
        self._lock = Lock()

    def start(self) -> None:
        """Starts to copy them, on a stream of their own."""
        with self._lock:
            self._start()

    @property
    def has_landed(self) -> bool:
        """Whether they are in the stores."""
        return self._landed

    def is_copied(self) -> bool:
        """Whether the host knows of them."""
        return self._here is not None and (self._copied is None or self._copied.query())

    def sizes(self) -> list[int]:
        """How many rows each table had when these were chosen; waits for the device."""
        if not self.is_copied():
            with self._lock:  # who writes the rows has it for longer
                self._numbers()
        assert self._here is not None
        return self._here[-1][:, 2].tolist()

    def land(self) -> None:
        """Brings them to the stores; does nothing if they are there."""
        with self._lock:
            if self._landed:
                return
            changed = self._numbers()[:, 1].tolist()
            assert self._here is not None
            ids, rows, states, ts, _ = self._here
            starts = self._starts[:-1]
            last = [start + n for start, n in zip(starts, changed, strict=True)]
            moving = MovingRows(ids, torch.ones_like(ids, dtype=torch.bool), rows, states, ts)
            move_in_several([table.slow for table in self._caches], starts, last, moving)
            for table, rows_of_it in zip(self._caches, changed, strict=True):
                table.counters.add("write_backs", rows_of_it)
            self._landed, self._here, self._there = True, self._here[-1:], ()

    def _start(self) -> None:
        if self._here is not None:
            return
        here = [host_room(tuple(x.shape), x.dtype, x.device) for x in self._there]
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            if self._stream is not None and self._left is not None:
                self._stream.wait_event(self._left)
            for target, source in zip(here, self._there, strict=True):
                target.copy_(source, non_blocking=True)
        self._copied = self._stream and self._stream.record_event()
        self._here = here

    def _numbers(self) -> Int64[Tensor, "K 3"]:
        """What the device has counted."""
        self._start()
        if self._copied is not None:
            self._copied.synchronize()
        assert self._here is not None
        return self._here[-1]
