"""Changed rows on their way from a cache to the store behind it, and the log of such writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Condition, Thread
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.counters import Counters
from ..core.ids import are_among
from ..core.shapes import Int64
from ..tables.host import HostTable
from ..tables.moving import MovingRows
from .locks import ThreadStopper
from .residency_map import Ids

if TYPE_CHECKING:
    from .eviction import PendingWriteBack

# Ids that are noted for who reads behind a cache. Who takes longer gets none of the rows: a batch
# that is prefetched and never looked up would fill the memory.
_NOTED_ROWS = 1 << 22


@dataclass(slots=True, eq=False)
class LogReader:
    """Ids that were written behind caches since somebody began to read there, by cache."""

    era: int  # rows that were replaced altogether since are not those
    since: int  # rows that were last used before are not asked for
    log: list[tuple[object, Ids]] = field(default_factory=list)
    rows: int = 0  # in the log


class WriteLog:
    """Who reads behind caches; those that step together have one, as they have one lock.

    The caller has that lock, but for `end`, which any thread may say as often as it likes.
    """

    def __init__(self) -> None:
        self._open: set[LogReader] = set()
        self._era = 0  # how often all rows of a cache were replaced

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, since: int = 0) -> LogReader:
        """From now on it is noted what is written.

        Who asks only for rows that were not cached at the time `since` is told of others in vain.
        """
        notes = LogReader(self._era, since)
        self._open.add(notes)
        return notes

    def end(self, notes: LogReader) -> None:
        """Nobody asks for these any more."""
        self._open.discard(notes)

    def write(self, cache: object, ids: Ids) -> None:
        """Rows of these ids are written behind a cache."""
        noting = tuple(self._open)  # others may end theirs meanwhile
        if not noting or not len(ids):
            return
        ids = ids.copy()  # the caller may write to them
        for notes in noting:
            notes.log.append((cache, ids))
            notes.rows += len(ids)
            if notes.rows > _NOTED_ROWS:
                self.end(notes)
                notes.log.clear()

    def replaced(self) -> None:
        """All rows of a cache were: nobody gets what was read before."""
        self._era += 1

    def since(self) -> int | None:
        """Rows that were last used before this time may leave unnoted; None = all may."""
        return min((notes.since for notes in tuple(self._open)), default=None)

    def is_written(self, notes: LogReader) -> bool:
        """Whether anything was written since these began."""
        return bool(notes.log) or notes.era != self._era or notes not in self._open

    def keep_unchanged(self, notes: LogReader, cache: object, ids: Ids, which: np.ndarray) -> None:
        """Leaves only those `which` of a cache's ids are as they were read."""
        if notes.era != self._era or notes not in self._open:
            which[:] = False
            return
        written = [own for other, own in notes.log if other is cache]
        if written:
            which &= ~are_among(ids, np.concatenate(written))


_IDLE_S = 1.0  # so long the thread waits for more: starting one takes longer than a small step
_CHUNK_ROWS = 8192  # written under one hold of the lock: so long a reader waits at most


class WriteBack:
    """A bounded queue of rows in front of `slow`; owns the lock under which rows leave it.

    What is on its way counts: whoever reads or writes the slow store for a row that may be here
    holds the rows still, or settles them first. The thread ends a second after its last work, or
    with the process. Rows that are written together with those of other tables are cached still,
    and not in the queue: they land before whoever holds all rows still may look.
    """

    def __init__(self, slow: HostTable, room_rows: int, counters: Counters) -> None:
        self._slow, self._room, self._counters = slow, room_rows, counters
        # As a table of their own: found by id, and read like any other row.
        self._rows = HostTable(replace(slow.config, admit=None, initial_capacity=1))
        self._order: deque[Int64[Tensor, "n"]] = deque()
        self._leaving: deque[PendingWriteBack] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._ending = ThreadStopper(self, self._changed)

    def follow(self, leaving: deque[PendingWriteBack]) -> None:
        """Some rows of this table are among those of these, which several tables share."""
        self._leaving = leaving

    def land(self, since: int = 0) -> None:
        """Rows that are written together with those of other tables arrive.

        All of them, or those of which some may have been used at the time `since` or later.
        """
        for one in tuple(self._leaving):
            if one.limit < since:
                continue
            one.land()
            with suppress(ValueError):  # another thread was here
                self._leaving.remove(one)

    def put(self, rows: MovingRows) -> None:
        """Takes rows to write; waits while the queue is full. Raises what the thread could not."""
        with self._changed:
            while self._rows.size() and self._rows.size() + len(rows) > self._room:
                self._raise_error()
                self._start()
                self._changed.wait()
            self._raise_error()
            self._order.extend(rows.ids.split(_CHUNK_ROWS))  # first: rows in no order would stay
            self._rows.move_in(rows)
            self._start()
            self._changed.notify_all()

    @contextmanager
    def still(self) -> Iterator[HostTable]:
        """The rows on their way, none of which arrives meanwhile."""
        self.land()
        with self._changed:
            yield self._rows

    def take_back(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Those of the ids that are still on their way, and are so no longer."""
        self.land()
        with self._changed:
            rows = self._rows.read_out(ids)
            rows = rows.where(rows.found)
            self._rows.move_out(rows.ids)
            self._changed.notify_all()
            return rows

    def is_empty(self) -> bool:
        """Whether no row is in the queue; what sets out from now on is not asked for."""
        return not self._order

    def settle(self, ids: Int64[Tensor, "n"]) -> None:
        """Brings those of the ids that are on their way to the slow store at once."""
        if self.is_empty():  # most often
            return
        with self._changed:
            if self._rows.size():
                self._write(ids)

    def flush(self) -> None:
        """Brings all of them there."""
        self.land()
        with self._changed:
            self._error = None  # what fails again is raised here
            while self._order:
                self._write_next()

    def clear(self) -> None:
        """Forgets them."""
        with self._changed:
            self._rows.clear()
            self._order.clear()
            self._changed.notify_all()

    # ---- the thread

    def _start(self) -> None:
        alive = self._thread is not None and self._thread.is_alive()
        if not alive and self._order:  # a thread may have failed to start, or be a parent's
            self._thread = Thread(target=self._work, name="hedgerow write-back", daemon=True)
            self._ending.start(self._thread)

    def _work(self) -> None:
        while self._work_on():
            pass

    def _work_on(self) -> bool:
        """One chunk; False if there was none for a while, or it could not be written."""
        with self._changed:
            try:
                self._changed.wait_for(lambda: self._order or self._ending.has_come, _IDLE_S)
                if self._order and not self._ending.has_come:
                    self._write_next()
                    return True
            except BaseException as error:  # rows stay here; the next `put` or `flush` says so
                self._error = error
                self._changed.notify_all()
            self._thread = None
            return False

    def _write_next(self) -> None:
        self._write(self._order[0])
        self._order.popleft()

    def _write(self, ids: Int64[Tensor, "n"]) -> None:
        rows = self._rows.read_out(ids)
        rows = rows.where(rows.found)
        if len(rows):
            self._slow.move_in(rows)
            self._rows.move_out(rows.ids)
            self._counters.add("write_backs", len(rows))
        self._changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def no_rows() -> Int64[Tensor, "0"]:
    """No ids."""
    return torch.empty(0, dtype=torch.int64)
