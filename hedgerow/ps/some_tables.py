"""Some tables of a shard that holds more of them, as a shard of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

from torch import Tensor

from ..core.shapes import Bool, Float32, Int8, Int64
from ..tables.schedules import Rate
from ..tables.stats import TableStats
from ..tables.store import Applied, Entries, Lookup, Missing, TableKeys
from .shard import Pending, Shard

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class _Some(Generic[A]):
    """What is told of some tables, out of what is told of all."""

    pending: Pending[tuple[A, ...]]
    of: tuple[int, ...]

    def wait(self) -> tuple[A, ...]:
        every = self.pending.wait()
        return tuple(every[k] for k in self.of)


class TablesOfShard:
    """The tables `of` a shard, by number, whose tables have the segments `segment_splits`.

    `max_ts` is that of all its tables.

    >>> import torch
    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> both = LocalShard(HostTables({"item": config, "user": config}))
    >>> user = TablesOfShard(both, [1], (0, 1, 2))
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
        """These tables, in byte order."""
        return tuple(self.shard.names[k] for k in self.of)

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each."""
        return tuple(self.shard.dims[k] for k in self.of)

    def _among(self, keys: TableKeys) -> TableKeys:
        sizes = dict.fromkeys(range(len(self.shard.names)), 0)
        sizes.update(zip(self.of, (b - a for a, b in pairwise(keys.splits)), strict=True))
        return TableKeys(keys.ids, (0, *accumulate(sizes.values())))

    def _rates(self, rates: Sequence[Rate]) -> list[Rate]:
        """Those of all tables; of tables without keys nobody reads them."""
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
    ) -> Pending[Lookup]:
        """Rows of `keys`, into `out` if given."""
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
    ) -> Pending[Applied]:
        """One optimizer step per distinct id."""
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
    ) -> Pending[Applied]:
        """Sets rows and keeps optimizer state."""
        return self.shard.start_assign(self._among(keys), rows, ts=ts)

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Pending[Applied]:
        """Adds to rows; an absent one starts from its first value."""
        return self.shard.start_assign_add(self._among(keys), rows, ts=ts)

    def start_reinitialize(self, keys: TableKeys) -> Pending[Int8[Tensor, "n"]]:
        """Makes rows as new; 0 = was absent, 1 = was there."""
        return self.shard.start_reinitialize(self._among(keys))

    def start_contains(self, keys: TableKeys) -> Pending[Bool[Tensor, "n"]]:
        """Whether each key has a row."""
        return self.shard.start_contains(self._among(keys))

    def start_erase(self, keys: TableKeys) -> Pending[Bool[Tensor, "n"]]:
        """Removes rows and says which were there."""
        return self.shard.start_erase(self._among(keys))

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> Pending[Entries]:
        """Whole rows of table `k` of these."""
        return self.shard.start_entries(self.of[k], ids)

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """All rows of table `k` of these, in slices of about `rows`."""
        return self.shard.scan(self.of[k], rows)

    def start_sizes(self) -> Pending[tuple[int, ...]]:
        """Rows of each."""
        return _Some(self.shard.start_sizes(), self.of)

    def start_stats(self) -> Pending[tuple[TableStats, ...]]:
        """Rows, bytes, load and counts of each."""
        return _Some(self.shard.start_stats(), self.of)

    def start_max_ts(self) -> Pending[int]:
        """The largest `ts` any write gave."""
        return self.shard.start_max_ts()
