"""Plain twins of the kernels that score, pin, evict, select and move rows."""

from __future__ import annotations

import torch
from torch import Tensor

from hedgerow.core.shapes import Float32, Int64
from hedgerow.core.use_weights import weights_added
from hedgerow.kernels.evict import InsertResult
from hedgerow.kernels.layout import (
    ASSIGNED,
    BUSY,
    EMPTY,
    ERASED,
    EVICTED,
    INSERTED,
    KEYS,
    LANES,
    MARK,
    NEWBORN,
    NOT_ASKED,
    RECLAIMED,
    SCORE,
    SCORES,
    TAKEN,
    TIMES,
    Arrays,
)

from .kernels_table import find_one, insert_one, key_at, place_by, places_of, put_word


def _word(table: Arrays, slot: int) -> int:
    return int(table.index[slot // LANES, SCORES, slot % LANES])


def _worth(word: int, top: int, mode: str) -> int:
    score = word & SCORE
    if mode == "use":
        return (score - top - 1) & MARK if score else 0
    return score


def _scored(word: int, given: int, mode: str) -> int:
    if mode == "use":
        return weights_added(word & SCORE if word > 0 else 0, given & MARK)
    return given & SCORE


def _victim(table: Arrays, id_: int, call: int, top: int, mode: str) -> int:
    """The slot of the row that leaves for an id, or -1."""
    buckets = [int(b) for b in place_by(torch.tensor([id_]), table.buckets, table.mix())]
    may_leave = [
        (_worth(_word(table, slot), top, mode), order, slot)
        for order, slot in enumerate(b * LANES + lane for b in buckets for lane in range(LANES))
        if _word(table, slot) >= 0
        and _word(table, slot) >> 48 != call
        and (table.pins is None or int(table.pins[slot]) == 0)
    ]
    return min(may_leave)[2] if may_leave else -1


def _seat(table: Arrays, id_: int, call: int, top: int, mode: str) -> tuple[int, int]:
    """Code and slot of an id; the table is not changed."""
    slot = find_one(table, id_)
    if slot >= 0:
        return ASSIGNED, slot
    for slot in places_of(table, id_):
        if key_at(table, slot) in (EMPTY, ERASED):
            return RECLAIMED if key_at(table, slot) == ERASED else INSERTED, slot
    slot = -1 if id_ in (EMPTY, ERASED) else _victim(table, id_, call, top, mode)
    return (BUSY if slot < 0 else EVICTED), slot


def insert_and_evict(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    scores: Int64[Tensor, "n"],
    rows: Float32[Tensor, "n width"] | None = None,
    *,
    call: int,
    now: int = 0,
    mode: str = "assign",
    top: int = 0,
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
) -> InsertResult:
    """Gives every id a row with this score, or tells that its buckets are busy. One table."""
    n = len(ids)
    live = n if used is None else int(used)
    out = InsertResult(
        torch.full((n,), NOT_ASKED, dtype=torch.int8),
        torch.full((n,), -1),
        torch.zeros(n, dtype=torch.int64),
        torch.zeros(n, dtype=torch.int64),
        None if rows is None else torch.zeros_like(rows),
    )
    for i, (id_, given) in enumerate(zip(ids[:live].tolist(), scores.tolist(), strict=False)):
        code, slot = _seat(table, id_, call, top, mode)
        out.codes[i], out.slots[i] = code, slot
        if code == BUSY:
            continue
        word = _word(table, slot) if code == ASSIGNED else 0
        if code == EVICTED:
            out.victims[i], out.victim_scores[i] = (
                key_at(table, slot),
                table.read(SCORES, torch.tensor(slot)),
            )
            if out.victim_rows is not None:
                out.victim_rows[i] = table.values[slot, : out.victim_rows.shape[1]]
        put_word(table, KEYS, slot, TAKEN if id_ in (EMPTY, ERASED) else id_)
        if table.lines > 2:
            put_word(table, TIMES, slot, now)
        put_word(table, SCORES, slot, call << 48 | _scored(word, given, mode))
        if rows is not None:
            table.values[slot, : rows.shape[1]] = rows[i]
    return out


def pin(table: Arrays, slots: Int64[Tensor, "n"], by: int = 1) -> None:
    """Holds the rows in these slots once more each, or `by=-1` once less; -1 is no slot."""
    assert table.pins is not None
    for slot in slots.tolist():
        if slot >= 0:
            table.pins[slot] += by


def touch(
    table: Arrays,
    slots: Int64[Tensor, "n"],
    scores: Int64[Tensor, "n"],
    mode: str = "assign",
) -> None:
    """Scores the rows in these slots, which must differ, for one more use; -1 is no slot."""
    for slot, given in zip(slots.tolist(), scores.tolist(), strict=True):
        if slot >= 0:
            put_word(table, SCORES, slot, _scored(_word(table, slot), given, mode))


def _chosen(table: Arrays, low: int, high: int) -> list[int]:
    taken, times = table.taken().tolist(), table.line(TIMES).tolist()
    words = table.index[:, TIMES].flatten().tolist()
    return [
        slot
        for slot, time in enumerate(times)
        if taken[slot] and words[slot] >= 0 and low <= time < high
    ]


def select(
    table: Arrays, low: int = 0, high: int = SCORE
) -> tuple[Int64[Tensor, "slots"], Int64[Tensor, "1"]]:
    """The slots of rows of a time in low..high-1, and how many; what follows is -1."""
    chosen, out = _chosen(table, low, high), torch.full((len(table.values),), -1)
    out[: len(chosen)] = torch.tensor(chosen, dtype=torch.int64)
    return out, torch.tensor([len(chosen)])


def erase_if(table: Arrays, low: int = 0, high: int = SCORE) -> Int64[Tensor, "1"]:
    """Takes out the rows of one table of a time in low..high-1 that nobody holds; how many."""
    gone = [s for s in _chosen(table, low, high) if table.pins is None or not int(table.pins[s])]
    for slot in gone:
        table.index[slot // LANES, :, slot % LANES] = NEWBORN
        own = slot // LANES == table.buckets
        table.index[slot // LANES, KEYS, slot % LANES] = EMPTY if own else ERASED
    return torch.tensor([len(gone)])


def rehash(table: Arrays, larger: Arrays) -> Int64[Tensor, "slots"]:
    """Copies all rows into an empty table, with times, scores and pins; their new slots."""
    moved = torch.full((len(table.values),), -1)
    for old in table.taken().nonzero()[:, 0]:
        slot, _ = insert_one(larger, int(table.ids(old.view(1))))
        moved[old] = slot
        if slot >= 0:
            place = slot // LANES, slice(KEYS + 1, None), slot % LANES
            larger.index[place] = table.index[int(old) // LANES, KEYS + 1 :, int(old) % LANES]
            larger.values[slot] = table.values[old]
            if larger.pins is not None and table.pins is not None:
                larger.pins[slot] = table.pins[old]
    return moved


__all__ = ["erase_if", "insert_and_evict", "pin", "rehash", "select", "touch"]
