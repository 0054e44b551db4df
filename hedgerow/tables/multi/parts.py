"""One call on several tables: all arguments are checked first, then the tables change in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise
from operator import mul, sub

import torch
from torch import Tensor

from ... import native
from ...core import checks
from ...core.errors import InputError
from ...core.shapes import Float32, Int64
from ..host import HostTable
from ..optimizers import Rate
from ..store import Applied, Lookup, Missing, TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class TableCall:
    """One table's part of a call: its ids, and its rows, gradients or output."""

    table: HostTable
    ids: Int64[Tensor, "n"]
    rows: Float32[Tensor, "n dim"]
    rates: Sequence[Rate] | None = None
    counts: Int64[Tensor, "n"] | None = None
    found: Lookup | None = None  # where its rows are


def float_offsets(id_offsets: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Returns the offset of each cell's floats, and the end; cell i is of table i modulo K.

    >>> float_offsets([0, 1, 1, 2, 2, 3, 4], [1, 2, 2])
    [0, 1, 1, 3, 3, 5, 7]
    """
    if len(id_offsets) == 2:  # most calls: one table
        return [0, (id_offsets[1] - id_offsets[0]) * dims[0]]
    sizes = map(sub, id_offsets[1:], id_offsets)
    return [0, *accumulate(map(mul, sizes, cycle(dims)))]


def cut(
    tables: Sequence[HostTable],
    ids: Int64[Tensor, "n"],
    id_offsets: Sequence[int],
    flat: Float32[Tensor, "floats"],
    rates: Sequence[Sequence[Rate] | None] | None = None,
    counts: Int64[Tensor, "n"] | None = None,
    found: Lookup | None = None,
) -> list[TableCall]:
    """Splits flat ids and rows into parts by table, without copies; cells without ids are left out.

    The caller has checked `ids`, `id_offsets` and `flat`. `found` says where the rows of all ids
    are, if there is one cell per table.
    """
    dims = [table.layout.dim for table in tables]
    at = float_offsets(id_offsets, dims)
    parts = []
    for i, (start, stop) in enumerate(pairwise(id_offsets)):
        if start == stop:
            continue
        k = i % len(tables)
        rows = flat[at[i] : at[i + 1]].view(stop - start, dims[k])
        own_rates = None if rates is None else rates[k]
        own_counts = None if counts is None else counts[start:stop]
        own_ids = ids[start:stop]
        place = None if found is None else found.in_table(k, TableKeys(own_ids, (0, stop - start)))
        own_found = place if isinstance(place, Lookup) else None
        parts.append(TableCall(tables[k], own_ids, rows, own_rates, own_counts, own_found))
    return parts


def lookup(
    parts: Sequence[TableCall], *, missing: Missing = "zeros", step: int | None = None
) -> list[Tensor]:
    """Fills the rows of the parts; returns the slots that the tables report."""
    slots = list[Tensor]()
    for part in parts:
        found = part.table.lookup(part.ids, missing=missing, step=step, out=part.rows)
        if found.slots is not None:
            slots.append(found.slots)
    return slots


def assign(parts: Sequence[TableCall], *, ts: int = 0) -> Applied:
    """Sets rows; keeps their optimizer state."""
    _check_rows(parts, ts)
    return total([part.table.assign(part.ids, part.rows, ts=ts) for part in parts])


def assign_add(parts: Sequence[TableCall], *, ts: int = 0) -> Applied:
    """Adds to rows; an absent row starts from its initial value."""
    _check_rows(parts, ts)
    return total([part.table.assign_add(part.ids, part.rows, ts=ts) for part in parts])


def _check_rows(parts: Sequence[TableCall], ts: int) -> None:
    checks.count("ts", ts)
    for part in parts if len(parts) > 1 else ():  # a single table checks its own call
        part.table.core.checked_keys_and_rows(part.ids, part.rows)


def apply_gradients(
    parts: Sequence[TableCall],
    *,
    step: int | None = None,
    ts: int = 0,
    per_occurrence: bool = False,
    reject: bool = True,
) -> Applied:
    """Applies one optimizer step per part and distinct id, part after part."""
    checks.count("ts", ts)
    checks.flag("per_occurrence", per_occurrence)
    # All arguments are checked before the first change, and each rate function is called once.
    ready = [
        part.table.core.update_arguments(
            part.ids, part.rows, part.rates, step, part.counts, reject=reject
        )
        for part in parts
    ]
    done = []
    for part, (ids, grads, rates, at_step) in zip(parts, ready, strict=True):
        done.append(
            part.table.core.apply_checked(
                ids, grads, rates, at_step, ts, part.counts, per_occurrence, part.found
            )
        )
    return total(done)


def total(done: Sequence[Applied]) -> Applied:
    """Adds up the results of several writes.

    >>> total([Applied.of(inserted=2), Applied.of(inserted=1, dropped=1)])
    Applied(inserted=3, refused=0, dropped=1)
    """
    if not done:
        return Applied.of()
    counts = done[0].counts
    for applied in done[1:]:
        counts = counts + applied.counts
    return Applied(counts)


def first_not_finite(flat: Float32[Tensor, "floats"]) -> int:
    """Returns the position of the first value that is not finite; -1 if all are finite.

    >>> first_not_finite(torch.tensor([1.0, float("inf")]))
    1
    """
    return native.first_not_finite(flat.data_ptr(), flat.numel())


def flat_rows(
    name: str, rows: Tensor, floats: int, device: torch.device = checks.CPU
) -> Float32[Tensor, "floats"]:
    """Returns checked rows, gradients or output of several tables: flat, with `floats` values."""
    if isinstance(rows, Tensor) and rows.dim() != 1:
        raise InputError(
            f"{name} has shape {tuple(rows.shape)}; rows of several tables are flat, ({floats},): "
            f"their widths differ."
        )
    checks.tensor(name, rows, torch.float32, (floats,), device)
    return rows


def flat_output(
    out: Tensor, floats: int, device: torch.device = checks.CPU
) -> Float32[Tensor, "floats"]:
    """Returns the caller's checked output for several tables.

    Each table's lookup marks its part as changed for autograd.
    """
    if isinstance(out, Tensor) and out.requires_grad:
        raise InputError("out requires grad; autograd could not see it change. Detach it.")
    return flat_rows("out", out, floats, device)
