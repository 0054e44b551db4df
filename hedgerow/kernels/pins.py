"""Holds rows so that they do not leave the table, lets them go, and scores them."""

from __future__ import annotations

from torch import Tensor

from ..core.errors import InputError
from ..core.shapes import Int64
from .layout import Arrays
from .placement import word
from .scores import scored
from .toolchain import blocks, jit, tl

_ROWS = 256


@jit(do_not_specialize=["n", "by"])
def _pin(
    slots: tl.tensor, pins: tl.tensor, n: tl.tensor, by: tl.tensor, ROWS: tl.constexpr
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    more = tl.zeros_like(slot).to(tl.int32) + by
    tl.atomic_add(pins + slot, more, mask=slot >= 0, sem="relaxed")


def pin(
    table: Arrays,
    slots: Int64[Tensor, "n"],
    by: int = 1,
    splits: Int64[Tensor, "K+1"] | None = None,
) -> None:
    """Holds the rows in these slots once more each, or `by=-1` once less; -1 is no slot.

    Of several tables, `splits` say where the slots of each begin and end.
    """
    if table.pins is None:
        raise InputError("the table holds no rows; make it with Arrays.make(..., pinned=True).")
    slots = table.numbered(slots, splits)
    if len(slots):
        _pin[blocks(len(slots), _ROWS)](slots, table.pins, len(slots), by, ROWS=_ROWS)


@jit(do_not_specialize=["n"])
def _touch(
    slots: tl.tensor,
    scores: tl.tensor,
    index: tl.tensor,
    n: tl.tensor,
    MODE: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    there = slot >= 0
    given = tl.load(scores + i, mask=there, other=0)
    at = index + word(slot, LINES - 1, LINES)
    old = tl.load(at, mask=there, other=0)
    new = scored(tl.where(old < 0, 0, old), given, MODE)
    tl.store(at, new, mask=there)


def touch(
    table: Arrays,
    slots: Int64[Tensor, "n"],
    scores: Int64[Tensor, "n"],
    mode: str = "assign",
    splits: Int64[Tensor, "K+1"] | None = None,
) -> None:
    """Scores the rows in these slots, which must differ, for one more use; -1 is no slot.

    Of several tables, `splits` say where the slots of each begin and end.
    """
    slots = table.numbered(slots, splits)
    if len(slots):
        _touch[blocks(len(slots), _ROWS)](
            *(slots, scores, table.index, len(slots)),
            MODE=mode,
            LINES=table.lines,
            ROWS=_ROWS,
        )
