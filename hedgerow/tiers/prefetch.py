"""Batches whose rows are brought to a cache before they are needed, by a thread of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Thread
from types import TracebackType

import numpy as np

from ..core.ids import distinct_ids
from .locks import ThreadStopper
from .residency_map import Ids

_IDLE_S = 1.0  # so long the thread waits for more


class Prefetched:
    """One batch on its way to the cache, from `CachingTable.prefetch`; a context that releases it.

    From the call on its distinct keys count as outstanding. Once its rows are there they stay,
    until `release`.
    """

    def __init__(self, ids: Ids, let_go: Callable[[Prefetched], None]) -> None:
        self.ids = ids
        self.home: object = None
        self.places: Ids = ids[:0]  # of its home, pinned, with what was `born` there
        self.born: Ids = ids[:0]
        self._let_go = let_go
        self._done = Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Prefetched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def is_done(self) -> bool:
        """Whether its rows are there, or could not be brought."""
        return self._done.is_set()

    def wait(self) -> None:
        """Until its rows are there; raises what went wrong."""
        self._done.wait()
        if self._error is not None:
            raise self._error

    def release(self) -> None:
        """Its rows may leave the cache; a second call does nothing."""
        self._done.wait()
        self._let_go(self)

    def finish(self, error: BaseException | None) -> None:
        """Its rows are there, or never will be."""
        self._error = error
        self._done.set()


class Prefetcher:
    """Brings batches in their order; owns a lock for its queue. Its thread ends when idle."""

    def __init__(self, bring: Callable[[Prefetched], None]) -> None:
        self._bring = bring
        self._waiting: deque[Prefetched] = deque()
        self._outstanding: list[Prefetched] = []
        self._lock = Condition()
        self._thread: Thread | None = None
        self._ending = ThreadStopper(self, self._lock)

    def add(self, batch: Prefetched, most_ids: int) -> int | None:
        """Queues a batch, unless that were more distinct keys than `most_ids`: how many then."""
        with self._lock:
            every = [batch.ids, *(one.ids for one in self._outstanding)]
            many = len(distinct_ids(np.concatenate(every)))
            if many > most_ids:
                return many
            if self._thread is None or not self._thread.is_alive():  # not started, or a parent's
                self._thread = Thread(target=self._work, name="hedgerow prefetch", daemon=True)
                # It waits for the lock; where it cannot start, nothing waits.
                self._ending.start(self._thread)
            self._outstanding.append(batch)
            self._waiting.append(batch)
            self._lock.notify_all()
        return None

    def remove(self, batch: Prefetched) -> bool:
        """The batch is outstanding no longer; whether it was."""
        with self._lock:
            was = batch in self._outstanding
            if was:
                self._outstanding.remove(batch)
            return was

    def is_outstanding(self) -> bool:
        """Whether a batch was not released yet."""
        return bool(self._outstanding)

    def under_way(self) -> list[Prefetched]:
        """Batches whose rows are not there yet."""
        if not self._outstanding:  # most often; what is added from now on is not asked for
            return []
        with self._lock:
            return [batch for batch in self._outstanding if not batch.is_done()]

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._ending.has_come, _IDLE_S)
                if not self._waiting or self._ending.has_come:
                    self._thread = None
                    return
                batch = self._waiting.popleft()
            try:
                self._bring(batch)
            except BaseException as error:  # it belongs to whoever waits for the batch
                batch.finish(error)
            else:
                batch.finish(None)
