"""Where a publisher reads from: the changed keys and the rows of one shard of a trainer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..core.errors import InputError
from ..core.shapes import Bool, Float32, Int64
from ..routing.router import Router
from ..tables.followed import rows_after, rows_present
from ..tables.host import HostTable
from ..tables.touched import DEFAULT_CAPACITY, Touched


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as a publisher knows it; `router` says which of the source's shards owns a key."""

    name: str
    dim: int
    router: Router


@dataclass(frozen=True, slots=True, eq=False)
class RowsRead:
    """Rows as a model sees them in eval; a row that is not `present` was deleted, or never was."""

    rows: Float32[Tensor, "n dim"]
    present: Bool[Tensor, "n"]


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Ids of one table for a message, and what stands before them there and before their rows."""

    table: str
    ids: Int64[Tensor, "n"]
    before_ids: bytes
    before_rows: bytes


class RowSource(Protocol):
    """One shard of a trainer's rows: a process, a rank, or a parameter server.

    Only one thread takes, but many may read at once. A method that cannot reach the rows raises a
    HedgerowError or OSError: a publisher counts that and comes again.
    """

    @property
    def shard(self) -> int:
        """Which of the shards it is, from 0."""
        ...

    @property
    def shards(self) -> int:
        """How many shards the trainer's rows have."""
        ...

    @property
    def tables(self) -> Sequence[SourceTable]:
        """The tables in byte order of their names, each with a router over `shards`."""
        ...

    @property
    def incarnation(self) -> str:
        """Another text after marks may have been lost, so that all rows must be sent again.

        As of the last take: the server was restarted, or rows were rolled back, or a take was not
        answered and nobody knows whether its keys are gone.
        """
        ...

    @property
    def lost_rows(self) -> bool:
        """Whether rows are missing that nobody deleted: a server was restarted without any.

        As of the last take. Replicas keep theirs then, until rows were loaded.
        """
        ...

    def take(self) -> Mapping[str, Touched]:
        """The keys changed since the last take, by table; tables without any may be left out.

        All changes count: updates, assigns, loads, deletions, evictions.
        """
        ...

    def read(self, table: str, ids: Int64[Tensor, "n"]) -> RowsRead:
        """Rows as they are now."""
        ...

    def message(self, shares: Sequence[Share]) -> bytes | None:
        """As `read`, as bytes with the ids and the rows of all shares.

        None where `read` has to be asked: rows lie elsewhere, or one is not there.
        """
        ...

    def all_ids(self, table: str) -> Iterator[Int64[Tensor, "n"]]:
        """The ids of all rows, in slices.

        A row that is there from the first slice to the last is given at least once.
        """
        ...

    def close(self) -> None:
        """Collects no more marks."""
        ...


class HostSource:
    """Rows of this process: all of a model's, or those of one rank. Tables may lie in two tiers.

    `step` gives the number of updates that the rows have seen; only one_bit segments need it.

    >>> import torch
    >>> from hedgerow import Segment, Sgd, TableConfig, Zeros
    >>> table = HostTable(TableConfig("user", (Segment(1, Zeros(), Sgd(lr=0.5)),)))
    >>> source = HostSource([table])
    >>> _ = table.apply_gradients(torch.tensor([7]), torch.ones(1, 1))
    >>> source.take()["user"].ids
    tensor([7])
    >>> source.read("user", torch.tensor([7, 8]))
    RowsRead(rows=tensor([[-0.5000],
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
            raise InputError(f"shard {shard} of {shards} without routers; say who owns which key.")
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
        name = f"publish-{self.incarnation}"  # its own: two publishers of one model share no marks
        self._marks = {
            table: self._live[table].touched(name, capacity=capacity, all_changes=True)
            for table in order
        }

    def take(self) -> Mapping[str, Touched]:
        """The keys changed since the last take, of every table."""
        taken: dict[str, Touched] = {}
        try:
            for table, marks in self._marks.items():
                taken[table] = marks.take()
        except BaseException:  # no memory, say: keys of the tables before must not be lost
            for table, one in taken.items():
                self._marks[table].give_back(one)
            raise
        return taken

    def read(self, table: str, ids: Int64[Tensor, "n"]) -> RowsRead:
        """Rows as they are now. One that comes or goes meanwhile is marked, and read again."""
        return RowsRead(*rows_present(self._live[table], ids, self._step()))

    def message(self, shares: Sequence[Share]) -> bytes | None:
        """Ids and rows as they are now, as bytes; None where a row is not there, or in tiers."""
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
        """The ids of all rows, in slices."""
        for entries in self._live[table].scan():
            yield entries.ids

    def close(self) -> None:
        """Collects no more marks."""
        for marks in self._marks.values():
            marks.close()
