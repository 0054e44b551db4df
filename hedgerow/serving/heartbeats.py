"""Replicas that something else knows, kept up to date: an agent's heartbeats, a file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from ..core.counters import Counters
from ..wire.messages import agent_service as messages
from ..wire.services import AGENT_SERVICE, methods
from .channels import Channel
from .model import ServingError
from .replicas import Replicas

EVERY_S, DEADLINE_S = 15.0, 5.0
_LOG = logging.getLogger("hedgerow")
Addresses = Mapping[str, Sequence[str]]


class Heartbeats:
    """What an agent tells of row servers and dense servers; asks for each kind by itself.

    A call that fails leaves what that call told last, and is counted as `failed_heartbeats`: the
    servers are there while their agent restarts.

    >>> with Heartbeats("127.0.0.1:1", deadline_s=0.1) as heartbeats:
    ...     heartbeats.ask(), heartbeats.counters.read("failed_heartbeats")
    ({}, 2)
    """

    def __init__(self, agent: str, *, deadline_s: float = DEADLINE_S) -> None:
        self.counters = Counters()
        self._channel, self._deadline_s = Channel(agent), deadline_s
        self._told: dict[int, dict[str, list[str]]] = {}

    def ask(self) -> dict[str, list[str]]:
        """Asks the agent; the addresses of all replicas by key."""
        method = methods(AGENT_SERVICE)["HeartBeat"]
        for kind in (messages.ServerType.PS, messages.ServerType.DENSE):
            request = messages.HeartBeatRequest(server_type=kind)
            try:
                answer = self._channel.call(method, request, self._deadline_s)
            except ServingError as error:
                self.counters.add("failed_heartbeats")
                _LOG.warning("the agent at %s: %s", self._channel.address, error)
                continue
            self._told[kind] = {key: list(one.address) for key, one in answer.addresses.items()}
        return {key: found for told in self._told.values() for key, found in told.items()}

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def __enter__(self) -> Heartbeats:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class KeptReplicas:
    """Replicas that are asked for again and again, on a thread of its own; `with` makes them
    those of this process, as `Replicas` does.

    >>> with KeptReplicas(lambda: {"ps:0": ["127.0.0.1:8500"]}, every_s=60) as replicas:
    ...     replicas.choose("ps:0")
    ['127.0.0.1:8500']
    """

    def __init__(self, source: Callable[[], Addresses], *, every_s: float = EVERY_S) -> None:
        self._source, self._every_s = source, every_s
        self._last = {key: list(found) for key, found in source().items()}
        self.replicas = Replicas(self._last)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="replicas", daemon=True)

    def refresh(self) -> bool:
        """Asks now; whether something had changed."""
        found = {key: list(addresses) for key, addresses in self._source().items()}
        if found == self._last:
            return False
        self._last = found
        self.replicas.update(found)
        return True

    def _keep(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.refresh()
            except Exception:  # the next look may succeed, and the last answer holds until then
                _LOG.exception("replicas could not be asked for")

    def __enter__(self) -> Replicas:
        replicas = self.replicas.__enter__()
        self._thread.start()
        return replicas

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.replicas.__exit__(kind, error, at)
