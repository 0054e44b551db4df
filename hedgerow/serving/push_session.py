"""The pushes of one trainer shard to one loaded model: in order, each once, old ones refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..routing.router import Router
from ..sync.protocol import GONE, PushMark
from .model import ServingError

WAIT_S = 2.0  # for a push that was sent before one that is here
SILENT_S = 10.0  # without a word for so long a publisher gives way to older ones


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """How fresh the rows of one trainer shard are here.

    With a `synced` shard every change older than `age_s` seconds is here; before that, rows are
    those of the bundle and what was pushed so far. `seq` is the number of the last push that was
    applied, `rows` and `removed` count what pushes did.
    """

    shard: int
    shards: int
    publisher: str
    seq: int
    rows: int
    removed: int
    synced: bool
    age_s: float

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self)


class PushSession:
    """One session; `lock`, a condition, is held while a push changes rows.

    `generation` is the time stamp of every row that it writes: rows of the shard with an older one
    were not sent in this session.
    """

    def __init__(
        self,
        token: str,
        publisher: str,
        place: tuple[int, int],
        generation: int,
        routers: Mapping[str, Router],
    ) -> None:
        self.token, self.publisher, self.generation = token, publisher, generation
        self.shard, self.shards = place
        self.lock = threading.Condition()
        self._routers = routers
        self._ended = False
        self._seq = self._rows = self._removed = 0
        self._made_s = self._heard_s = time.monotonic()
        self._fresh_s: float | None = None  # every change before is here

    def router(self, table: str) -> Router:
        """Who owns the keys of a table."""
        return self._routers[table]

    def outranks(self, publisher: str) -> bool:
        """Whether it keeps its place when this publisher wants it: publishers sort by their start.

        Without any word for `SILENT_S` it does not, so that nobody waits for the dead.
        """
        silent_s = time.monotonic() - self._heard_s
        return self.publisher > publisher and silent_s < SILENT_S

    def end(self) -> None:
        """Refuses all pushes that come later, and waits for the one that runs."""
        with self.lock:
            self._ended = True
            self.lock.notify_all()

    def check(self, token: str) -> None:
        """Whether a call belongs to this session. Call it with the lock held."""
        if self._ended or token != self.token:
            raise ServingError(GONE, f"shard {self.shard} has another session; attach again.")
        self._heard_s = time.monotonic()

    def begin(self, mark: PushMark) -> None:
        """Lets a push in, once the one before it was, unless a later one was. Hold the lock."""
        self.await_turn(mark)
        self.let_in(mark)

    def await_turn(self, mark: PushMark) -> None:
        """Waits until a push may be let in, and refuses one that never may. Hold the lock."""
        self.check(mark.session)
        in_turn = self.lock.wait_for(lambda: self._ended or self._seq >= mark.after, WAIT_S)
        self.check(mark.session)
        if not in_turn or mark.seq <= self._seq:
            raise ServingError(
                "OUT_OF_RANGE", f"push {mark.seq} of shard {self.shard} comes after {self._seq}."
            )

    def let_in(self, mark: PushMark) -> None:
        """From now on this push is the last one. Hold the lock since its turn came."""
        self._seq = mark.seq
        self.lock.notify_all()

    def done(self, rows: int, removed: int, lag_s: float | None) -> None:
        """Counts a push that was applied, or a word that nothing changed."""
        self._rows += rows
        self._removed += removed
        if lag_s is not None:
            self._fresh_s = time.monotonic() - max(0.0, lag_s)

    def status(self) -> ShardStatus:
        """How fresh this shard's rows are."""
        since_s = self._made_s if self._fresh_s is None else self._fresh_s
        return ShardStatus(
            self.shard,
            self.shards,
            self.publisher,
            self._seq,
            self._rows,
            self._removed,
            self._fresh_s is not None,
            max(0.0, time.monotonic() - since_s),
        )
