"""The protocol of a shard, and shards: in this process, with fp16 on the wire, of some tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int8, Int64
from ..tables.local_table import TableStats, table_stats
from ..tables.multi.host_tables import HostTables
from ..tables.optimizers import Rate
from ..tables.store import Applied, Entries, Lookup, Missing, TableKeys

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class PendingAnswer(Protocol[A_co]):
    """An answer that may not have arrived yet."""

    def wait(self) -> A_co:
        """Returns the answer once it has arrived. Raises if the shard or its connection failed."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyAnswer(Generic[A]):
    """An answer that is already available."""

    answer: A

    def wait(self) -> A:
        """Returns the answer immediately."""
        return self.answer


class Shard(Protocol):
    """The tables of one shard. Every call may return before its work is done.

    The caller passes only keys that this shard owns. Rows and gradients are flat, one table after
    another, as in a `RowStore` of several tables.
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
    ) -> PendingAnswer[Lookup]:
        """Reads the rows of `keys`, into `out` if given.

        `out` must not be read before the answer arrives.
        """
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
    ) -> PendingAnswer[Applied]:
        """Applies one optimizer step per table and distinct id.

        Keys and gradients must not be modified before the answer arrives.
        """
        ...

    def start_assign(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> PendingAnswer[Applied]:
        """Sets rows and keeps optimizer state."""
        ...

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> PendingAnswer[Applied]:
        """Adds to rows. An absent row starts from its first value."""
        ...

    def start_reinitialize(self, keys: TableKeys) -> PendingAnswer[Int8[Tensor, "n"]]:
        """Resets rows to their first values. The answer is 1 where a key had a row, else 0."""
        ...

    def start_contains(self, keys: TableKeys) -> PendingAnswer[Bool[Tensor, "n"]]:
        """Reads whether each key has a row."""
        ...

    def start_erase(self, keys: TableKeys) -> PendingAnswer[Bool[Tensor, "n"]]:
        """Removes rows. The answer says whether each key had one."""
        ...

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> PendingAnswer[Entries]:
        """Reads rows of table `k` with their state and time."""
        ...

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows of table `k`, in slices of about `rows`."""
        ...

    def start_sizes(self) -> PendingAnswer[tuple[int, ...]]:
        """Reads the number of rows of each table."""
        ...

    def start_stats(self) -> PendingAnswer[tuple[TableStats, ...]]:
        """Reads rows, bytes, load and counters of each table."""
        ...

    def start_max_ts(self) -> PendingAnswer[int]:
        """Reads the largest `ts` of any write."""
        ...


class LocalShard:
    """A shard in this process. Every call returns after its work is done.

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
    ) -> ReadyAnswer[Lookup]:
        """Reads the rows of `keys`, into `out` if given."""
        return ReadyAnswer(self.store.lookup(keys, missing=missing, step=step, out=out))

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
    ) -> ReadyAnswer[Applied]:
        """Applies one optimizer step per table and distinct id."""
        applied = self.store.apply_gradients(
            keys,
            grads,
            rates=rates,
            step=step,
            ts=ts,
            counts=counts,
            per_occurrence=per_occurrence,
        )
        return ReadyAnswer(applied)

    def start_assign(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> ReadyAnswer[Applied]:
        """Sets rows and keeps optimizer state."""
        return ReadyAnswer(self.store.assign(keys, rows, ts=ts))

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> ReadyAnswer[Applied]:
        """Adds to rows. An absent row starts from its first value."""
        return ReadyAnswer(self.store.assign_add(keys, rows, ts=ts))

    def start_reinitialize(self, keys: TableKeys) -> ReadyAnswer[Int8[Tensor, "n"]]:
        """Resets rows to their first values. The answer is 1 where a key had a row, else 0."""
        return ReadyAnswer(self.store.reinitialize(keys))

    def start_contains(self, keys: TableKeys) -> ReadyAnswer[Bool[Tensor, "n"]]:
        """Reads whether each key has a row."""
        return ReadyAnswer(self.store.contains(keys))

    def start_erase(self, keys: TableKeys) -> ReadyAnswer[Bool[Tensor, "n"]]:
        """Removes rows. The answer says whether each key had one."""
        return ReadyAnswer(self.store.erase(keys))

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> ReadyAnswer[Entries]:
        """Reads rows of table `k` with their state and time."""
        return ReadyAnswer(self.store.table(k).entries(ids))

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows of table `k`, in slices of about `rows`."""
        return self.store.table(k).scan(rows)

    def start_sizes(self) -> ReadyAnswer[tuple[int, ...]]:
        """Reads the number of rows of each table."""
        return ReadyAnswer(tuple(table.size() for table in self.store.tables))

    def start_stats(self) -> ReadyAnswer[tuple[TableStats, ...]]:
        """Reads rows, bytes, load and counters of each table."""
        return ReadyAnswer(tuple(table_stats(table) for table in self.store.tables))

    def start_max_ts(self) -> ReadyAnswer[int]:
        """Reads the largest `ts` of any write."""
        return ReadyAnswer(self.store.max_ts())


@dataclass(frozen=True, slots=True)
class _RoundedLookup:
    """A pending lookup whose rows are rounded to half precision when they arrive."""

    pending: PendingAnswer[Lookup]

    def wait(self) -> Lookup:
        found = self.pending.wait()
        found.rows.copy_(_half(found.rows))
        return found


def _half(values: Tensor) -> Tensor:
    return values.to(torch.float16).to(torch.float32)


class Fp16Shard:
    """Rounds looked-up rows and gradients to half precision, as sending them as float16 does.

    Stored rows stay float32. `assign`, `assign_add` and `entries` are not rounded.

    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> shard = Fp16Shard(LocalShard(HostTables({"item": config})))
    >>> keys = TableKeys.of_one(torch.tensor([7]))
    >>> _ = shard.start_assign(keys, torch.tensor([1.0001])).wait()
    >>> shard.start_lookup(keys).wait().rows.tolist()
    [1.0]
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        return self.shard.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        return self.shard.dims

    def start_lookup(
        self,
        keys: TableKeys,
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> PendingAnswer[Lookup]:
        """Reads the rows of `keys`, rounded, into `out` if given."""
        return _RoundedLookup(self.shard.start_lookup(keys, missing=missing, step=step, out=out))

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
    ) -> PendingAnswer[Applied]:
        """Applies one optimizer step per table and distinct id, with rounded gradients."""
        return self.shard.start_apply_gradients(
            keys,
            _half(grads),
            rates=rates,
            step=step,
            ts=ts,
            counts=counts,
            per_occurrence=per_occurrence,
        )

    def start_assign(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> PendingAnswer[Applied]:
        """Sets rows and keeps optimizer state."""
        return self.shard.start_assign(keys, rows, ts=ts)

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> PendingAnswer[Applied]:
        """Adds to rows. An absent row starts from its first value."""
        return self.shard.start_assign_add(keys, rows, ts=ts)

    def start_reinitialize(self, keys: TableKeys) -> PendingAnswer[Int8[Tensor, "n"]]:
        """Resets rows to their first values. The answer is 1 where a key had a row, else 0."""
        return self.shard.start_reinitialize(keys)

    def start_contains(self, keys: TableKeys) -> PendingAnswer[Bool[Tensor, "n"]]:
        """Reads whether each key has a row."""
        return self.shard.start_contains(keys)

    def start_erase(self, keys: TableKeys) -> PendingAnswer[Bool[Tensor, "n"]]:
        """Removes rows. The answer says whether each key had one."""
        return self.shard.start_erase(keys)

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> PendingAnswer[Entries]:
        """Reads rows of table `k` with their state and time."""
        return self.shard.start_entries(k, ids)

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows of table `k`, in slices of about `rows`."""
        return self.shard.scan(k, rows)

    def start_sizes(self) -> PendingAnswer[tuple[int, ...]]:
        """Reads the number of rows of each table."""
        return self.shard.start_sizes()

    def start_stats(self) -> PendingAnswer[tuple[TableStats, ...]]:
        """Reads rows, bytes, load and counters of each table."""
        return self.shard.start_stats()

    def start_max_ts(self) -> PendingAnswer[int]:
        """Reads the largest `ts` of any write."""
        return self.shard.start_max_ts()


B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class _AnswerForSome(Generic[B]):
    """The part of an answer for all tables that belongs to the tables `of`."""

    pending: PendingAnswer[tuple[B, ...]]
    of: tuple[int, ...]

    def wait(self) -> tuple[B, ...]:
        every = self.pending.wait()
        return tuple(every[k] for k in self.of)


class ShardView:
    """The tables `of` of a shard, given by number.

    `segment_splits` holds the segment offsets of all tables of the shard. `max_ts` is the maximum
    over all tables of the shard.

    >>> import torch
    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> both = LocalShard(HostTables({"item": config, "user": config}))
    >>> user = ShardView(both, [1], (0, 1, 2))
    >>> user.start_assign(TableKeys.of_one(torch.tensor([7])), torch.ones(1)).wait()
    Applied(inserted=1, refused=0, dropped=0)
    >>> user.names, user.start_sizes().wait(), both.start_sizes().wait()
    (('user',), (1,), (0, 1))
    """

    def __init__(self, shard: Shard, of: Sequence[int], segment_splits: Sequence[int]) -> None:
        self.shard, self.of = shard, tuple(sorted(of))
        self._segments = tuple(segment_splits)  # of all tables of the shard

    @property
    def names(self) -> tuple[str, ...]:
        """The tables of this view, in byte order."""
        return tuple(self.shard.names[k] for k in self.of)

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table of this view."""
        return tuple(self.shard.dims[k] for k in self.of)

    def _among(self, keys: TableKeys) -> TableKeys:
        sizes = dict.fromkeys(range(len(self.shard.names)), 0)
        sizes.update(zip(self.of, (b - a for a, b in pairwise(keys.splits)), strict=True))
        return TableKeys(keys.ids, (0, *accumulate(sizes.values())))

    def _rates(self, rates: Sequence[Rate]) -> list[Rate]:
        """Returns rates for all tables of the shard.

        Tables outside this view get 0, which is not used.
        """
        given, every = iter(rates), list[Rate]()
        for k, (start, stop) in enumerate(pairwise(self._segments)):
            every += [next(given) if k in self.of else 0.0 for _ in range(start, stop)]
        return every

    def start_lookup(
        self,
        keys: TableKeys,
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> PendingAnswer[Lookup]:
        """Reads the rows of `keys`, into `out` if given."""
        return self.shard.start_lookup(self._among(keys), missing=missing, step=step, out=out)

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
    ) -> PendingAnswer[Applied]:
        """Applies one optimizer step per table and distinct id."""
        return self.shard.start_apply_gradients(
            self._among(keys),
            grads,
            rates=None if rates is None else self._rates(rates),
            step=step,
            ts=ts,
            counts=counts,
            per_occurrence=per_occurrence,
        )

    def start_assign(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> PendingAnswer[Applied]:
        """Sets rows and keeps optimizer state."""
        return self.shard.start_assign(self._among(keys), rows, ts=ts)

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> PendingAnswer[Applied]:
        """Adds to rows. An absent row starts from its first value."""
        return self.shard.start_assign_add(self._among(keys), rows, ts=ts)

    def start_reinitialize(self, keys: TableKeys) -> PendingAnswer[Int8[Tensor, "n"]]:
        """Resets rows to their first values. The answer is 1 where a key had a row, else 0."""
        return self.shard.start_reinitialize(self._among(keys))

    def start_contains(self, keys: TableKeys) -> PendingAnswer[Bool[Tensor, "n"]]:
        """Reads whether each key has a row."""
        return self.shard.start_contains(self._among(keys))

    def start_erase(self, keys: TableKeys) -> PendingAnswer[Bool[Tensor, "n"]]:
        """Removes rows. The answer says whether each key had one."""
        return self.shard.start_erase(self._among(keys))

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> PendingAnswer[Entries]:
        """Reads rows of table `k` of this view with their state and time."""
        return self.shard.start_entries(self.of[k], ids)

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows of table `k` of this view, in slices of about `rows`."""
        return self.shard.scan(self.of[k], rows)

    def start_sizes(self) -> PendingAnswer[tuple[int, ...]]:
        """Reads the number of rows of each table of this view."""
        return _AnswerForSome(self.shard.start_sizes(), self.of)

    def start_stats(self) -> PendingAnswer[tuple[TableStats, ...]]:
        """Reads rows, bytes, load and counters of each table of this view."""
        return _AnswerForSome(self.shard.start_stats(), self.of)

    def start_max_ts(self) -> PendingAnswer[int]:
        """Reads the largest `ts` of any write."""
        return self.shard.start_max_ts()
