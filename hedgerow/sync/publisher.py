"""Publishes the changes of a trainer to every replica that serves it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ..core import checks
from ..core.clock import wall_ns
from ..core.errors import HedgerowError, InputError, StateError
from ..core.units import parse_seconds
from ..discovery.targets import Targets, targets_of
from ..tables.changes import TouchedBatch
from ..wire.rpc import TlsCredentials
from .metrics import SyncMetrics
from .pending import Pass
from .protocol import DenseState
from .roster import Roster
from .source import RowSource
from .target import ReplicaClaims, Target, TargetSettings, TargetStatus

Deliver = Callable[[int, Mapping[str, TouchedBatch] | None, Pass], None]
"""Called by a source's thread: its index, its changed keys (None if some were lost), the pass."""


class ChangePoller:
    """Takes the changed keys of several sources, each in its own thread. Owns a lock.

    Passes are numbered. A source that is still busy with an older pass runs once more afterwards.
    If a take fails, the next pass returns its keys.

    >>> import torch, hedgerow as hr
    >>> from hedgerow.sync.source import HostSource
    >>> table = hr.HostTable(hr.TableConfig("user", (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> def deliver(place, taken, found_by):
    ...     print(taken["user"].ids)
    >>> looks = ChangePoller([HostSource([table])], deliver)
    >>> _ = table.assign(torch.tensor([7]), torch.ones(1, 1))
    >>> looks.ask(timeout_s=30)
    tensor([7])
    1
    >>> looks.close()
    """

    def __init__(self, sources: Sequence[RowSource], deliver: Deliver) -> None:
        self._sources, self._deliver = tuple(sources), deliver
        self._changed = threading.Condition()
        self._asked = self.failures = 0
        self._answered = [0] * len(sources)  # the last pass that each source has completed
        self._errors = [""] * len(sources)
        self._began_s = [time.monotonic()] * len(sources)  # start of each source's last good take
        self._incarnations = [source.incarnation for source in sources]
        self._ended = False
        self._threads = [
            threading.Thread(target=self._run, args=(place,), name="source", daemon=True)
            for place in range(len(sources))
        ]

    @property
    def asked(self) -> int:
        """The number of the last pass."""
        return self._asked

    @property
    def error(self) -> str:
        """The error of a source whose last take failed; empty if none did."""
        return next((one for one in self._errors if one), "")

    def ask(self, timeout_s: float) -> int:
        """Starts a pass and waits for the sources up to `timeout_s`.

        Returns the number of the pass.
        """
        with self._changed:
            for thread in self._threads if not self._ended else ():
                if thread.ident is None:
                    thread.start()
            self._asked += 1
            number = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or min(self._answered) >= number, timeout_s)
            return number

    def close(self) -> None:
        """Stops the threads and waits for them."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, place: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._asked > self._answered[place])
                if self._ended:
                    return
                number = self._asked
            error = self._look(place, number)
            with self._changed:
                self.failures += bool(error)
                self._errors[place], self._answered[place] = error, number
                self._changed.notify_all()

    def _look(self, place: int, number: int) -> str:
        """Runs one take of a source. Returns its error, or an empty string."""
        source, began_s = self._sources[place], time.monotonic()
        try:
            taken = source.take()
            lost = source.incarnation != self._incarnations[place]
            found_by = Pass(number, self._began_s[place], began_s)
            self._incarnations[place] = ""  # the marks count as lost until they are delivered
            self._deliver(place, None if lost else taken, found_by)
            self._began_s[place], self._incarnations[place] = began_s, source.incarnation
        except (HedgerowError, OSError) as error:
            if not self._errors[place]:
                _log.warning("shard %d of the trainer: %s", source.shard, error)
            return str(error) or type(error).__name__
        except Exception as error:  # one failed take must not end all publishing
            _log.exception("a look at shard %d of the trainer failed", source.shard)
            return repr(error)
        return ""


MOST_PENDING = 2_097_152  # pending keys of one replica, 16 MiB; equal to a table's marks
TIMEOUT_S = 5.0
_FORGET_S = 60.0  # a replica that is unlisted for this long is forgotten
_LOOK_S, _AGAIN_S = 0.05, 0.1  # a flush polls, because another flush may take its wake-up
_LONGEST_EVERY_S = 366 * 86400.0  # a thread's wait has an upper limit
_log = logging.getLogger("hedgerow")


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """The state of a publisher. `source_failures` counts failed takes.

    `dropped` is the number of keys that no replica will ever get. It is always 0.
    """

    publisher: str
    passes: int
    source_failures: int
    source_error: str
    dropped: int
    targets: tuple[TargetStatus, ...]

    @property
    def pending_rows(self) -> int:
        """The rows that replicas still lack, summed over the replicas."""
        return sum(one.pending_rows for target in self.targets for one in target.streams)

    @property
    def oldest_s(self) -> float:
        """The age of the oldest change that some replica lacks."""
        ages = (one.oldest_s for target in self.targets for one in target.streams)
        return max(ages, default=0.0)


class Publisher:
    """Keeps replicas equal to the sources.

    Call `start()`, or use it in a `with` block. Owns threads.

    `to` is an address, a list of addresses, or an object with `current()`. `listen` is an address
    at which replicas announce themselves (`hedgerow serve --follow`). The publisher looks for
    changes once per `every`. `model` names the one model to update at each address; by default, all
    models with these tables are updated. A replica that lacks more than `most_pending` keys gets
    all rows instead.

    A new replica first gets all rows. A failed push is repeated until it succeeds, so nothing is
    lost while the sources exist. Deleted rows are removed from the replicas.
    """

    def __init__(
        self,
        sources: Sequence[RowSource],
        to: Targets | str | Sequence[str] = (),
        *,
        every: str | float = "1s",
        listen: str | None = None,
        model: str | None = None,
        most_pending: int = MOST_PENDING,
        timeout_s: float = TIMEOUT_S,
        trust: TlsCredentials | None = None,
        dense: Callable[[], DenseState | None] = lambda: None,
    ) -> None:
        self._every_s = parse_seconds(every)
        if not 0 < self._every_s <= _LONGEST_EVERY_S:
            raise InputError(
                f"every is {every!r}; it must be a time above 0 and up to a year, such as '1s'."
            )
        if not sources:
            raise InputError("a publisher without sources; give it at least one.")
        checks.count("most_pending", most_pending, least=1)
        publisher = f"{wall_ns():016x}-{secrets.token_hex(4)}"  # a later publisher has a greater id
        self._sources = tuple(sources)
        self._targets = targets_of(to)
        self._roster = Roster(listen) if listen is not None else None
        if self._roster is None and isinstance(to, Sequence) and not to:
            raise InputError("a publisher without to= and listen=; say where replicas are.")
        self._moved = threading.Event()
        self._settings = TargetSettings(
            publisher, model, most_pending, timeout_s, trust, ReplicaClaims(), self._moved
        )
        self._dense = dense
        self._metrics = SyncMetrics()
        self._lock = threading.Lock()  # over _reached
        self._listing = threading.Lock()  # an older list must not replace a newer one
        self._reached: dict[str, Target] = {}
        self._looks = ChangePoller(self._sources, self._found)
        self._list_fails = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    # ---- life

    @property
    def address(self) -> str | None:
        """The address at which replicas announce themselves."""
        return None if self._roster is None else self._roster.address

    def start(self) -> Self:
        """Starts to publish. A second call has no effect."""
        if self._ending.is_set():
            raise StateError("this publisher was stopped; make a new one.")
        if self._thread.ident is None:
            self._thread.start()
        return self

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Sends all changes made so far.

        Returns whether all replicas received them within `timeout_s`.

        Replicas that are no longer listed do not count.
        """
        end_s = time.monotonic() + timeout_s
        self._list()
        number = self._pass(timeout_s)
        again_s = time.monotonic() + _AGAIN_S
        while not self._all_have(number):
            now_s = time.monotonic()
            if now_s > end_s or self._ending.is_set():
                return False
            self._moved.wait(min(_LOOK_S, max(0.0, end_s - now_s)))
            self._moved.clear()  # another flush may miss this event, and polls a little later
            if self._looks.error and now_s > again_s:  # take again what a failed take left
                number = self._pass(end_s - now_s)
                again_s = time.monotonic() + _AGAIN_S
            self._wake_all()
        return True

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Sends the remaining changes for up to `timeout_s`, then ends.

        Returns whether all were sent.
        """
        if self._ending.is_set():
            return True
        try:
            return self._thread.ident is None or self.flush(timeout_s)
        finally:
            self._end()

    def _end(self) -> None:
        self._ending.set()
        self._looks.close()
        if self._thread.ident is not None:
            self._thread.join()
        if self._roster is not None:
            self._roster.close()
        with self._lock:
            targets = list(self._reached.values())
        for target in targets:
            target.end()
        for target in targets:
            target.join()
        for source in self._sources:
            try:
                source.close()
            except (HedgerowError, OSError) as error:  # unreachable: it drops idle consumers
                _log.warning("shard %d of the trainer: %s", source.shard, error)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ---- status

    def status(self) -> PublisherStatus:
        """Returns the state of the publisher and of each replica."""
        with self._lock:
            targets = list(self._reached.values())
        return PublisherStatus(
            self._settings.publisher,
            self._looks.asked,
            self._looks.failures,
            self._looks.error,
            0,
            tuple(target.status() for target in targets),
        )

    def metrics(self) -> bytes:
        """Returns counters and ages in Prometheus' text format. Monolith's metrics come first."""
        return self._metrics.text(self.status())

    # ---- passes

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._ending.is_set():
            try:
                self._list()
                self._list_fails = False
            except Exception:  # the known replicas stay and get their rows
                if not self._list_fails:
                    _log.exception("the list of replicas")
                self._list_fails = True
            self._pass(self._every_s)
            due_s = max(due_s + self._every_s, time.monotonic())
            self._ending.wait(due_s - time.monotonic())

    def _pass(self, timeout_s: float) -> int:
        """Starts a pass over all sources and returns its number. A slow source finishes later."""
        number = self._looks.ask(timeout_s)
        self._wake_all()
        return number

    def _found(self, place: int, taken: Mapping[str, TouchedBatch] | None, found_by: Pass) -> None:
        """Gives the keys of one take to the threads of all replicas."""
        # The list is read after the take: a replica that is added later reads all rows later.
        with self._lock:
            targets = list(self._reached.values())
        for target in targets:
            try:
                if taken is not None:
                    target.add(place, taken, found_by)
            except Exception:  # an internal error: this replica gets all rows instead
                _log.exception("changes for %s", target.address)
                target.restart(place, found_by)
            if taken is None:
                target.restart(place, found_by)
            target.wake()

    def _list(self) -> None:
        with self._listing:
            self._listed()

    def _listed(self) -> None:
        """Updates the replicas from the lists, and removes those that were unlisted for long."""
        addresses = dict.fromkeys(self._targets.current())
        if self._roster is not None:
            addresses |= dict.fromkeys(self._roster.current())
        now_s = time.monotonic()
        with self._lock:
            for address in addresses:
                if address not in self._reached:
                    self._reached[address] = Target(
                        address, self._sources, self._settings, self._metrics.observer, self._dense
                    )
            for address, target in list(self._reached.items()):
                if address in addresses:
                    target.unlisted_s = None
                elif target.unlisted_s is None:
                    target.unlisted_s = now_s
                elif now_s - target.unlisted_s > _FORGET_S:
                    del self._reached[address]
                    target.end()
                    self._metrics.pushes.forget(address)

    def _wake_all(self) -> None:
        with self._lock:
            targets = list(self._reached.values())
        for target in targets:
            target.wake()

    def _all_have(self, number: int) -> bool:
        with self._lock:
            listed = [one for one in self._reached.values() if one.unlisted_s is None]
            # If a replica has two addresses, the state is with the one that is used to send.
            senders = [self._reached.get(one.sent_by) for one in listed]
        return all(one is not None and one.has(number) for one in senders)
