"""A sync client of the original: the tables attached to it, and one step at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import InputError, NameTakenError
from ..tables.followed import Followed
from ..tables.touched import DEFAULT_CAPACITY, TouchedSource
from ..wire.client_config import read_config
from .push_metrics import PushMetrics
from .strict_step import ChangedRows, strict_step
from .strict_targets import StrictTargets

if TYPE_CHECKING:
    from ..wire.messages.parameter_sync import ClientConfig, PushResult


@dataclass(frozen=True, slots=True, eq=False)
class _Attached:
    table: Followed
    changes: TouchedSource

    def taken(self, name: str) -> ChangedRows:
        """The rows that changed since the last time, as they are now."""
        ids = self.changes.take().ids
        return ChangedRows(name, ids, self.table.lookup(ids).rows_of())


class StrictClient:
    """Follows tables by the original's rule, and pushes their changed rows; owns a lock.

    It holds plain tables or one multi table. More than `capacity` changed keys of a table are
    forgotten, and so are those of a push that failed.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> client = StrictClient("MonolithSyncClient_")
    >>> table = HostTable(TableConfig("t", (Segment(1, Zeros(), Sgd(lr=0.1)),)))
    >>> client.attach("t", table)
    >>> len(client.step(b"").responses)
    0
    """

    def __init__(
        self,
        name: str,
        config: ClientConfig | None = None,
        *,
        metrics: PushMetrics | None = None,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._capacity = capacity
        self._targets = StrictTargets(metrics)
        self._tables: dict[str, _Attached] = {}
        self._multi: str | None = None
        if config is not None:  # model, signature and timeout come with each step
            self._targets.replace(config)

    def __repr__(self) -> str:
        tables = ", ".join(self._tables) or "no tables"
        return f"StrictClient({self.name!r}, {tables})"

    @property
    def metrics(self) -> PushMetrics:
        """What was pushed, under the original's names."""
        return self._targets.metrics

    @property
    def targets(self) -> tuple[str, ...]:
        """The addresses of the last config."""
        with self._lock:
            return self._targets.addresses

    def attach(self, name: str, table: Followed) -> None:
        """Follows a plain table from now on."""
        with self._lock:
            if self._multi is not None:
                raise InputError(
                    f"table {name!r} for the client {self.name!r}, which holds the multi table "
                    f"{self._multi!r}; a client holds plain tables or one multi table."
                )
            if name in self._tables:
                raise NameTakenError(
                    f"client {self.name!r} follows a table {name!r} already; receivers tell tables "
                    f"by name: give each its own."
                )
            self._tables[name] = self._followed(table)

    def attach_multi(self, name: str, tables: Mapping[str, Followed]) -> None:
        """Follows all tables of a multi table from now on, in this order."""
        with self._lock:
            if self._multi is not None:
                raise NameTakenError(
                    f"client {self.name!r} holds the multi table {self._multi!r} already, and "
                    f"{name!r} would be a second; make another client."
                )
            if self._tables:
                raise InputError(
                    f"multi table {name!r} for the client {self.name!r}, which holds plain tables; "
                    f"a client holds plain tables or one multi table."
                )
            self._tables = {own: self._followed(table) for own, table in tables.items()}
            self._multi = name

    def step(self, config: bytes) -> PushResult:
        """Takes what changed, reads the rows as they are now, and pushes them once."""
        parsed = read_config(config)
        with self._lock:
            changed = [one.taken(name) for name, one in self._tables.items()]
            return strict_step(parsed, self._targets, changed, self._multi)

    def close(self) -> None:
        """Ends its connections; a later step makes new ones."""
        with self._lock:
            self._targets.close()

    def _followed(self, table: Followed) -> _Attached:
        changes = table.touched(self.name, capacity=self._capacity, overflow="forget")
        return _Attached(table, changes)
