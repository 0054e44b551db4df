"""ZooKeeper: a session over kazoo that reconnects, its cached reads, and the nodes that it owns."""

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
CONNECTED, LOST = "CONNECTED", "LOST"  # kazoo's words for the states of a client


def kazoo_library() -> Any:
    """The module `kazoo.client`; an error that names the extra where it is missing."""
    try:
        import kazoo.client
    except ImportError as error:
        raise MissingExtraError(
            f"ZooKeeper needs kazoo ({error}); pip install hedgerow[zookeeper]."
        ) from error
    return kazoo.client


def kazoo_errors() -> Any:
    """The module of kazoo's exceptions."""
    kazoo_library()
    import kazoo.exceptions

    return kazoo.exceptions


def kazoo_failures() -> tuple[type[Exception], ...]:
    """What a request raises that did not go through."""
    errors = kazoo_errors()
    from kazoo.handlers.threading import KazooTimeoutError

    return errors.KazooException, KazooTimeoutError


def new_client(hosts: str, session_s: float = SESSION_S) -> Any:
    """A client of the servers "host:port,host:port" that reconnects for ever."""
    for_ever = {"max_tries": -1, "delay": 0.05, "max_delay": 2.0}
    return kazoo_library().KazooClient(hosts, timeout=session_s, connection_retry=for_ever)


_Kind = Literal["data", "children"]


@dataclass(frozen=True, slots=True)
class Content:
    """What a node holds, and when it was made: a number that grows with every change anywhere."""

    data: bytes
    created: int


class CachedReads:
    """Contents and children of nodes; only what has changed is read again. Owns a lock.

    Walking a tree through it costs a request for each changed node, and nothing for the others.
    The lock is never held during a request. `changed` is called on kazoo's thread.
    """

    def __init__(self, client: Any, changed: Callable[[], None]) -> None:
        self._client, self._changed = client, changed
        self._lock = threading.Lock()
        self._held: dict[tuple[_Kind, str], Any] = {}
        self._events = 0

    def content(self, path: str) -> Content | None:
        """What a node holds; None where there is none."""
        return self._read("data", path)

    def data(self, path: str) -> bytes | None:
        """The bytes of a node; None where there is none."""
        found = self.content(path)
        return None if found is None else found.data

    def children(self, path: str) -> list[str] | None:
        """The names of the nodes below one; None where there is none."""
        return self._read("children", path)

    def clear(self) -> None:
        """Forgets everything: watches do not outlive a connection."""
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
            if self._events == before:  # else what was read may be old already
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
            if event.path is None:  # the connection ended, and with it every watch
                self._held.clear()
            else:
                self._held.pop(("data", event.path), None)
                self._held.pop(("children", event.path), None)
        self._changed()


class OwnNodes:
    """Nodes that stand as long as this process does. Owns a lock, never held during a request.

    A node that is there already is taken over if another session made it: that is what a process
    finds that came back before its old session ended. `renew` makes missing ones again, and
    leaves those alone that another process has taken over since.
    """

    def __init__(self, client: Any, counters: Counters) -> None:
        self._client, self._counters = client, counters
        self._lock = threading.Lock()
        self._nodes: dict[str, bytes] = {}
        self._lost: set[str] = set()  # nodes of a session that is gone
        self._unsent: set[str] = set()  # what a request did not bring there
        self._unremoved: set[str] = set()

    def paths(self) -> list[str]:
        """What stands, or will stand again."""
        with self._lock:
            return list(self._nodes)

    def put(self, path: str, data: bytes) -> None:
        """Makes a node, or changes it; nothing is sent when it has that content."""
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
        """Makes a node with the next number after `prefix`; its path."""
        path = self._client.create(prefix, data, ephemeral=True, sequence=True, makepath=True)
        with self._lock:
            self._nodes[path] = data
        return path

    def remove(self, path: str) -> None:
        """Removes a node; harmless where it is gone."""
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
        """The session is gone, and all nodes with it, soon if not yet."""
        with self._lock:
            self._lost = set(self._nodes)
            self._unremoved.clear()

    def renew(self) -> None:
        """Makes the nodes again that a lost session or another hand has removed.

        What a failed `put` should have brought is brought now, and what a failed `remove` left is
        removed.
        """
        with self._lock:
            left = list(self._unremoved)
        for path in left:
            self.remove(path)
        for path in self.paths():
            while not self._renewed(path):
                self._counters.add("nodes_raced")  # put() came in between: once more

    def _renewed(self, path: str) -> bool:
        """Renews one node; whether what it holds is still what is wanted."""
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
        """Whether a node was made; one that is ours already gets the content."""
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
                self._counters.add("nodes_raced")  # somebody was quicker: look again


POLL_S = 60.0  # as Monolith: a look at everything, whatever watches say
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
