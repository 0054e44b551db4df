"""The sources that a publisher reads: tables of this process, or tables on a parameter server."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..core.checks import unknown
from ..core.errors import HedgerowError, InputError
from ..core.shapes import Bool, Float32, Int64
from ..routing.router import Router
from ..tables.changes import (
    DEFAULT_CAPACITY,
    RemoteChangeSource,
    TouchedBatch,
    rows_after,
    rows_present,
)
from ..tables.host import HostTable


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of a source. `router` decides which shard of the source owns a key."""

    name: str
    dim: int
    router: Router


@dataclass(frozen=True, slots=True, eq=False)
class SourceRows:
    """Rows as a model reads them in eval mode. A row that is not `present` does not exist."""

    rows: Float32[Tensor, "n dim"]
    present: Bool[Tensor, "n"]


@dataclass(frozen=True, slots=True, eq=False)
class TableShare:
    """Ids of one table for a message, and the bytes that precede the ids and the rows in it."""

    table: str
    ids: Int64[Tensor, "n"]
    before_ids: bytes
    before_rows: bytes


class RowSource(Protocol):
    """One shard of a trainer's rows: a process, a rank, or a parameter server.

    Only one thread may call `take`; many threads may read at once. A method that cannot reach the
    rows raises a `HedgerowError` or `OSError`. The publisher counts the error and tries again.
    """

    @property
    def shard(self) -> int:
        """The number of this shard, from 0."""
        ...

    @property
    def shards(self) -> int:
        """The number of shards of the trainer's rows."""
        ...

    @property
    def tables(self) -> Sequence[SourceTable]:
        """The tables in byte order of their names, each with a router over `shards`."""
        ...

    @property
    def incarnation(self) -> str:
        """A text that changes when marks may have been lost, so that all rows must be sent again.

        It holds as of the last take. It changes after a restart of the server, after a rollback of
        rows, and after a take without an answer whose keys may be lost.
        """
        ...

    @property
    def lost_rows(self) -> bool:
        """Whether the source has lost rows, because a server was restarted without any.

        It holds as of the last take. Replicas then keep their rows until rows are loaded.
        """
        ...

    def take(self) -> Mapping[str, TouchedBatch]:
        """Returns the keys changed since the last take, by table.

        Tables without changes may be absent.

        Updates, assigns, loads, deletions and evictions are changes.
        """
        ...

    def read(self, table: str, ids: Int64[Tensor, "n"]) -> SourceRows:
        """Returns the current rows."""
        ...

    def message(self, shares: Sequence[TableShare]) -> bytes | None:
        """Returns the ids and current rows of all shares as bytes.

        Returns None if the caller must use `read`: the rows are elsewhere, or one does not exist.
        """
        ...

    def all_ids(self, table: str) -> Iterator[Int64[Tensor, "n"]]:
        """Yields the ids of all rows, in slices.

        A row that exists from the first slice to the last is yielded at least once.
        """
        ...

    def close(self) -> None:
        """Stops collecting marks."""
        ...


class HostSource:
    """The rows of this process: all rows of a model, or those of one rank.

    Tables may be tiered. `step` returns the number of updates of the rows; only one_bit segments
    need it.

    >>> import torch
    >>> from hedgerow import Segment, Sgd, TableConfig, Zeros
    >>> table = HostTable(TableConfig("user", (Segment(1, Zeros(), Sgd(lr=0.5)),)))
    >>> source = HostSource([table])
    >>> _ = table.apply_gradients(torch.tensor([7]), torch.ones(1, 1))
    >>> source.take()["user"].ids
    tensor([7])
    >>> source.read("user", torch.tensor([7, 8]))
    SourceRows(rows=tensor([[-0.5000],
            [ 0.0000]]), present=tensor([ True, False]))
    """

    def __init__(
        self,
        tables: Sequence[HostTable],
        *,
        routers: Mapping[str, Router] | None = None,
        shard: int = 0,
        shards: int = 1,
        step: Callable[[], int] = lambda: 0,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        alone = Router("hash_roundrobin", 1)
        if routers is None and shards != 1:
            raise InputError(f"shard {shard} of {shards} without routers; pass routers=.")
        self.shard, self.shards = shard, shards
        self.incarnation, self.lost_rows = secrets.token_hex(8), False
        self._step = step
        self._live = {table.config.name: table for table in tables}
        if len(self._live) < len(tables):
            names = [table.config.name for table in tables]
            raise InputError(f"two tables have one name among {names}; names must differ.")
        order = sorted(self._live, key=str.encode)
        self.tables = tuple(
            SourceTable(name, self._live[name].layout.dim, (routers or {}).get(name, alone))
            for name in order
        )
        name = f"publish-{self.incarnation}"  # unique, so that two publishers share no marks
        self._marks = {
            table: self._live[table].touched(name, capacity=capacity, all_changes=True)
            for table in order
        }

    def take(self) -> Mapping[str, TouchedBatch]:
        """Returns the keys changed since the last take, of every table."""
        taken: dict[str, TouchedBatch] = {}
        try:
            for table, marks in self._marks.items():
                taken[table] = marks.take()
        except BaseException:  # such as MemoryError: keep the keys of the earlier tables
            for table, one in taken.items():
                self._marks[table].give_back(one)
            raise
        return taken

    def read(self, table: str, ids: Int64[Tensor, "n"]) -> SourceRows:
        """Returns the current rows.

        A row that changes during the call is marked, and is read again.
        """
        return SourceRows(*rows_present(self._live[table], ids, self._step()))

    def message(self, shares: Sequence[TableShare]) -> bytes | None:
        """Returns ids and current rows as bytes, or None.

        None means that a row does not exist or a table is tiered.
        """
        live = [self._live[share.table] for share in shares]
        if not all(isinstance(table, HostTable) for table in live):
            return None
        return rows_after(
            live,
            [share.ids for share in shares],
            [(share.before_ids, share.before_rows) for share in shares],
            self._step(),
        )

    def all_ids(self, table: str) -> Iterator[Int64[Tensor, "n"]]:
        """Yields the ids of all rows, in slices."""
        for entries in self._live[table].scan():
            yield entries.ids

    def close(self) -> None:
        """Stops collecting marks."""
        for marks in self._marks.values():
            marks.close()


_log = logging.getLogger("hedgerow")


class ShardSource:
    """Tables on a server, as a `RowSource`. Calls raise if the server is unreachable.

    The next take repeats the keys of a take whose answer was lost. If a server was restarted or has
    dropped its consumer, the next take changes `incarnation`.
    """

    def __init__(
        self,
        tables: Mapping[str, RemoteChangeSource],
        routers: Mapping[str, Router],
        *,
        shard: int,
        shards: int,
        step: Callable[[], int] = lambda: 0,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        if not 0 <= shard < shards:
            raise InputError(f"shard {shard} of {shards}; they are counted from 0.")
        self.shard, self.shards = shard, shards
        self._step, self._live = step, dict(tables)
        order = sorted(self._live, key=str.encode)
        self.tables = tuple(
            SourceTable(name, self._live[name].dim, routers[name]) for name in order
        )
        self._incarnation = secrets.token_hex(8)
        name = f"publish-{self._incarnation}"  # unique, so that two publishers share no marks
        self._marks = {
            table: self._live[table].touched(name, capacity=capacity, all_changes=True)
            for table in order
        }
        self._lives = self._lives_now()
        self._left: dict[str, TouchedBatch] = {}  # taken before a take that failed
        self.lost_rows = False

    @property
    def incarnation(self) -> str:
        """A text that changes when marks may have been lost. It holds as of the last take."""
        return self._incarnation

    def take(self) -> Mapping[str, TouchedBatch]:
        """Returns the keys changed since the last take that arrived, of every table."""
        for table, marks in self._marks.items():
            if table not in self._left:
                self._left[table] = marks.take()
        if self._lives_now() != self._lives:
            self._lives, self._incarnation = self._lives_now(), secrets.token_hex(8)
            self.lost_rows = any(marks.began_empty for marks in self._marks.values())
        elif any(one.whole_table for one in self._left.values()):  # for example after a load
            self.lost_rows = False
        taken, self._left = self._left, {}
        return taken

    def read(self, table: str, ids: Int64[Tensor, "n"]) -> SourceRows:
        """Returns the current rows."""
        return SourceRows(*self._table(table).read(ids, step=self._step()))

    def message(self, shares: Sequence[TableShare]) -> bytes | None:
        """Returns None: the rows must be read from the server."""
        return None

    def all_ids(self, table: str) -> Iterator[Int64[Tensor, "n"]]:
        """Yields the ids of all rows, in slices."""
        return self._table(table).all_ids()

    def close(self) -> None:
        """Stops collecting marks.

        An unreachable server keeps them until it drops the idle consumer.

        The first table whose server does not answer ends the call.
        """
        try:
            for marks in self._marks.values():
                marks.close()
        except HedgerowError as error:
            _log.info("marks of shard %d stay: %s", self.shard, error)

    def _table(self, name: str) -> RemoteChangeSource:
        if name not in self._live:
            unknown("table", name, self._live)
        return self._live[name]

    def _lives_now(self) -> tuple[int, ...]:
        return tuple(marks.life for marks in self._marks.values())
