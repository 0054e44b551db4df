"""ZooKeeper over kazoo: a session that reconnects, its cached reads, and its ephemeral nodes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from ..core.counters import Counters
from ..core.errors import LaunchError, MissingExtraError, StateError

SESSION_S = 10.0
CONNECTED, LOST = "CONNECTED", "LOST"  # kazoo's names of a client's states


def kazoo_library() -> Any:
    """Returns the module kazoo.client; raises an error that names the extra if it is missing."""
    try:
        import kazoo.client
    except ImportError as error:
        raise MissingExtraError(
            f"ZooKeeper needs kazoo ({error}); pip install hedgerow[zookeeper]."
        ) from error
    return kazoo.client


def kazoo_errors() -> Any:
    """Returns the module of kazoo's exceptions."""
    kazoo_library()
    import kazoo.exceptions

    return kazoo.exceptions


def kazoo_failures() -> tuple[type[Exception], ...]:
    """Returns the exceptions of requests that failed."""
    errors = kazoo_errors()
    from kazoo.handlers.threading import KazooTimeoutError

    return errors.KazooException, KazooTimeoutError


def new_client(hosts: str, session_s: float = SESSION_S) -> Any:
    """Returns a client of the servers "host:port,host:port" that reconnects for ever."""
    for_ever = {"max_tries": -1, "delay": 0.05, "max_delay": 2.0}
    return kazoo_library().KazooClient(hosts, timeout=session_s, connection_retry=for_ever)


_Kind = Literal["data", "children"]


@dataclass(frozen=True, slots=True)
class Content:
    """A node's bytes, and the transaction id of its creation, which grows with every change."""

    data: bytes
    created: int


class CachedReads:
    """Cached contents and children of nodes; only changed nodes are read again. Owns a lock.

    A walk through a tree costs one request per changed node. The lock is never held during a
    request. `changed` is called on kazoo's thread.
    """

    def __init__(self, client: Any, changed: Callable[[], None]) -> None:
        self._client, self._changed = client, changed
        self._lock = threading.Lock()
        self._held: dict[tuple[_Kind, str], Any] = {}
        self._events = 0

    def content(self, path: str) -> Content | None:
        """Returns a node's content, or None if there is no node."""
        return self._read("data", path)

    def data(self, path: str) -> bytes | None:
        """Returns a node's bytes, or None if there is no node."""
        found = self.content(path)
        return None if found is None else found.data

    def children(self, path: str) -> list[str] | None:
        """Returns the names of a node's children, or None if there is no node."""
        return self._read("children", path)

    def clear(self) -> None:
        """Drops the cache: watches end with their connection."""
        with self._lock:
            self._events += 1
            self._held.clear()

    def _read(self, kind: _Kind, path: str) -> Any:
        with self._lock:
            if (kind, path) in self._held:
                return self._held[kind, path]
            before = self._events
        found = self._ask(kind, path)
        with self._lock:
            if self._events == before:  # else the value read may already be stale
                self._held[kind, path] = found
        return found

    def _ask(self, kind: _Kind, path: str) -> Any:
        missing = kazoo_errors().NoNodeError
        while True:
            try:
                if kind == "data":
                    data, stat = self._client.get(path, watch=self._on_event)
                    return Content(data, stat.czxid)
                return list(self._client.get_children(path, watch=self._on_event))
            except missing:
                if self._client.exists(path, watch=self._on_event) is None:
                    return None

    def _on_event(self, event: Any) -> None:
        with self._lock:
            self._events += 1
            if event.path is None:  # the connection has ended, and all watches with it
                self._held.clear()
            else:
                self._held.pop(("data", event.path), None)
                self._held.pop(("children", event.path), None)
        self._changed()


class OwnNodes:
    """Ephemeral nodes of this process. Owns a lock, never held during a request.

    An existing node of another session is taken over by put(): a restarted process finds such
    nodes before its old session ends. `renew` makes missing nodes again. It leaves a node to a
    process that has taken it over, unless this session was lost or the last put() failed.
    """

    def __init__(self, client: Any, counters: Counters) -> None:
        self._client, self._counters = client, counters
        self._lock = threading.Lock()
        self._nodes: dict[str, bytes] = {}
        self._lost: set[str] = set()  # nodes of a lost session
        self._unsent: set[str] = set()  # nodes whose last put() has not succeeded
        self._unremoved: set[str] = set()

    def paths(self) -> list[str]:
        """Returns the paths of all nodes, including those to be made again."""
        with self._lock:
            return list(self._nodes)

    def put(self, path: str, data: bytes) -> None:
        """Makes or changes a node; sends nothing if its content is the same."""
        with self._lock:
            sent = path not in self._lost and path not in self._unsent
            if sent and self._nodes.get(path) == data:
                return
            self._nodes[path] = data
            self._unsent.add(path)
            self._unremoved.discard(path)
        self._make(path, data, take_over=True)
        with self._lock:
            self._unsent.discard(path)

    def put_numbered(self, prefix: str, data: bytes) -> str:
        """Makes a node with the next number after `prefix`, and returns its path."""
        path = self._client.create(prefix, data, ephemeral=True, sequence=True, makepath=True)
        with self._lock:
            self._nodes[path] = data
        return path

    def remove(self, path: str) -> None:
        """Removes a node; has no effect if it is gone."""
        with self._lock:
            self._nodes.pop(path, None)
            self._lost.discard(path)
            self._unsent.discard(path)
            self._unremoved.add(path)
        try:
            self._client.delete(path)
        except kazoo_errors().NoNodeError:
            self._counters.add("nodes_gone_already")
        with self._lock:
            self._unremoved.discard(path)

    def mark_lost(self) -> None:
        """Records that the session is lost, and all its nodes with it."""
        with self._lock:
            self._lost = set(self._nodes)
            self._unremoved.clear()

    def renew(self) -> None:
        """Makes nodes again that a lost session or another process has removed.

        Also retries every `put` and `remove` that has failed.
        """
        with self._lock:
            left = list(self._unremoved)
        for path in left:
            self.remove(path)
        for path in self.paths():
            while not self._renewed(path):
                self._counters.add("nodes_raced")  # a put() changed it meanwhile: try again

    def _renewed(self, path: str) -> bool:
        """Renews one node; returns False if put() has changed its content meanwhile."""
        with self._lock:
            data, lost, late = self._nodes.get(path), path in self._lost, path in self._unsent
        if data is None:
            return True
        if self._make(path, data, take_over=late or lost, only_missing=not late):
            self._counters.add("nodes_renewed")
        with self._lock:
            wanted = self._nodes.get(path)
            if wanted == data:
                self._lost.discard(path)
                self._unsent.discard(path)
                return True
        if wanted is None:  # removed meanwhile
            self.remove(path)
        return wanted is None

    def _make(self, path: str, data: bytes, *, take_over: bool, only_missing: bool = False) -> bool:
        """Makes a node or sets the content of an own one; returns whether it was made."""
        errors = kazoo_errors()
        while True:
            stat = self._client.exists(path)
            try:
                if stat is None:
                    self._client.create(path, data, ephemeral=True, makepath=True)
                    return True
                if stat.ephemeralOwner == self._client.client_id[0]:
                    if not only_missing:
                        self._client.set(path, data)
                    return False
                if not take_over:
                    self._counters.add("nodes_of_others")
                    return False
                self._client.delete(path)
            except (errors.NoNodeError, errors.NodeExistsError):
                self._counters.add("nodes_raced")  # another process was faster: look again


POLL_S = 60.0  # every node is read again after this time, as in Monolith
_RETRY_S = 1.0  # after a job failed, if the connection is intact
_LOG = logging.getLogger("hedgerow")


class Session:
    """A connection to ZooKeeper that several readers share. Owns a lock and a thread.

    `reads` caches. A job passed to `follow()` runs whenever a node that it has read changes,
    after every reconnection, and every `poll_s` seconds. Nodes of `own` are ephemeral and are made
    again after the loss of the session. A job that fails is counted and retried; its earlier
    results stay.
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
        """Returns a started session with the servers "host:port,host:port"."""
        return cls(new_client(hosts, session_s), poll_s=poll_s).start()

    def start(self, timeout_s: float = 15.0) -> Self:
        """Connects; raises LaunchError if no server answers in time."""
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
        """Ends the session; its ephemeral nodes disappear at once."""
        with self._state:
            ended, self._ended = self._ended, True
            self._state.notify_all()
        if ended:
            return
        self.client.remove_listener(self._on_state)
        self.client.stop()  # first: a job may be waiting for an answer that will not come
        if self._thread is not None:
            self._thread.join()
        self.client.close()

    def follow(self, job: Callable[[], None]) -> None:
        """Runs a job now, and again whenever a node that it has read changes."""
        with self._turn:
            job()
            self._jobs.append(job)

    def unfollow(self, job: Callable[[], None]) -> None:
        """Stops running a job."""
        with self._turn:
            self._jobs = [one for one in self._jobs if one != job]

    def wake(self) -> None:
        """Makes the jobs run soon."""
        with self._state:
            self._pending = True
            self._state.notify_all()

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Waits until all reported changes are processed; returns False after `timeout_s`."""
        with self._state:
            return self._state.wait_for(lambda: not self._pending and not self._busy, timeout_s)

    def _on_state(self, state: str) -> None:
        """Handles a change of the connection's state; runs on kazoo's thread, so never blocks."""
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
        """Runs all jobs; returns whether none failed. Does nothing while disconnected."""
        if self.client.state != CONNECTED:
            return True
        if anew:
            self.reads.clear()
        with self._turn:
            failures = [job for job in (self.own.renew, *self._jobs) if not self._try(job)]
        return not failures

    def _try(self, job: Callable[[], None]) -> bool:
        """Runs one job; returns whether it succeeded. Logs and counts any exception."""
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
