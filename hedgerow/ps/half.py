"""A shard whose rows and gradients travel as half precision, although it may be in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int8, Int64
from ..tables.schedules import Rate
from ..tables.stats import TableStats
from ..tables.store import Applied, Entries, Lookup, Missing, TableKeys
from .shard import Pending, Shard


@dataclass(frozen=True, slots=True)
class _Rounded:
    """Rows on their way, rounded when they are here."""

    pending: Pending[Lookup]

    def wait(self) -> Lookup:
        found = self.pending.wait()
        found.rows.copy_(_half(found.rows))
        return found


def _half(values: Tensor) -> Tensor:
    return values.to(torch.float16).to(torch.float32)


class HalfShard:
    """Rounds looked-up rows and gradients to half, as a wire of half precision does.

    Rows stay float32 where they lie; `assign`, `assign_add` and whole rows travel as they are.

    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> shard = HalfShard(LocalShard(HostTables({"item": config})))
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
    ) -> Pending[Lookup]:
        """Rows of `keys`, rounded, into `out` if given."""
        return _Rounded(self.shard.start_lookup(keys, missing=missing, step=step, out=out))

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
        """One optimizer step per table and distinct id, with rounded gradients."""
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
    ) -> Pending[Applied]:
        """Sets rows and keeps optimizer state."""
        return self.shard.start_assign(keys, rows, ts=ts)

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Pending[Applied]:
        """Adds to rows; an absent one starts from its first value."""
        return self.shard.start_assign_add(keys, rows, ts=ts)

    def start_reinitialize(self, keys: TableKeys) -> Pending[Int8[Tensor, "n"]]:
        """Makes rows as new; 0 = was absent, 1 = was there."""
        return self.shard.start_reinitialize(keys)

    def start_contains(self, keys: TableKeys) -> Pending[Bool[Tensor, "n"]]:
        """Whether each key has a row."""
        return self.shard.start_contains(keys)

    def start_erase(self, keys: TableKeys) -> Pending[Bool[Tensor, "n"]]:
        """Removes rows and says which were there."""
        return self.shard.start_erase(keys)

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> Pending[Entries]:
        """Whole rows of table `k`."""
        return self.shard.start_entries(k, ids)

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """All rows of table `k`, in slices of about `rows`."""
        return self.shard.scan(k, rows)

    def start_sizes(self) -> Pending[tuple[int, ...]]:
        """Rows of each table."""
        return self.shard.start_sizes()

    def start_stats(self) -> Pending[tuple[TableStats, ...]]:
        """Rows, bytes, load and counts of each table."""
        return self.shard.start_stats()

    def start_max_ts(self) -> Pending[int]:
        """The largest `ts` any write gave."""
        return self.shard.start_max_ts()
