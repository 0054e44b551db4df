"""Gives every key of a batch a row: slots that a lookup found, new ones for ids without."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Bool, Int32, Int64
from .find import span_of
from .find_or_insert import claim
from .layout import Arrays
from .placement import LANES, candidates, mix_at
from .toolchain import blocks, jit, several, tl

_TILE = {"ROWS": 128, "num_warps": 4}


@jit(do_not_specialize=["n", "buckets", "now"])
def _seat(
    ids: tl.tensor,
    known: tl.tensor | None,
    used: tl.tensor | None,
    index: tl.tensor,
    spans: tl.tensor | None,
    splits: tl.tensor | None,
    marks: tl.tensor | None,
    changed: tl.tensor | None,
    places: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    K: tl.constexpr,
    ROOM: tl.constexpr,
    LINES: tl.constexpr,
    INSERT: tl.constexpr,
    NUMBERED: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.full((ROWS,), -1, tl.int64)
    if known is not None:
        slot = tl.load(known + i, mask=i < n, other=-1).to(tl.int64)
        if (spans is not None) and (not NUMBERED):
            base, _, _ = span_of((spans, splits), None, i, n, buckets, K, ROOM)
            slot = tl.where(slot >= 0, slot + base * LANES, slot)
    if INSERT:  # noqa: SIM102 (what is known when it is compiled decides first)
        if tl.min(tl.where(i < n, slot, 0), axis=0) < 0:
            base, count, live = span_of((spans, splits), used, i, n, buckets, K, ROOM)
            todo = live & (slot < 0)
            key = tl.load(ids + i, mask=todo, other=0)
            given, _ = claim(index, mix_at(index, buckets, LINES), key, todo, base, count, LINES)
            # Ids without room are counted by and by: equal ones get one number, below -1.
            first, second = candidates(mix_at(index, buckets, LINES), key, base, count)
            number = (first * 31 + second * 17 + (key & 0xFFFF)) & 0x3FFFFFFF
            slot = tl.where(todo, tl.where(given < 0, -2 - number, given), slot)
    tl.store(places + i, slot.to(tl.int32), mask=i < n)
    if marks is not None:
        tl.store(marks + slot, tl.zeros((ROWS,), tl.int32) + now, mask=slot >= 0)
    if changed is not None:
        tl.store(changed + slot, tl.full((ROWS,), 1, tl.int8), mask=slot >= 0)


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """When each slot was used last, and whether its row was changed; what a use sets.

    Of a use that changes nothing `changed` is None.
    """

    used: Int32[Tensor, "slots"]
    changed: Bool[Tensor, "slots"] | None
    now: int


def seat(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    known: Int64[Tensor, "n"] | Int32[Tensor, "n"] | None = None,
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
    *,
    insert: bool = True,
    marks: Marks | None = None,
) -> Int32[Tensor, "n"]:
    """The slot of each key; -1 for room, and below -1 a number of each id that found no place.

    If nothing is to `insert`, an id whose slot is not `known` is left out like room.

    Slots of several tables are numbered through all of them; `known` ones of 64 bits within their
    own, those of 32 bits through all, too.
    Slots that are `known` are believed. The rows of new ids are not set, and their time is
    `NEWBORN` until somebody does. Slots are marked, if that is asked for.
    """
    n = ids.shape[0]
    places = torch.empty_like(ids, dtype=torch.int32)
    when = changed = None
    if marks is not None:
        when = marks.used
        changed = None if marks.changed is None else marks.changed.view(torch.int8)
    if n:
        _seat[blocks(n, _TILE["ROWS"])](
            *(ids, known, used, table.index, table.spans, splits, when, changed, places, n),
            *(table.buckets, 0 if marks is None else marks.now),
            **several(table.tables),
            LINES=table.lines,
            INSERT=insert,
            NUMBERED=known is not None and known.dtype == torch.int32,
            **_TILE,
        )
    return places
