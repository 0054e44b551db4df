"""One replica of a publisher: a thread that keeps all models of the replica up to date."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import ConfigError, HedgerowError
from ..tables.changes import TouchedBatch
from ..wire.rpc import TlsCredentials
from .link import ReplicaLink, TargetError
from .pending import Pass
from .protocol import DENSE, DESCRIBE, REPLICA_SERVICE, DensePush, DenseState, ServedModel
from .pushes import Observe
from .source import RowSource
from .stream import Stream, StreamStatus, fits

HOLD_S = 10.0  # an address loses its claim to a replica after this time without an answer


class ReplicaClaims:
    """Which address each replica is served through, by the incarnation of its model. Owns a lock.

    If a replica has several addresses, only the first one is used.

    >>> claims = ReplicaClaims()
    >>> claims.claim("i1", "localhost:8500"), claims.claim("i1", "127.0.0.1:8500")
    ('localhost:8500', 'localhost:8500')
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, float]] = {}  # the address, and when its claim ends

    def claim(self, incarnation: str, address: str) -> str:
        """Returns the address that holds the claim: `address`, unless another one holds it."""
        now_s = time.monotonic()
        with self._lock:
            self._held = {key: one for key, one in self._held.items() if one[1] > now_s}
            owner, _ = self._held.get(incarnation, (address, 0.0))
            if owner == address:
                self._held[incarnation] = (address, now_s + self._hold_s)
            return owner

    def give_up(self, address: str) -> None:
        """Releases the claims of an address."""
        with self._lock:
            self._held = {key: one for key, one in self._held.items() if one[0] != address}


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_DESCRIBE_S = 2.0  # between two checks of the models that a replica serves
_log = logging.getLogger("hedgerow")


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """The settings that all replicas of a publisher share."""

    publisher: str
    model: str | None  # the one model to update; None: all models with these tables
    most_pending: int
    timeout_s: float
    trust: TlsCredentials | None
    claims: ReplicaClaims
    moved: threading.Event  # set when a replica has completed a pass or received weights


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """The state of one replica.

    `failures` counts failed rounds in a row; `error` is the last error.

    `same_as` is another address of the same replica, which is used instead of this one. `dense`
    holds the number of the weights last sent to each model, and `dense_refused` the error of each
    model that refused them.
    """

    address: str
    listed: bool
    reached: bool
    failures: int
    error: str
    streams: tuple[StreamStatus, ...]
    dense: Mapping[str, int]
    dense_refused: Mapping[str, str]
    same_as: str = ""

    @property
    def live(self) -> bool:
        """Whether the replica has every row, except for pending changes."""
        return bool(self.streams) and all(stream.phase == "live" for stream in self.streams)


class Target:
    """The replica at one address. Owns a thread, and a lock over its list of streams."""

    def __init__(
        self,
        address: str,
        sources: Sequence[RowSource],
        settings: TargetSettings,
        observe: Callable[[str], Observe],
        dense: Callable[[], DenseState | None],
    ) -> None:
        self.address = address
        self.unlisted_s: float | None = None  # when it disappeared from all lists
        self._sources, self._settings = sources, settings
        self._observe, self._dense = observe(address), dense
        self._link = ReplicaLink(address, settings.trust)
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, int], Stream] = {}
        self._models: dict[str, ServedModel] = {}
        self._dense_sent: dict[str, tuple[str, int]] = {}
        self._dense_refused: dict[str, str] = {}
        self._last: dict[int, Pass] = {}  # the last pass over each source
        self._describe_at_s, self._same_as = 0.0, ""
        self._failures, self._error, self._reached = 0, "", False
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sync {address}", daemon=True)
        self._thread.start()

    # ---- called by the publisher

    def add(self, source: int, taken: Mapping[str, TouchedBatch], found_by: Pass) -> None:
        """Adds the keys that a pass found at a source."""
        for stream in self._of_source(source, found_by):
            stream.add(taken, found_by)

    def restart(self, source: int, found_by: Pass) -> None:
        """Sends all rows of a source again, because its marks were lost."""
        for stream in self._of_source(source, found_by):
            stream.restart(found_by)

    def wake(self) -> None:
        """Wakes the thread, because there may be something to send."""
        self._wake.set()

    @property
    def sent_by(self) -> str:
        """The address that is used for this replica: its own or another one."""
        return self._same_as or self.address

    def has(self, number: int) -> bool:
        """Returns whether the replica has all changes up to a pass, and the newest weights."""
        with self._lock:
            applied = [stream.applied for stream in self._streams.values()]
        sent = bool(self._models) and min(applied, default=number) >= number
        return sent and self._dense_is_sent()

    def status(self) -> TargetStatus:
        """Returns the state of the replica."""
        with self._lock:
            streams = tuple(stream.status() for stream in self._streams.values())
        return TargetStatus(
            self.address,
            self.unlisted_s is None,
            self._reached,
            self._failures,
            self._error,
            streams,
            {name: number for name, (_, number) in dict(self._dense_sent).items()},
            dict(self._dense_refused),
            self._same_as,
        )

    def end(self) -> None:
        """Stops sending. `join` waits for the thread."""
        self._ending.set()
        self._wake.set()
        self._link.close()

    def join(self) -> None:
        """Waits for the thread to end."""
        self._thread.join()

    def _of_source(self, source: int, found_by: Pass) -> list[Stream]:
        """Returns the streams of a source. Streams that are created later use the recorded pass."""
        with self._lock:
            self._last[source] = found_by
            return [one for (_, place), one in self._streams.items() if place == source]

    # ---- run by its thread

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                more = self._round()
                self._failures, self._error, self._reached = 0, "", True
            except (HedgerowError, OSError) as error:
                more = False
                self._note(error)
                self._ending.wait(_pause_s(self._failures))
            except Exception as error:  # an internal error: the next round may succeed
                more = False
                _log.exception("publishing to %s", self.address)
                self._note(error)
                self._ending.wait(_pause_s(self._failures))
            if not more:
                self._wake.wait()
                self._wake.clear()
        self._settings.claims.give_up(self.address)

    def _note(self, error: Exception) -> None:
        if not self._failures and not self._ending.is_set():
            _log.warning("publishing to %s: %s", self.address, error)
        self._failures += 1
        self._error, self._describe_at_s = str(error), 0.0
        self._reached = not isinstance(error, TargetError) or error.code != "UNAVAILABLE"
        self._wake.set()  # a failed round is repeated even without new changes

    def _round(self) -> bool:
        """Sends a part of all pending keys and returns whether more is left.

        All streams run before the first error is raised.
        """
        if time.monotonic() >= self._describe_at_s:
            self._describe()
        first: Exception | None = None
        more = False
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            try:
                before = stream.applied
                more = stream.advance(self._link) or more
                if stream.applied != before:
                    self._settings.moved.set()
            except Exception as error:  # of any kind: keys in flight must not be lost
                stream.failed(error)
                first = first or error
        self._send_dense()
        if first is not None:
            raise first
        return more

    def _describe(self) -> None:
        """Asks which models are served. A newly loaded version gets new streams."""
        timeout_s = self._settings.timeout_s
        answer = self._link.ask(REPLICA_SERVICE, DESCRIBE, {}, timeout_s)
        models = [ServedModel.from_dict(plain) for plain in answer["models"]]
        wanted = self._settings.model
        found = [one for one in models if wanted in (None, one.name)]
        ours = [one for one in found if all(fits(source, one) for source in self._sources)]
        if not found:
            names = ", ".join(one.name for one in models) or "none"
            raise ConfigError(
                f"{self.address} serves no model {wanted or 'with rows or weights'}; it has: "
                f"{names}."
            )
        # The replica may also serve models of other trainers. If no model fits, a stream raises.
        chosen = self._claimed({one.name: one for one in ours or found})
        kept: dict[tuple[str, int], Stream] = {}
        for name, served in chosen.items():
            for place, source in enumerate(self._sources) if served.tables else ():
                before = self._streams.get((name, place))
                kept[name, place] = (
                    before
                    if before is not None and before.served == served
                    else Stream(
                        source,
                        served,
                        publisher=self._settings.publisher,
                        most_pending=self._settings.most_pending,
                        timeout_s=timeout_s,
                        observe=self._observe,
                    )
                )
        with self._lock:
            for (name, place), stream in kept.items():
                if stream is not self._streams.get((name, place)) and place in self._last:
                    stream.restart(self._last[place])
            self._streams, self._models = kept, chosen
        self._describe_at_s = time.monotonic() + _DESCRIBE_S

    def _claimed(self, chosen: dict[str, ServedModel]) -> dict[str, ServedModel]:
        """Returns the models that no other address of this replica is used for.

        Two addresses with one replica would end each other's sessions.
        """
        claims = self._settings.claims
        owners = {name: claims.claim(one.incarnation, self.address) for name, one in chosen.items()}
        others = [owner for owner in owners.values() if owner != self.address]
        same_as = others[0] if len(others) == len(chosen) else ""
        if same_as and same_as != self._same_as:
            _log.warning("%s and %s are one replica; the first is used.", same_as, self.address)
        self._same_as = same_as
        return {name: one for name, one in chosen.items() if owners[name] == self.address}

    def _send_dense(self) -> None:
        state = self._dense()
        for name, served in self._models.items() if state is not None else ():
            mark = (served.incarnation, state.number)  # type: ignore[union-attr]
            if not served.dense or self._dense_sent.get(name) == mark:
                continue
            push = DensePush(name, served.incarnation, self._settings.publisher, state)  # type: ignore[arg-type]
            path = f"/{REPLICA_SERVICE}/{DENSE}"
            try:
                self._link.send(path, push.to_bytes(), self._settings.timeout_s)
                self._dense_refused.pop(name, None)
            except TargetError as error:
                if error.code != "INVALID_ARGUMENT":
                    raise
                self._dense_refused[name] = str(error)  # a retry would fail; later weights may fit
                _log.warning("dense weights for %s: %s", self.address, error)
            self._dense_sent[name] = mark
            self._settings.moved.set()

    def _dense_is_sent(self) -> bool:
        state = self._dense()
        return state is None or all(
            self._dense_sent.get(name) == (one.incarnation, state.number)
            for name, one in list(self._models.items())
            if one.dense
        )


def _pause_s(failures: int) -> float:
    """Returns a random pause that grows with each failure.

    Because it is random, publishers do not retry at the same moment.
    """
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
    # The process's own generator is left unchanged, because the user may have seeded it.
    return longest * random.SystemRandom().uniform(0.5, 1.0)
