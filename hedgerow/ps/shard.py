"""One shard of several tables, wherever it lives: what is asked of it can be under way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from ..core.shapes import Bool, Float32, Int8, Int64
from ..tables.multi.host_tables import HostTables
from ..tables.schedules import Rate
from ..tables.stats import TableStats, table_stats
from ..tables.store import Applied, Entries, Lookup, Missing, TableKeys

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Pending(Protocol[A_co]):
    """An answer on its way."""

    def wait(self) -> A_co:
        """The answer, once it is here; raises what the shard, or the way to it, failed with."""
        ...


@dataclass(frozen=True, slots=True)
class Here(Generic[A]):
    """An answer that is here already."""

    answer: A

    def wait(self) -> A:
        """At once."""
        return self.answer


class Shard(Protocol):
    """The tables of one shard. Every call may return before its work is done.

    Keys are those that this shard owns; rows and gradients are flat, table after table, as a
    `RowStore` of several tables takes them.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        ...

    def start_lookup(
        self,
        keys: TableKeys,
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> Pending[Lookup]:
        """Rows of `keys`, into `out` if given; nobody reads `out` before the answer is here."""
        ...

    def start_apply_gradients(
        self,
        keys: TableKeys,
        grads: Float32[Tensor, "floats"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
    ) -> Pending[Applied]:
        """One optimizer step per table and distinct id. Keys and gradients stay as they are until
        the answer is here."""
        ...

    def start_assign(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Pending[Applied]:
        """Sets rows and keeps optimizer state."""
        ...

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Pending[Applied]:
        """Adds to rows; an absent one starts from its first value."""
        ...

    def start_reinitialize(self, keys: TableKeys) -> Pending[Int8[Tensor, "n"]]:
        """Makes rows as new; 0 = was absent, 1 = was there."""
        ...

    def start_contains(self, keys: TableKeys) -> Pending[Bool[Tensor, "n"]]:
        """Whether each key has a row."""
        ...

    def start_erase(self, keys: TableKeys) -> Pending[Bool[Tensor, "n"]]:
        """Removes rows and says which were there."""
        ...

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> Pending[Entries]:
        """Whole rows of table `k`."""
        ...

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """All rows of table `k`, in slices of about `rows`."""
        ...

    def start_sizes(self) -> Pending[tuple[int, ...]]:
        """Rows of each table."""
        ...

    def start_stats(self) -> Pending[tuple[TableStats, ...]]:
        """Rows, bytes, load and counts of each table."""
        ...

    def start_max_ts(self) -> Pending[int]:
        """The largest `ts` any write gave."""
        ...


class LocalShard:
    """A shard in this process: every answer is there when the call returns.

    >>> import torch
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> shard = LocalShard(HostTables({"item": config}))
    >>> keys = TableKeys.of_one(torch.tensor([7]))
    >>> shard.start_apply_gradients(keys, torch.tensor([2.0])).wait()
    Applied(inserted=1, refused=0, dropped=0)
    >>> shard.start_lookup(keys).wait().rows.tolist(), shard.start_sizes().wait()
    ([-2.0], (1,))
    """

    def __init__(self, store: HostTables) -> None:
        self.store = store

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        return self.store.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        return self.store.dims

    def start_lookup(
        self,
        keys: TableKeys,
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> Here[Lookup]:
        """Rows of `keys`, into `out` if given."""
        return Here(self.store.lookup(keys, missing=missing, step=step, out=out))

    def start_apply_gradients(
        self,
        keys: TableKeys,
        grads: Float32[Tensor, "floats"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
    ) -> Here[Applied]:
        """One optimizer step per table and distinct id."""
        applied = self.store.apply_gradients(
            keys,
            grads,
            rates=rates,
            step=step,
            ts=ts,
            counts=counts,
            per_occurrence=per_occurrence,
        )
        return Here(applied)

    def start_assign(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Here[Applied]:
        """Sets rows and keeps optimizer state."""
        return Here(self.store.assign(keys, rows, ts=ts))

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Here[Applied]:
        """Adds to rows; an absent one starts from its first value."""
        return Here(self.store.assign_add(keys, rows, ts=ts))

    def start_reinitialize(self, keys: TableKeys) -> Here[Int8[Tensor, "n"]]:
        """Makes rows as new; 0 = was absent, 1 = was there."""
        return Here(self.store.reinitialize(keys))

    def start_contains(self, keys: TableKeys) -> Here[Bool[Tensor, "n"]]:
        """Whether each key has a row."""
        return Here(self.store.contains(keys))

    def start_erase(self, keys: TableKeys) -> Here[Bool[Tensor, "n"]]:
        """Removes rows and says which were there."""
        return Here(self.store.erase(keys))

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> Here[Entries]:
        """Whole rows of table `k`."""
        return Here(self.store.table(k).entries(ids))

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """All rows of table `k`, in slices of about `rows`."""
        return self.store.table(k).scan(rows)

    def start_sizes(self) -> Here[tuple[int, ...]]:
        """Rows of each table."""
        return Here(tuple(table.size() for table in self.store.tables))

    def start_stats(self) -> Here[tuple[TableStats, ...]]:
        """Rows, bytes, load and counts of each table."""
        return Here(tuple(table_stats(table) for table in self.store.tables))

    def start_max_ts(self) -> Here[int]:
        """The largest `ts` any write gave."""
        return Here(self.store.max_ts())
