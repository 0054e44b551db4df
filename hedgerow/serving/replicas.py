"""Which servers answer for a model: addresses known now, one channel to each. Owns a lock."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from ..core import registry
from ..core.errors import InputError, StateError
from .channels import Channel, ClientTls

_SHARED_NAME = "serving/replicas"


@dataclass(slots=True)
class _Line:
    """A channel and how many calls use it."""

    channel: Channel
    users: int = 0


@dataclass(slots=True)
class _Lines:
    open: dict[str, _Line] = field(default_factory=dict)
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Replicas:
    """Addresses by key, "ps:1" or "model:ps_1"; `with` makes them those of remote_predict().

    `hedge_after_s` asks a second replica, where there is one, when the first has not answered by
    then or cannot be reached; the earlier answer counts. Without it every call goes to one replica.

    >>> with Replicas({"ps:0": ["127.0.0.1:8500", "127.0.0.1:8501"]}) as replicas:
    ...     replicas.target("m:ps_0", 0, None), Replicas.current() is replicas
    (('ps:0', 'ps_0'), True)
    """

    def __init__(
        self,
        addresses: Mapping[str, Sequence[str]],
        *,
        tls: ClientTls | None = None,
        hedge_after_s: float | None = None,
    ) -> None:
        if hedge_after_s is not None and not hedge_after_s >= 0:
            raise InputError(f"hedge_after_s is {hedge_after_s!r}; it must be at least 0, or None.")
        self.hedge_after_s = hedge_after_s
        self._tls = tls
        self._lock = threading.Lock()
        self._lines = _Lines()
        self._named: bool | None = None
        self._random = random.Random()
        self.update(addresses)

    @property
    def named(self) -> bool:
        """Whether keys have the name of a model in them, as in "model:ps_1" (api version 1)."""
        return bool(self._named)

    @staticmethod
    def current() -> Replicas | None:
        """Those whose `with` this process is in, on any thread."""
        found = registry.find(_SHARED_NAME)
        return found if isinstance(found, Replicas) else None

    def update(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Replaces all addresses; calls under way end where they began."""
        known = {key: tuple(dict.fromkeys(found)) for key, found in addresses.items()}
        if self._named is None and known:
            # Decided once: keys do not change their style while a process lives.
            self._named = any(":ps" in key for key in known)
        wanted = {address for found in known.values() for address in found}
        with self._lock:
            self._lines.known = known
            gone = [a for a, line in self._lines.open.items() if a not in wanted and not line.users]
            idle = [self._lines.open.pop(address).channel for address in gone]
        for channel in idle:
            channel.close()

    def target(self, model_name: str, task: int, old_model_name: str | None) -> tuple[str, str]:
        """The key of a model's addresses, and the name that its servers know it by."""
        if self._named:
            return model_name, model_name
        old = old_model_name or f"ps_{task}"
        return old.replace("_", ":", 1), old

    def choose(self, key: str, count: int = 1) -> list[str]:
        """Some of a key's addresses, each as likely as the others; fewer where there are fewer."""
        with self._lock:
            known = self._lines.known.get(key, ())
            return self._random.sample(known, min(count, len(known)))

    @contextmanager
    def channels(self, addresses: Sequence[str]) -> Iterator[list[Channel]]:
        """The channels to addresses; they stay open inside."""
        with ExitStack() as stack:
            yield [stack.enter_context(self._channel(address)) for address in addresses]

    @contextmanager
    def _channel(self, address: str) -> Iterator[Channel]:
        with self._lock:
            line = self._lines.open.get(address)
            if line is None:
                line = self._lines.open[address] = _Line(Channel(address, self._tls))
            line.users += 1
        try:
            yield line.channel
        finally:
            with self._lock:
                line.users -= 1
                wanted = any(address in found for found in self._lines.known.values())
                ended = not line.users and not wanted
                if ended and self._lines.open.get(address) is line:
                    del self._lines.open[address]
            if ended:
                line.channel.close()

    def close(self) -> None:
        """Forgets all addresses and ends every connection."""
        with self._lock:
            lines, self._lines = self._lines, _Lines()
        for line in lines.open.values():
            line.channel.close()

    def __enter__(self) -> Replicas:
        if Replicas.current() is not None:
            raise StateError("this process has replicas already; update() those.")
        registry.register(_SHARED_NAME, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        registry.release(_SHARED_NAME, self)
        self.close()
