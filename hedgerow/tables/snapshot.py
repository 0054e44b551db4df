"""A consistent view of all rows of a host table, read while training goes on."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType

import torch

from .. import native
from ..core.errors import StateError
from .layout import RowLayout, entry_room, slice_rows
from .leave_order import LeaveOrder, shown
from .store import Entries, all_found

ASIDE_BYTES = 256 << 20


class Snapshot:
    """All rows of a table as they were at one instant between two writes (`HostTable.snapshot`).

    Reading it does not stop anybody: a writer that is the first to change a row not yet read copies
    the old one aside. When more than `aside_bytes` lie aside, writers wait at the start of their
    next call until the snapshot was read on or closed; the thread that reads never waits. `size`
    and `max_ts` are those of the instant. A snapshot that is dropped is closed.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> table = HostTable(TableConfig("user", (Segment(1, Zeros(), Sgd()),)))
    >>> _ = table.assign(torch.tensor([7]), torch.tensor([[1.0]]))
    >>> with table.snapshot() as rows:
    ...     _ = table.assign(torch.tensor([7, 8]), torch.tensor([[2.0], [2.0]]))
    ...     [(part.ids.tolist(), part.rows.tolist()) for part in rows.scan()]
    [([7], [[1.0]])]
    """

    def __init__(
        self,
        table: native.Table,
        name: str,
        layout: RowLayout,
        aside_bytes: int,
        at_start: Callable[[], object] | None,
        paused: bool,
        order: LeaveOrder | None = None,
    ) -> None:
        self._table, self._name, self._layout, self._order = table, name, layout, order
        self._process = os.getpid()
        self._closed_with: tuple[int, float] | None = None
        self._ticket, self.size, self.max_ts = table.open_snapshot(
            aside_bytes, paused or at_start is not None
        )
        if self._ticket == 0:
            raise StateError(
                f"a second snapshot of table {name!r} while one is open; close the first, or wait "
                f"for its end."
            )
        self._release = weakref.finalize(self, table.close_snapshot, self._ticket)
        if order is not None:
            self.max_ts = order.second(self.max_ts)
        if at_start is None:
            return
        try:
            at_start()
        except BaseException:
            self.close()
            raise
        if not paused:
            self.resume()

    def __repr__(self) -> str:
        state = "open" if self._closed_with is None else "closed"
        return f"Snapshot({self._name!r}, {self.size} rows, {state})"

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def resume(self) -> None:
        """Lets writers go on that wait since the snapshot was opened `paused`."""
        if self._closed_with is None:  # else it might be another snapshot's pause
            self._table.resume_writers()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """The rows, in slices of at most `rows` (about 16 MiB if None), in no particular order.

        Each row is given once, whoever asks: several scans, also of several threads, share the
        rows. Rows that share a home in the index may make a very small slice a few rows larger.
        """
        return self._slices(slice_rows(self._layout, rows))

    def _slices(self, room: int) -> Iterator[Entries]:
        done = False
        while not done:
            self._check_usable()
            ids = torch.empty(room, dtype=torch.int64, device="cpu")
            values, raw, ts = entry_room(self._layout, room)
            got, done, needed = self._table.read_snapshot(
                self._ticket,
                room,
                ids.data_ptr(),
                values.data_ptr(),
                raw.data_ptr(),
                ts.data_ptr(),
            )
            if needed:
                room = needed
            if got:
                states = self._layout.split(raw[:got])
                yield Entries(
                    ids[:got], all_found(got), values[:got], states, *shown(self._order, ts[:got])
                )

    def _check_usable(self) -> None:
        if self._closed_with is not None:
            raise StateError(
                f"the snapshot of table {self._name!r} is closed; open another with snapshot()."
            )
        if os.getpid() != self._process:
            raise StateError(
                f"the snapshot of table {self._name!r} was opened by process {self._process}, from "
                f"which this one was forked; open one here with snapshot()."
            )

    @property
    def aside_rows(self) -> int:
        """Rows that writers copied aside so far."""
        return self._use()[0]

    @property
    def waited_s(self) -> float:
        """Seconds that writers waited so far, in all."""
        return self._use()[1]

    def _use(self) -> tuple[int, float]:
        return self._closed_with or self._table.snapshot_use()

    def close(self) -> None:
        """Gives memory back and lets waiting writers go on; a second call does nothing."""
        if self._closed_with is None:
            self._closed_with = self._table.snapshot_use()
            self._release()
