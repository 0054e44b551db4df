"""One replica of a publisher: a thread that keeps all models it serves up to date."""

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

HOLD_S = 10.0  # an address that gave no sign of its replica for so long gives way to others


class ReplicaClaims:
    """Whose replica it is, by the mark of what is loaded there. Owns a lock.

    >>> claims = ReplicaClaims()
    >>> claims.claim("i1", "localhost:8500"), claims.claim("i1", "127.0.0.1:8500")
    ('localhost:8500', 'localhost:8500')
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, float]] = {}  # the address, and until when

    def claim(self, incarnation: str, address: str) -> str:
        """The address that has it: this one, if no other asked before and still does."""
        now_s = time.monotonic()
        with self._lock:
            self._held = {key: one for key, one in self._held.items() if one[1] > now_s}
            owner, _ = self._held.get(incarnation, (address, 0.0))
            if owner == address:
                self._held[incarnation] = (address, now_s + self._hold_s)
            return owner

    def give_up(self, address: str) -> None:
        """Nothing is sent to this address any more: another may have all that it had."""
        with self._lock:
            self._held = {key: one for key, one in self._held.items() if one[0] != address}


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_DESCRIBE_S = 2.0  # between two looks at what a replica serves
_log = logging.getLogger("hedgerow")


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """What all replicas of a publisher have in common."""

    publisher: str
    model: str | None  # the one model to keep fresh; None: all that have these tables
    most_pending: int
    timeout_s: float
    trust: TlsCredentials | None
    claims: ReplicaClaims
    moved: threading.Event  # set when one of them has all of a further pass, or other weights


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """How one replica stands. `failures` counts rounds that failed in a row; `error` is the last.

    `same_as` is another address of the same replica, which gets all that this one would.
    `dense` has the number of the weights that each model was given last, and
    `dense_refused` why it did not take them.
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
        """Whether every row that it serves is there, but for what waits to be sent."""
        return bool(self.streams) and all(stream.phase == "live" for stream in self.streams)


class Target:
    """The replica at one address. Owns a thread, and a lock over the list of its streams."""

    def __init__(
        self,
        address: str,
        sources: Sequence[RowSource],
        settings: TargetSettings,
        observe: Callable[[str], Observe],
        dense: Callable[[], DenseState | None],
    ) -> None:
        self.address = address
        self.unlisted_s: float | None = None  # since when it is on no list
        self._sources, self._settings = sources, settings
        self._observe, self._dense = observe(address), dense
        self._link = ReplicaLink(address, settings.trust)
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, int], Stream] = {}
        self._models: dict[str, ServedModel] = {}
        self._dense_sent: dict[str, tuple[str, int]] = {}
        self._dense_refused: dict[str, str] = {}
        self._last: dict[int, Pass] = {}  # of each source: the last look at it
        self._describe_at_s, self._same_as = 0.0, ""
        self._failures, self._error, self._reached = 0, "", False
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sync {address}", daemon=True)
        self._thread.start()

    # ---- called by the publisher

    def add(self, source: int, taken: Mapping[str, TouchedBatch], found_by: Pass) -> None:
        """Adds what a pass found at a source."""
        for stream in self._of_source(source, found_by):
            stream.add(taken, found_by)

    def restart(self, source: int, found_by: Pass) -> None:
        """A source lost its marks."""
        for stream in self._of_source(source, found_by):
            stream.restart(found_by)

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    @property
    def sent_by(self) -> str:
        """The address that is used for this replica: its own, or another."""
        return self._same_as or self.address

    def has(self, number: int) -> bool:
        """Whether the replica has everything that was found up to a pass."""
        with self._lock:
            applied = [stream.applied for stream in self._streams.values()]
        sent = bool(self._models) and min(applied, default=number) >= number
        return sent and self._dense_is_sent()

    def status(self) -> TargetStatus:
        """How it stands."""
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
        """Sends no more; `join` waits for that."""
        self._ending.set()
        self._wake.set()
        self._link.close()

    def join(self) -> None:
        """Waits for the thread."""
        self._thread.join()

    def _of_source(self, source: int, found_by: Pass) -> list[Stream]:
        """The streams of a source; one that is made later learns of this pass then."""
        with self._lock:
            self._last[source] = found_by
            return [one for (_, place), one in self._streams.items() if place == source]

    # ---- its thread

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                more = self._round()
                self._failures, self._error, self._reached = 0, "", True
            except (HedgerowError, OSError) as error:
                more = False
                self._note(error)
                self._ending.wait(_pause_s(self._failures))
            except Exception as error:  # of our own making: the next round may be fine
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
        self._wake.set()  # a round that failed is tried again without anything new

    def _round(self) -> bool:
        """One share of all that waits; whether more is left. The first error is raised at last."""
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
            except Exception as error:  # whatever it is: keys under way must not be lost with it
                stream.failed(error)
                first = first or error
        self._send_dense()
        if first is not None:
            raise first
        return more

    def _describe(self) -> None:
        """Asks what is served; a version that was loaded since gets streams of its own."""
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
        # Models of other trainers may stand beside ours; where none is ours, a stream says why.
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
        """Those that no other address of this replica is used for; two would end each other."""
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
                self._dense_refused[name] = str(error)  # these never fit: others may
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
    """Longer after each failure, and never the same for two publishers."""
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
    # Not the process's own generator: whoever seeded that means to draw from it alone.
    return longest * random.SystemRandom().uniform(0.5, 1.0)
