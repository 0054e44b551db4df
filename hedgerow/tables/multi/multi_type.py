"""One independent table a slot, with the fused calls of the all-to-all exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from ...core.errors import NotSupportedError
from ...core.shapes import Float32, Int64
from .. import arguments
from ..schedules import Rate
from ..store import Applied
from . import parts
from .fused import FusedLookup, checked_ids, fused_offsets
from .slot_front import SlotFront


class MultiTypeTable(SlotFront):
    """One table a slot, made in byte order of the slots' names; safe from many threads.

    Fused calls serve N source shards at once: `ids` holds shard after shard, inside a shard table
    after table, and `slot_sizes` how many ids each of these cells has.

    >>> import torch
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> def config(dim):
    ...     return TableConfig("any", (Segment(dim, Zeros(), Sgd(lr=1.0)),))
    >>> table = MultiTypeTable({"a": config(1), "b": config(2)})
    >>> ids, sizes = torch.tensor([5, 6, 5]), torch.tensor([1, 0, 1, 1])
    >>> table.fused_apply(ids, sizes, 2, torch.ones(4))
    Applied(inserted=3, refused=0, dropped=0)
    >>> got = table.fused_lookup(ids, sizes, shards=2)
    >>> got.embeddings.tolist(), got.emb_splits.tolist(), got.id_offsets.tolist()
    ([-1.0, -1.0, -1.0, -1.0], [1, 3], [0, 1, 1, 2, 3])
    """

    def fused_lookup(
        self,
        ids: Int64[Tensor, "n"],
        slot_sizes: Int64[Tensor, "N * K"],
        shards: int,
        *,
        step: int | None = None,
    ) -> FusedLookup:
        """Rows of all cells in the order of the ids, flat. Nothing is inserted."""
        at = fused_offsets(slot_sizes, self.dims, shards)
        rows = self.store.lookup_cells(ids, checked_ids(ids, at), step=step)
        return FusedLookup(rows, at.emb_splits, at.id_offsets, at.emb_offsets)

    def fused_apply(
        self,
        ids: Int64[Tensor, "n"],
        slot_sizes: Int64[Tensor, "N * K"],
        shards: int,
        grads: Float32[Tensor, "floats"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
    ) -> Applied:
        """Each cell is a step of its own, in the order of the source shards.

        `rates` holds one rate a segment, tables in order. `counts` says how often each id occurred
        where the workers have removed duplicates; admission rules read it.
        """
        at = fused_offsets(slot_sizes, self.dims, shards)
        offsets = checked_ids(ids, at)
        flat = parts.flat_rows("grads", grads, int(at.emb_offsets[-1]))
        by_table = self.store.config.rates_of(rates)
        arguments.occurrences(counts, len(ids))
        cells = parts.cut(self.store.tables, ids, offsets, flat, by_table, counts)
        return parts.apply_gradients(cells, step=step, ts=ts, per_occurrence=per_occurrence)

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> NoReturn:
        """Not offered, as in the original; a slot's own table can do it."""
        raise NotSupportedError(
            f"reinitialize of slot {slot!r} on a {type(self).__name__}; use a NativeMultiTable, or "
            f"table({slot!r}).reinitialize(ids)."
        )
