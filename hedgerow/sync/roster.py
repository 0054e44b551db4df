"""Replicas that announce themselves: the list at the publisher, and the announcing side."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..core.errors import HedgerowError, InputError
from ..discovery.targets import check_address
from ..wire.rpc import Behaviour, TlsCredentials, new_server, plain_code, service_handler
from ..wire.rpc import listen as bound
from .link import ReplicaLink
from .protocol import ANNOUNCE, LEAVE, ROSTER_SERVICE, read_json, to_json

LEASE_S = 5.0  # a replica that does not announce itself for this long is removed
BEAT_S = 1.0
_THREADS, _MESSAGE_BYTES = 4, 1 << 16
_MOST = 1000  # replicas; each takes a thread and a connection at the publisher
_ANYWHERE = ("0.0.0.0", "[::]")
_log = logging.getLogger("hedgerow")


class Roster:
    """The replicas that announced themselves at `listen`, "host:port". Owns a lock and a server.

    Any client that reaches this address can receive rows, so only replicas may have access to it.

    >>> roster = Roster("127.0.0.1:0")
    >>> with Announcer([roster.address], "127.0.0.1:8500"):
    ...     roster.wait_for(1, timeout_s=30)
    ['127.0.0.1:8500']
    >>> roster.current()
    []
    >>> roster.close()
    """

    def __init__(self, listen: str, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s
        self._changed = threading.Condition()
        self._ends_s: dict[str, float] = {}
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="roster")
        self._server = new_server(pool, _MESSAGE_BYTES)
        verbs = {ANNOUNCE: self._announce, LEAVE: self._leave}
        behaviours = {name: self._answering(verb) for name, verb in verbs.items()}
        handler = service_handler(ROSTER_SERVICE, behaviours, plain_code)
        self._server.add_generic_rpc_handlers((handler,))
        self.address = bound(self._server, listen)
        self._server.start()

    def current(self) -> list[str]:
        """Returns the addresses of the present replicas, in the order of arrival."""
        with self._changed:
            return self._now()

    def wait_for(self, count: int, timeout_s: float) -> list[str]:
        """Waits for `count` replicas, up to `timeout_s`. Returns those that are present then."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._now()) >= count, timeout_s)
            return self._now()

    def close(self) -> None:
        """Stops the server."""
        self._server.stop(0).wait()

    def _now(self) -> list[str]:
        now_s = time.monotonic()
        self._ends_s = {a: end_s for a, end_s in self._ends_s.items() if end_s > now_s}
        return list(self._ends_s)

    def _answering(self, function: Callable[[str], None]) -> Behaviour:
        def answer(data: bytes, context: Any) -> bytes:
            function(_reachable(read_json(data).get("address"), context.peer()))
            return to_json({"lease_s": self._lease_s})

        return answer

    def _announce(self, address: str) -> None:
        with self._changed:
            self._now()
            if address not in self._ends_s and len(self._ends_s) >= _MOST:
                raise InputError(f"{_MOST} replicas are announced already; no more are accepted.")
            self._ends_s[address] = time.monotonic() + self._lease_s
            self._changed.notify_all()

    def _leave(self, address: str) -> None:
        with self._changed:
            self._ends_s.pop(address, None)
            self._changed.notify_all()


def _reachable(address: object, peer: str) -> str:
    """Returns the address of a replica.

    If it listens on all interfaces, its host is the one that the call came from.

    >>> _reachable("0.0.0.0:8500", "ipv4:10.0.0.7:41234")
    '10.0.0.7:8500'
    """
    host, _, port = check_address(address).rpartition(":")
    if host not in _ANYWHERE:
        return f"{host}:{port}"
    kind, _, rest = peer.partition(":")
    caller = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    return f"{caller if kind in ('ipv4', 'ipv6') else '127.0.0.1'}:{port}"


class Announcer:
    """Keeps a replica on the rosters of publishers, and removes it at the end. Owns a thread."""

    def __init__(
        self,
        publishers: Sequence[str],
        address: str,
        *,
        trust: TlsCredentials | None = None,
        beat_s: float = BEAT_S,
    ) -> None:
        self._links = [ReplicaLink(check_address(one), trust) for one in publishers]
        self._told = {"address": address}
        self._beat_s = beat_s
        self._known: dict[str, bool] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)

    @property
    def known(self) -> dict[str, bool]:
        """Whether each publisher accepted the last call."""
        return dict(self._known)

    def start(self) -> Announcer:
        """Starts to announce the replica."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stops announcing and removes the replica from the rosters."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._tell(LEAVE)
        for link in self._links:
            link.close()

    def __enter__(self) -> Announcer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._tell(ANNOUNCE)
            self._ending.wait(self._beat_s)

    def _tell(self, word: str) -> None:
        for link in self._links:
            try:
                link.ask(ROSTER_SERVICE, word, self._told, self._beat_s)
                self._known[link.address] = word == ANNOUNCE
            except HedgerowError as error:
                if self._known.get(link.address, True):
                    _log.warning("the publisher at %s: %s", link.address, error)
                self._known[link.address] = False
