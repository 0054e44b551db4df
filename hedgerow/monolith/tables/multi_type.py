"""Tables of one process by slot name: one table per slot, or all tables in one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn

import torch
from torch import Tensor

from ...core import checks
from ...core.errors import DtypeError, InputError, NotSupportedError
from ...core.ids import Ragged
from ...core.shapes import Float32, Int8, Int64
from ...tables import arguments
from ...tables.multi import parts
from ...tables.multi.parts import float_offsets
from ...tables.optimizers import Rate
from ...tables.store import Applied
from .slot_tables import SlotFront, SlotIds, SlotRows, slot_items, slot_pairs


@dataclass(frozen=True, slots=True, eq=False)
class FusedOffsets:
    """The start of each cell (shard, table), in ids and in floats, as running sums with the end."""

    id_offsets: Int64[Tensor, "N * K + 1"]
    emb_offsets: Int64[Tensor, "N * K + 1"]
    emb_splits: Int64[Tensor, "N"]  # floats of each source shard


@dataclass(frozen=True, slots=True, eq=False)
class FusedLookup:
    """Rows of a fused lookup, in the order of its ids, and the start of each cell."""

    embeddings: Float32[Tensor, "floats"]
    emb_splits: Int64[Tensor, "N"]  # floats of each source shard
    id_offsets: Int64[Tensor, "N * K + 1"]
    emb_offsets: Int64[Tensor, "N * K + 1"]


def fused_offsets(
    slot_sizes: Int64[Tensor, "N * K"], dims: Sequence[int], shards: int
) -> FusedOffsets:
    """Returns the offsets for the number of ids in each cell, shard-major.

    >>> at = fused_offsets(torch.tensor([1, 0, 1, 0, 1, 1]), [1, 2, 2], shards=2)
    >>> at.id_offsets.tolist(), at.emb_offsets.tolist(), at.emb_splits.tolist()
    ([0, 1, 1, 2, 2, 3, 4], [0, 1, 1, 3, 3, 5, 7], [3, 4])
    """
    tables = len(dims)
    checks.count("shards", shards, least=1)
    checks.tensor("slot_sizes", slot_sizes, torch.int64, (shards * tables,))
    sizes = slot_sizes.tolist()
    if min(sizes) < 0:
        raise InputError(f"slot_sizes holds {min(sizes)}; a cell has at least 0 ids.")
    id_offsets = [0, *accumulate(sizes)]
    emb_offsets = float_offsets(id_offsets, dims)
    if emb_offsets[-1] >= 2**63:
        raise InputError(f"slot_sizes add up to {id_offsets[-1]} ids; no tensor is that long.")
    ends = torch.tensor(emb_offsets)
    return FusedOffsets(torch.tensor(id_offsets), ends, ends[::tables].diff())


def checked_ids(ids: Int64[Tensor, "n"], at: FusedOffsets) -> list[int]:
    """Returns the id offsets as numbers. Raises unless the number of ids matches the cells."""
    checks.tensor("ids", ids, torch.int64, (None,))
    offsets = at.id_offsets.tolist()
    if offsets[-1] != len(ids):
        raise InputError(f"slot_sizes add up to {offsets[-1]}, but there are {len(ids)} ids.")
    return offsets


class MultiTypeTable(SlotFront):
    """One table per slot, created in byte order of the slots' names. Thread-safe.

    Fused calls serve N source shards at once. `ids` is ordered by shard, then by table.
    `slot_sizes` is the number of ids of each of these cells.

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
        """Returns the rows of all cells, flat, in the order of the ids. Inserts nothing."""
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
        """Performs one update per cell, in the order of the source shards.

        `rates` holds one rate per segment, in table order. `counts` is the number of occurrences of
        each id, if the workers have removed duplicates; admission rules read it.
        """
        at = fused_offsets(slot_sizes, self.dims, shards)
        offsets = checked_ids(ids, at)
        flat = parts.flat_rows("grads", grads, int(at.emb_offsets[-1]))
        by_table = self.store.config.rates_of(rates)
        arguments.occurrences(counts, len(ids))
        cells = parts.cut(self.store.tables, ids, offsets, flat, by_table, counts)
        return parts.apply_gradients(cells, step=step, ts=ts, per_occurrence=per_occurrence)

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> NoReturn:
        """Not supported, as in Monolith. A slot's own table supports it."""
        raise NotSupportedError(
            f"reinitialize of slot {slot!r} on a {type(self).__name__}; use a NativeMultiTable, or "
            f"table({slot!r}).reinitialize(ids)."
        )


class NativeMultiTable(SlotFront):
    """All tables with one call. `store` is the RowStore below it. Thread-safe.

    Raw calls take ragged ids with one row per table in the order of `names`, or several such
    requests concatenated (`requests * tables + 1` row splits), and flat rows in the same order.
    Each request is a separate update, in order.

    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> table = NativeMultiTable({"b": config, "a": config})
    >>> ids = table.dict_to_ragged({"b": torch.tensor([5, 6])})
    >>> table.raw_apply_gradients(ids, torch.tensor([1.0, 2.0]))
    Applied(inserted=2, refused=0, dropped=0)
    >>> two_requests = Ragged.from_lists([[], [5], [5], [6]])
    >>> table.raw_lookup(two_requests).tolist()
    [-1.0, 0.0, -2.0]
    >>> table.reinitialize("b", torch.tensor([5, 7])).tolist()
    [1, 0]
    >>> table.reinitialize("c", torch.tensor([5, 7])).tolist()
    [-1, -1]
    """

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Resets rows to first values.

        Returns 0 = was absent, 1 = was present, -1 = the slot is unknown.
        """
        checks.tensor("ids", ids, torch.int64, (None,))
        if slot not in self.store.config.positions:
            return torch.full((len(ids),), -1, dtype=torch.int8)
        return self.table(slot).reinitialize(ids)

    # ---- raw calls

    def raw_lookup(
        self,
        ids: Ragged,
        *,
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> Float32[Tensor, "floats"]:
        """Returns the rows, flat, in the order of the ids, in `out` if given. Inserts nothing."""
        return self.store.lookup_cells(ids.values, self._cells(ids), step=step, out=out)

    def raw_apply_gradients(
        self,
        ids: Ragged,
        grads: Float32[Tensor, "floats"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
    ) -> Applied:
        """Performs one optimizer step per request, table and distinct id.

        `rates` are in table order.
        """
        cells = self._parts_of("grads", ids, grads, rates, counts)
        return parts.apply_gradients(cells, step=step, ts=ts, per_occurrence=per_occurrence)

    def raw_assign(self, ids: Ragged, rows: Float32[Tensor, "floats"], *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state."""
        return parts.assign(self._parts_of("rows", ids, rows), ts=ts)

    def raw_assign_add(
        self, ids: Ragged, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Adds to rows. An absent row starts from its first value."""
        return parts.assign_add(self._parts_of("rows", ids, rows), ts=ts)

    # ---- between dicts and raw calls

    def dict_to_ragged(self, ids: SlotIds) -> Ragged:
        """Returns the ids as one request. A missing slot has no ids."""
        given = dict(slot_items("ids", ids))
        for slot in given:
            self.store.config.at(slot)
        none = torch.empty(0, dtype=torch.int64)
        rows = [given.get(name, none) for name in self.names]
        for name, row in zip(self.names, rows, strict=True):
            checks.tensor(f"ids of {name!r}", row, torch.int64, (None,))
        lengths = torch.tensor([0, *(len(row) for row in rows)])
        return Ragged(torch.cat(rows), lengths.cumsum(0))

    def dict_to_flat(self, batch: SlotRows) -> tuple[Ragged, Float32[Tensor, "floats"]]:
        """Returns ids and rows of one request."""
        pairs = dict(slot_pairs("rows", batch))
        ragged = self.dict_to_ragged({slot: ids for slot, (ids, _) in pairs.items()})
        found = [torch.empty(0, dtype=torch.float32)]
        for name, dim in zip(self.names, self.dims, strict=True):
            if name in pairs:
                ids, rows = pairs[name]
                checks.tensor(f"rows of {name!r}", rows, torch.float32, (len(ids), dim))
                found.append(rows.view(-1))
        return ragged, torch.cat(found)

    def flat_to_dict(
        self, ids: Ragged, flat: Float32[Tensor, "floats"], request: int = 0
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Returns the rows of one request by slot, without copies."""
        cells = self._cells(ids)
        at = parts.float_offsets(cells, self.dims)
        parts.flat_rows("flat", flat, at[-1])
        requests = (len(cells) - 1) // len(self.names)
        if checks.count("request", request) >= requests:
            raise InputError(f"request {request} of {requests}; they are counted from 0.")
        first = request * len(self.names)
        return {
            name: flat[at[first + k] : at[first + k + 1]].view(-1, dim)
            for k, (name, dim) in enumerate(zip(self.names, self.dims, strict=True))
        }

    # ---- helpers

    def _cells(self, ids: Ragged) -> list[int]:
        if not isinstance(ids, Ragged):
            raise DtypeError(f"ids is a {type(ids).__name__}; pass Ragged(values, row_splits).")
        checks.tensor("ids", ids.values, torch.int64, (None,))
        if ids.rows % len(self.names):
            raise InputError(
                f"ids has {len(ids.row_splits)} row splits; {len(self.names)} tables need "
                f"requests * {len(self.names)} + 1."
            )
        return ids.row_splits.tolist()

    def _parts_of(
        self,
        name: str,
        ids: Ragged,
        flat: Tensor,
        rates: Sequence[Rate] | None = None,
        counts: Tensor | None = None,
    ) -> list[parts.TableCall]:
        cells = self._cells(ids)
        flat = parts.flat_rows(name, flat, parts.float_offsets(cells, self.dims)[-1])
        by_table = self.store.config.rates_of(rates)
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (len(ids.values),))
        return parts.cut(self.store.tables, ids.values, cells, flat, by_table, counts)
