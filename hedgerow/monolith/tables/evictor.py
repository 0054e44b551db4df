"""Evicts rows of tables in the background at long intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from ...core.clock import Clock, SystemClock
from ...core.counters import Counters
from ...core.errors import DtypeError, InputError
from ...core.units import parse_seconds
from ...tables.eviction import Evicted
from ...tables.host import HostTable

POLL_S = 10.0
Hook = Callable[[str, Evicted], None]


class Evictor:
    """A daemon thread that applies the eviction rules of tables every `every`.

    It checks the clock every ten seconds. The first check only records the time, so a restarted
    process does not evict at once. `on_evicted` is called in the thread with a table's name and its
    evicted rows. An error does not end the thread; `stop` raises the first one. `wait` is called
    with the seconds between two checks, for tests.

    >>> import torch
    >>> import hedgerow as hr
    >>> from hedgerow.core.clock import ManualClock
    >>> config = hr.TableConfig("user", (hr.Segment(1, hr.Zeros(), hr.Sgd()),), evict=hr.Lru(1))
    >>> table, clock = hr.HostTable(config), ManualClock(1000)
    >>> _ = table.assign(torch.tensor([1, 2]), torch.ones(2, 1))
    >>> evictor = Evictor([table], every="1h", clock=clock)
    >>> evictor.poll()
    >>> clock.advance(3600)
    >>> evictor.poll()
    >>> evictor.counts()
    {'errors': 0, 'evictions': 1, 'polls': 2, 'rows': 1}
    """

    def __init__(
        self,
        tables: Sequence[HostTable],
        *,
        every: str | float = "240h",
        on_evicted: Hook | None = None,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._tables = tuple(tables)
        for table in self._tables:
            if not isinstance(table, HostTable):
                raise DtypeError(
                    f"tables holds a {type(table).__name__}; pass HostTables. Call evict() of "
                    f"others between two steps; modules do so by themselves."
                )
            if table.config.evict is None:
                raise InputError(
                    f"table {table.config.name!r} has no eviction rule; make its TableConfig with "
                    f"evict=Ttl(...), Lru(...) or Lfu(...), or leave the table out."
                )
        self._every_s = parse_seconds(every)
        if not 0 < self._every_s < float("inf"):
            raise InputError(f"every is {every!r}; it must be a positive duration, such as '240h'.")
        self._on_evicted = on_evicted
        self._clock: Clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._thread: threading.Thread | None = None
        self._last_s: int | None = None
        self._counts = Counters()
        self._error: Exception | None = None

    def start(self) -> Evictor:
        """Starts the thread."""
        if self._thread is not None:
            raise InputError("this evictor runs already; stop it before it is started again.")
        self._stopping.clear()
        self._last_s = None
        self._thread = threading.Thread(target=self._polls, name="hedgerow-evictor", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stops the thread after the current eviction. Raises the first error since the start."""
        self._end()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def poll(self) -> None:
        """Checks the clock once, and evicts if it is time. The thread calls this."""
        now_s = self._clock.now_s()
        self._counts.add("polls")
        if self._last_s is None:
            self._last_s = now_s
        elif now_s - self._last_s >= self._every_s:
            self._last_s = now_s
            for table in self._tables:
                self._evict(table)

    def counts(self) -> dict[str, int]:
        """Returns the numbers of polls, evictions (one table each), evicted rows and errors."""
        return {name: self._counts.read(name) for name in ("errors", "evictions", "polls", "rows")}

    def __enter__(self) -> Evictor:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return self.stop()
        self._end()
        if self._error is not None:  # the error of the body takes precedence
            error.add_note(f"Besides, background eviction failed: {self._error!r}")
        return None

    def _evict(self, table: HostTable) -> None:
        try:
            evicted = table.evict(capture=self._on_evicted is not None)
            self._counts.add("evictions")
            self._counts.add("rows", evicted.rows)
            if self._on_evicted is not None and evicted.rows:
                self._on_evicted(table.config.name, evicted)
        except Exception as error:  # kept for `stop`, so that the other tables are still evicted
            self._counts.add("errors")
            self._error = self._error or error

    def _polls(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._wait(POLL_S)

    def _end(self) -> None:
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
