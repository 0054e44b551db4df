"""One table of a shard that holds several, as a shard of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..core.shapes import Bool, Float32, Int8, Int64
from ..tables.schedules import Rate
from ..tables.store import Applied, Entries, Lookup, Missing, TableKeys
from .shard import Pending, Shard


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The size of one table, out of those of all."""

    pending: Pending[tuple[int, ...]]
    k: int

    def wait(self) -> tuple[int, ...]:
        return (self.pending.wait()[self.k],)


class TableOfShard:
    """Table `k` of a shard, whose tables have segments `segment_splits`.

    `max_ts` is that of all its tables.

    >>> import torch
    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> both = LocalShard(HostTables({"item": config, "user": config}))
    >>> user = TableOfShard(both, 1, (0, 1, 2))
    >>> user.start_assign(TableKeys.of_one(torch.tensor([7])), torch.ones(1)).wait()
    Applied(inserted=1, refused=0, dropped=0)
    >>> user.names, user.start_sizes().wait(), both.start_sizes().wait()
    (('user',), (1,), (0, 1))
    """

    def __init__(self, shard: Shard, k: int, segment_splits: Sequence[int]) -> None:
        self.shard, self.k = shard, k
        self._segments = tuple(segment_splits)  # of all tables of the shard

    @property
    def names(self) -> tuple[str, ...]:
        """The table."""
        return (self.shard.names[self.k],)

    @property
    def dims(self) -> tuple[int, ...]:
        """Its columns."""
        return (self.shard.dims[self.k],)

    def _among(self, keys: TableKeys) -> TableKeys:
        after = len(self.shard.names) - self.k
        return TableKeys(keys.ids, (0,) * (self.k + 1) + (len(keys.ids),) * after)

    def _rates(self, rates: Sequence[Rate]) -> list[Rate]:
        """Those of all tables; of tables without keys nobody reads them."""
        before, after = self._segments[self.k], self._segments[-1] - self._segments[self.k + 1]
        return [*[0.0] * before, *rates, *[0.0] * after]

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
        """Whole rows."""
        return self.shard.start_entries(self.k + k, ids)

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices of about `rows`."""
        return self.shard.scan(self.k + k, rows)

    def start_sizes(self) -> Pending[tuple[int, ...]]:
        """Its rows."""
        return _Sizes(self.shard.start_sizes(), self.k)

    def start_max_ts(self) -> Pending[int]:
        """The largest `ts` any write gave."""
        return self.shard.start_max_ts()
