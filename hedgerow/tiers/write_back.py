"""Changed rows in flight from a cache to the store behind it, and the log of such writes."""

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

_IDLE_S = 1.0  # the thread ends after so long without work: to start one takes longer than a step
_CHUNK_ROWS = 8192  # written under one hold of the lock, which bounds the wait of a reader

# Ids that are logged for one reader. A reader that takes longer gets none of its rows. Without a
# limit, a batch that is prefetched and never looked up would fill the memory.
_LOGGED_ROWS = 1 << 22


class WriteBack:
    """A bounded queue of dirty rows in front of `slow`, written by a thread of its own.

    Owns the lock under which rows leave the queue. A row in the queue is newer than that in the
    slow store: a reader or writer of the slow store holds the queue still, or settles the rows
    first. The thread ends a second after its last work, or with the process.

    Tables of a group also evict together, see `PendingWriteBack`. Those rows are still cached, and
    are not in the queue. They land before anyone looks at the queue.
    """

    def __init__(self, slow: HostTable, room_rows: int, counters: Counters) -> None:
        self._slow, self._room, self._counters = slow, room_rows, counters
        # The queued rows are a small table: it finds them by id and reads them like other rows.
        self.queued = HostTable(replace(slow.config, admit=None, initial_capacity=1))
        self.order: deque[Int64[Tensor, "n"]] = deque()  # ids in the order of their writes
        self.pending: deque[PendingWriteBack] = deque()  # shared by the tables of a group
        self._changed = Condition()
        self.thread: Thread | None = None
        self._error: BaseException | None = None
        self._stopper = ThreadStopper(self, self._changed)

    def follow(self, pending: deque[PendingWriteBack]) -> None:
        """Takes the joint write-backs of a group of tables, some of whose rows are this table's."""
        self.pending = pending

    def land(self, since: int = 0) -> None:
        """Completes the joint write-backs of the group.

        All of them, or those with rows that may have been used at the time `since` or later.
        """
        for one in tuple(self.pending):
            if one.limit < since:
                continue
            one.land()
            with suppress(ValueError):  # another thread has removed it
                self.pending.remove(one)

    def put(self, rows: MovingRows) -> None:
        """Queues rows; waits while the queue is full. Raises an error that the thread had."""
        with self._changed:
            while self.queued.size() and self.queued.size() + len(rows) > self._room:
                self._raise_error()
                self.start()
                self._changed.wait()
            self._raise_error()
            self.order.extend(rows.ids.split(_CHUNK_ROWS))  # first: a row without a turn would stay
            self.queued.move_in(rows)
            self.start()
            self._changed.notify_all()

    @contextmanager
    def still(self) -> Iterator[HostTable]:
        """The queued rows, none of which reaches the slow store meanwhile."""
        self.land()
        with self._changed:
            yield self.queued

    def take_back(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Takes those of the ids that are queued out of the queue."""
        self.land()
        with self._changed:
            rows = self.queued.read_out(ids)
            rows = rows.where(rows.found)
            self.queued.move_out(rows.ids)
            self._changed.notify_all()
            return rows

    def is_empty(self) -> bool:
        """Whether the queue is empty now; other threads may fill it."""
        return not self.order

    def settle(self, ids: Int64[Tensor, "n"]) -> None:
        """Writes those of the ids that are queued to the slow store at once."""
        if self.is_empty():  # most often
            return
        with self._changed:
            if self.queued.size():
                self._write(ids)

    def flush(self) -> None:
        """Writes all queued rows."""
        self.land()
        with self._changed:
            self._error = None  # a write that fails again raises here
            while self.order:
                self._write_next()

    def clear(self) -> None:
        """Forgets all queued rows."""
        with self._changed:
            self.queued.clear()
            self.order.clear()
            self._changed.notify_all()

    # ---- the thread

    def start(self) -> None:
        """Starts the thread if there is work and none runs; the caller holds the queue still."""
        alive = self.thread is not None and self.thread.is_alive()
        if not alive and self.order:  # a thread may have failed to start, or be a parent's
            self.thread = Thread(target=self._work, name="hedgerow write-back", daemon=True)
            self._stopper.start(self.thread)

    def _work(self) -> None:
        while self._work_on():
            pass

    def _work_on(self) -> bool:
        """Writes one chunk. False if there was none for a while, or it could not be written."""
        with self._changed:
            try:
                self._changed.wait_for(lambda: self.order or self._stopper.must_stop, _IDLE_S)
                if self.order and not self._stopper.must_stop:
                    self._write_next()
                    return True
            except BaseException as error:  # the rows stay; the next `put` or `flush` raises it
                self._error = error
                self._changed.notify_all()
            self.thread = None
            return False

    def _write_next(self) -> None:
        self._write(self.order[0])
        self.order.popleft()

    def _write(self, ids: Int64[Tensor, "n"]) -> None:
        rows = self.queued.read_out(ids)
        rows = rows.where(rows.found)
        if len(rows):
            self._slow.move_in(rows)
            self.queued.move_out(rows.ids)
            self._counters.add("write_backs", len(rows))
        self._changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


@dataclass(slots=True, eq=False)
class LogReader:
    """One reader behind caches: the ids that were written since it began, by cache."""

    era: int  # all rows of a cache were replaced since, if the log has another
    since: int  # the reader asks for no row that was used before this time
    log: list[tuple[object, Ids]] = field(default_factory=list)
    rows: int = 0  # in the log


class WriteLog:
    """Tells readers without the lock which rows were written behind caches while they read.

    Caches that step together share one log, as they share one lock. The caller holds that lock.
    Only `end` may be called by any thread, any number of times.
    """

    def __init__(self) -> None:
        self.readers: set[LogReader] = set()
        self._era = 0  # how often all rows of a cache were replaced

    def __len__(self) -> int:
        return len(self.readers)

    def begin(self, since: int = 0) -> LogReader:
        """Starts to log for a reader.

        A reader that asks only for rows that were not cached at the time `since` need not hear of
        rows that were last used before.
        """
        reader = LogReader(self._era, since)
        self.readers.add(reader)
        return reader

    def end(self, reader: LogReader) -> None:
        """The reader has finished."""
        self.readers.discard(reader)

    def write(self, cache: object, ids: Ids) -> None:
        """Rows of these ids are written behind a cache."""
        readers = tuple(self.readers)  # other threads may end theirs meanwhile
        if not readers or not len(ids):
            return
        ids = ids.copy()  # the caller may write to them
        for reader in readers:
            reader.log.append((cache, ids))
            reader.rows += len(ids)
            if reader.rows > _LOGGED_ROWS:
                self.end(reader)
                reader.log.clear()

    def replaced(self) -> None:
        """All rows of a cache were replaced: no row that was read before is valid."""
        self._era += 1

    def since(self) -> int | None:
        """Rows last used before this time may leave without a log entry; None: any row may."""
        return min((reader.since for reader in tuple(self.readers)), default=None)

    def is_written(self, reader: LogReader) -> bool:
        """Whether anything was written since the reader began."""
        return bool(reader.log) or reader.era != self._era or reader not in self.readers

    def keep_unchanged(self, reader: LogReader, cache: object, ids: Ids, which: np.ndarray) -> None:
        """Clears `which` for those of a cache's ids that were written since the reader began."""
        if reader.era != self._era or reader not in self.readers:
            which[:] = False
            return
        written = [own for other, own in reader.log if other is cache]
        if written:
            which &= ~are_among(ids, np.concatenate(written))


def no_rows() -> Int64[Tensor, "0"]:
    """No ids."""
    return torch.empty(0, dtype=torch.int64)
