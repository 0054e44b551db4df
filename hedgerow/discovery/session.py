"""A ZooKeeper session that outlives its losses: own nodes come back, readers read again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ..core.counters import Counters
from ..core.errors import LaunchError, StateError
from .cached_reads import CachedReads
from .own_nodes import OwnNodes
from .zookeeper import CONNECTED, LOST, SESSION_S, kazoo_failures, new_client

POLL_S = 60.0  # as the original: a look at everything, whatever watches say
_RETRY_S = 1.0  # after a failure with the connection intact
_LOG = logging.getLogger("hedgerow")


class Session:
    """A connection to ZooKeeper that several readers share. Owns a lock and a thread.

    `reads` caches; jobs given to `follow()` run whenever something that they read has changed,
    after every reconnection, and every `poll_s` seconds. Nodes given to `own` are ephemeral and
    are made again when a session was lost. A job that fails is counted and tried again; what it
    had found before stays.
    """

    def __init__(self, client: Any, *, poll_s: float = POLL_S) -> None:
        self.client = client
        self.counters = Counters()
        self.reads = CachedReads(client, self.wake)
        self.own = OwnNodes(client, self.counters)
        self._poll_s = poll_s
        self._jobs: list[Callable[[], None]] = []
        self._turn = threading.RLock()  # jobs run one after the other
        self._state = threading.Condition()
        self._pending, self._busy, self._ended = False, False, False
        self._thread: threading.Thread | None = None

    @classmethod
    def connect(cls, hosts: str, session_s: float = SESSION_S, *, poll_s: float = POLL_S) -> Self:
        """A session with the servers "host:port,host:port", started."""
        return cls(new_client(hosts, session_s), poll_s=poll_s).start()

    def start(self, timeout_s: float = 15.0) -> Self:
        """Connects; an error if nobody answers in time."""
        if self._thread is not None:
            raise StateError("this session was started already; make a new one.")
        self.client.add_listener(self._on_state)
        try:
            self.client.start(timeout=timeout_s)
        except kazoo_failures() as error:
            self.client.stop()
            self.client.close()
            raise LaunchError(
                f"ZooKeeper does not answer within {timeout_s:g} s: {error}; check its address."
            ) from error
        self._thread = threading.Thread(target=self._work, name="zookeeper", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the session; its nodes are gone at once."""
        with self._state:
            ended, self._ended = self._ended, True
            self._state.notify_all()
        if ended:
            return
        self.client.remove_listener(self._on_state)
        self.client.stop()  # first: a job may wait for an answer that does not come
        if self._thread is not None:
            self._thread.join()
        self.client.close()

    def follow(self, job: Callable[[], None]) -> None:
        """Runs a job now, and again whenever what it read has changed."""
        with self._turn:
            job()
            self._jobs.append(job)

    def unfollow(self, job: Callable[[], None]) -> None:
        """Runs a job no more."""
        with self._turn:
            self._jobs = [one for one in self._jobs if one != job]

    def wake(self) -> None:
        """Lets the jobs run soon."""
        with self._state:
            self._pending = True
            self._state.notify_all()

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Waits until every change that was told has been taken in; whether that came true."""
        with self._state:
            return self._state.wait_for(lambda: not self._pending and not self._busy, timeout_s)

    def _on_state(self, state: str) -> None:
        """On kazoo's thread, which must not wait."""
        if state == LOST:
            self.counters.add("sessions_lost")
            self.own.mark_lost()
        self.reads.clear()
        if state == CONNECTED:
            self.wake()

    def _work(self) -> None:
        failed = False
        while True:
            with self._state:
                wait_s = _RETRY_S if failed else self._poll_s
                told = self._state.wait_for(lambda: self._pending or self._ended, wait_s)
                if self._ended:
                    return
                self._pending, self._busy = False, True
            failed = not self._run_jobs(anew=not told and not failed)
            with self._state:
                self._busy = False
                self._state.notify_all()

    def _run_jobs(self, anew: bool) -> bool:
        """Whether all went well; without a connection there is nothing to do but wait for it."""
        if self.client.state != CONNECTED:
            return True
        if anew:
            self.reads.clear()
        with self._turn:
            failures = [job for job in (self.own.renew, *self._jobs) if not self._try(job)]
        return not failures

    def _try(self, job: Callable[[], None]) -> bool:
        """Runs one job; whatever it raises, the others and its next turn come."""
        try:
            job()
        except Exception as error:
            self.counters.add("failed_refreshes")
            ours = not isinstance(error, kazoo_failures())
            _LOG.warning("ZooKeeper: %r; trying again", error, exc_info=ours)
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
