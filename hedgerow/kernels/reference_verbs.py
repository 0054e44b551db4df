"""Plain torch twins of the rarer writing kernels: one id after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int64
from .layout import NO_STEP, TIMES, Arrays, Grouped, Part
from .reference import born_rows, find_or_insert, groups_of, insert_one, put_word
from .reference_rules import step

__all__ = ["apply_each", "assign_add", "exchange"]


def exchange(
    table: Arrays, ids: Int64[Tensor, "n"], rows: Float32[Tensor, "n width"]
) -> tuple[Int64[Tensor, "n"], Bool[Tensor, "n"]]:
    """`find_or_insert` of different ids with their rows: new ones get them, others give theirs."""
    slots, new = find_or_insert(table, ids)
    held, width = ~new & (slots >= 0), rows.shape[1]
    table.values[slots[new], :width] = rows[new]
    rows[held] = table.values[slots[held], :width]
    return slots, new


def assign_add(
    table: Arrays,
    grouped: Grouped,
    rows: Float32[Tensor, "n dim"],
    usable: Bool[Tensor, "n"],
    begun: Float32[Tensor, "n dim"],
    starts: Float32[Tensor, "states"],
    counts: Int64[Tensor, "3"],
    now: int,
    used: Int64[Tensor, "1"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
) -> None:
    """Adds the `usable` rows of each id to what it has; adds to `counts` as `Applied` has them."""
    told = torch.empty_like(grouped.ids) if placed is None else placed
    told.fill_(-1)
    for at, id_, sources in groups_of(grouped, used):
        good = [source for source in sources if bool(usable[source])]
        total = begun[at].clone()
        for source in good:
            total += rows[source]
        if not good or not bool(total.isfinite().all()):
            counts[2] += len(sources)
            continue
        told[at], new = insert_one(table, id_)
        slot = int(told[at])
        counts += torch.tensor([new, slot < 0, len(sources) - len(good)])
        if slot >= 0:
            table.values[slot, : table.dim] = total
            put_word(table, TIMES, slot, now)
            if new:
                table.values[slot, table.dim : table.dim + len(starts)] = starts


def apply_each(
    table: Arrays,
    grouped: Grouped,
    taking: Bool[Tensor, "n"],
    grads: Float32[Tensor, "n dim"],
    slots: Int64[Tensor, "n"],
    born: Bool[Tensor, "n"],
    parts: Sequence[Part],
    rates: Sequence[float],
    now: int,
    at_step: int = NO_STEP,
) -> None:
    """A step for every grouped occurrence that is `taking`."""
    order = grouped.order if grouped.order is not None else torch.arange(len(grouped.ids))
    for at in (slots >= 0).nonzero()[:, 0].tolist():
        slot, id_ = int(slots[at]), int(grouped.ids[at])
        row, new = table.values[slot], bool(born[at])
        if new:
            row[: table.dim] = born_rows(grouped.ids[at : at + 1], parts)[0]
        same = (grouped.ids == id_) & (torch.arange(len(grouped.ids)) >= at) & taking
        for i in same.nonzero()[:, 0].tolist():
            for part, rate in zip(parts, rates, strict=True):
                grad = grads[int(order[i]), part.start : part.start + part.dim]
                step(row, grad, part, rate, new=new, at_step=at_step)
            new = False
        put_word(table, TIMES, slot, now)
