"""All tables in one object, with raw calls on ragged ids and flat rows that spare dicts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core import checks
from ...core.errors import DtypeError, InputError
from ...core.ids import Ragged
from ...core.shapes import Float32, Int8, Int64
from ..schedules import Rate
from ..store import Applied
from . import parts
from .slot_front import SlotFront, SlotIds, SlotRows, slot_items, slot_pairs


class NativeMultiTable(SlotFront):
    """One call for all tables. `store` is the RowStore below it; safe from many threads.

    Raw calls take ragged ids with one row a table in the order of `names`, or several such requests
    one after the other (`requests * tables + 1` row splits), and rows flat in the same order. Each
    request is an update of its own, in order.

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
        """Makes rows as new; 0 = was absent, 1 = was there, -1 = there is no such slot."""
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
        """Rows in the order of the ids, flat, into `out` if given. Nothing is inserted."""
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
        """One optimizer step per request, table and distinct id; `rates` in table order."""
        cells = self._parts_of("grads", ids, grads, rates, counts)
        return parts.apply_gradients(cells, step=step, ts=ts, per_occurrence=per_occurrence)

    def raw_assign(self, ids: Ragged, rows: Float32[Tensor, "floats"], *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state."""
        return parts.assign(self._parts_of("rows", ids, rows), ts=ts)

    def raw_assign_add(
        self, ids: Ragged, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Adds to rows; an absent one starts from its first value."""
        return parts.assign_add(self._parts_of("rows", ids, rows), ts=ts)

    # ---- between dicts and raw calls

    def dict_to_ragged(self, ids: SlotIds) -> Ragged:
        """One request; a slot that is missing has no ids."""
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
        """Ids and rows of one request."""
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
        """The rows of one request by slot, without copies."""
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
    ) -> list[parts.Part]:
        cells = self._cells(ids)
        flat = parts.flat_rows(name, flat, parts.float_offsets(cells, self.dims)[-1])
        by_table = self.store.config.rates_of(rates)
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (len(ids.values),))
        return parts.cut(self.store.tables, ids.values, cells, flat, by_table, counts)
