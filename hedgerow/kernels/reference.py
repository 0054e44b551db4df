"""Plain torch twins of the kernels: the same names and arguments, without Triton. Slow on purpose.

They say what a kernel must give. Only where a new id is put may differ: many programs insert at
once, the twin one id after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Bool, Float32, Int64
from .layout import (
    EMPTY,
    ERASED,
    HOME_LANES,
    KEYS,
    LANES,
    NEWBORN,
    NO_STEP,
    PIECE,
    TAKEN,
    TIMES,
    Arrays,
    FirstValues,
    Grouped,
    Part,
    mix_of,
    mixed,
)
from .reference_rules import step

__all__ = [
    "apply",
    "assign",
    "erase",
    "find",
    "find_or_insert",
    "first_values",
    "gather",
    "lookup",
    "place",
    "read",
    "sum_gradients",
    "sum_pieces",
]

_LOW = 2**32 - 1


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & (2 ** (64 - bits) - 1)  # the mask makes the signed shift a logical one


def place(
    ids: Int64[Tensor, "n"], buckets: int, slot_key: int = 0
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """The first and second bucket of each id."""
    return place_by(ids, buckets, mix_of(slot_key))


def place_by(
    ids: Int64[Tensor, "n"], buckets: int, mix: tuple[int, int, int]
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """`place` by the words of a slot key, as a table has them."""
    words = [signed64(mixed(id_ % 2**64, *mix)) for id_ in ids.tolist()]
    hashed = torch.tensor(words, dtype=torch.int64)
    first = _shifted(_shifted(hashed, 32) * buckets, 32)
    second = _shifted((hashed & _LOW) * buckets, 32)
    return first, torch.where(second == first, (first + 1) % buckets, second)


def places_of(table: Arrays, id_: int) -> list[int]:
    """The slots an id may have, in the order in which they are taken."""
    if id_ in (EMPTY, ERASED):
        return [table.buckets * LANES + (id_ == ERASED)]
    first, second = (
        int(b) * LANES for b in place_by(torch.tensor([id_]), table.buckets, table.mix())
    )
    homes = [bucket + lane for bucket in (first, second) for lane in range(HOME_LANES)]
    return homes + [
        bucket + lane for lane in range(HOME_LANES, LANES) for bucket in (first, second)
    ]


def key_at(table: Arrays, slot: int) -> int:
    return int(table.index[slot // LANES, KEYS, slot % LANES])


def put_word(table: Arrays, line: int, slot: int, word: int) -> None:
    table.index[slot // LANES, line, slot % LANES] = word


def find_one(table: Arrays, id_: int) -> int:
    sought = TAKEN if id_ in (EMPTY, ERASED) else id_
    return next((s for s in places_of(table, id_) if key_at(table, s) == sought), -1)


def find(
    table: Arrays, ids: Int64[Tensor, "n"], used: Int64[Tensor, "1"] | None = None
) -> Int64[Tensor, "n"]:
    """The slot of each id; -1 where there is none, and from `used` on."""
    live = len(ids) if used is None else int(used)
    found = [find_one(table, id_) if i < live else -1 for i, id_ in enumerate(ids.tolist())]
    return torch.tensor(found, dtype=torch.int64)


def insert_one(table: Arrays, id_: int) -> tuple[int, bool]:
    slot = find_one(table, id_)
    if slot >= 0:
        return slot, False
    free = [s for s in places_of(table, id_) if key_at(table, s) in (EMPTY, ERASED)]
    if not free:
        return -1, False
    put_word(table, KEYS, free[0], TAKEN if id_ in (EMPTY, ERASED) else id_)
    return free[0], True


def find_or_insert(
    table: Arrays, ids: Int64[Tensor, "n"], wanted: Bool[Tensor, "n"] | None = None
) -> tuple[Int64[Tensor, "n"], Bool[Tensor, "n"]]:
    """The slot of each id, -1 = no room, and whether this occurrence took it. Rows are not set."""
    asked = [True] * len(ids) if wanted is None else wanted.tolist()
    taken = [
        insert_one(table, id_) if ask else (-1, False)
        for id_, ask in zip(ids.tolist(), asked, strict=True)
    ]
    slots = torch.tensor([slot for slot, _ in taken], dtype=torch.int64)
    return slots, torch.tensor([new for _, new in taken], dtype=torch.bool)


def erase(
    table: Arrays, grouped: Grouped, used: Int64[Tensor, "1"] | None = None
) -> Bool[Tensor, "n"]:
    """Takes the rows of these ids out and says which were there; of equal ids the first was."""
    erased = torch.zeros(len(grouped.ids), dtype=torch.bool)
    for _, id_, sources in groups_of(grouped, used):
        slot = find_one(table, id_)
        if slot >= 0:
            put_word(table, KEYS, slot, EMPTY if id_ in (EMPTY, ERASED) else ERASED)
            table.index[slot // LANES, KEYS + 1 :, slot % LANES] = NEWBORN
            erased[sources[0]] = True
    return erased


def _words(ids: Tensor, block: Tensor, seed: int, attempt: int) -> list[Tensor]:
    """Philox4x32-10 at (id, block, attempt); four words for every id and block."""
    zero = torch.zeros(len(ids), len(block), dtype=torch.int64)
    return philox(zero + ids[:, None], zero + block, zero + (attempt << 4), seed)


def philox(ids: Tensor, c2: Tensor, c3: Tensor, seed: int) -> list[Tensor]:
    """Four words of Philox4x32-10 at a counter of an id and two words of 32 bits."""
    c0, c1 = ids & _LOW, _shifted(ids, 32)
    k0, k1 = seed & _LOW, seed >> 32
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = _shifted(right, 32) ^ c1 ^ k0, right & _LOW
        c2, c3 = _shifted(left, 32) ^ c3 ^ k1, left & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return [c0, c1, c2, c3]


def _bell(ids: Tensor, dim: int, seed: int, attempt: int) -> Tensor:
    columns = torch.arange(dim)
    words = [w for b in range(3) for w in _words(ids, 3 * columns + b, seed, attempt)]
    total = torch.stack([w >> 8 for w in words]).sum(0)
    return (total - 6 * 2**24).float() * 2.0**-24


def first_values(
    ids: Int64[Tensor, "n"], dim: int, first: FirstValues, start: int = 0
) -> Float32[Tensor, "n dim"]:
    """The rows that `ids` are born with, from column `start` on."""
    return _whole_first_values(ids, start + dim, first)[:, start:].contiguous()


def _whole_first_values(ids: Tensor, dim: int, first: FirstValues) -> Tensor:
    a, scale = torch.tensor([first.a, first.scale])
    if first.kind == "constant":
        return a.expand(len(ids), dim).contiguous()
    if first.kind == "uniform":
        words = _words(ids, torch.arange(-(-dim // 4)), first.seed, 0)
        word = torch.stack(words, dim=2).flatten(1)[:, :dim]
        return a + (word >> 8).float() * 2.0**-24 * scale
    z = _bell(ids, dim, first.seed, 0)
    if first.kind == "truncated_normal":
        for attempt in range(1, 16):
            z = torch.where(z.abs() > 2, _bell(ids, dim, first.seed, attempt), z)
        z = z.clamp(-2, 2)
    return a + scale * z


def gather(
    table: Arrays, slots: Int64[Tensor, "n"], states: int | None = None
) -> Float32[Tensor, "n width"]:
    """The rows in `slots`, or so many floats behind them; zeros for -1."""
    columns = slice(0, table.dim) if states is None else slice(table.dim, table.dim + states)
    rows = table.values[slots.clamp(min=0), columns]
    return torch.where((slots >= 0)[:, None], rows, 0.0)


def read(table: Arrays, slots: Int64[Tensor, "n"], out: Float32[Tensor, "n dim"]) -> None:
    """`gather` into `out`."""
    out.copy_(gather(table, slots))


def lookup(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    out: Float32[Tensor, "n dim"],
    parts: Sequence[Part] = (),
    used: Int64[Tensor, "1"] | None = None,
) -> Int64[Tensor, "n"]:
    """Rows of `ids` into `out`, and their slots, -1 = absent."""
    slots = find(table, ids, used)
    rows = gather(table, slots)
    live = len(ids) if used is None else int(used)
    absent = (slots < 0) & (torch.arange(len(ids)) < live)
    if parts:
        rows = torch.where(absent[:, None], born_rows(ids, parts), rows)
    out.copy_(rows)
    return slots


def born_rows(ids: Tensor, parts: Sequence[Part]) -> Tensor:
    return torch.cat([first_values(ids, p.dim, p.first, p.start) for p in parts], dim=1)


def groups_of(grouped: Grouped, used: Tensor | None) -> list[tuple[int, int, list[int]]]:
    """Position of the first occurrence, id, and sources of the occurrences that count."""
    live = len(grouped.ids) if used is None else int(used)
    order = torch.arange(len(grouped.ids)) if grouped.order is None else grouped.order
    groups: dict[int, tuple[int, int, list[int]]] = {}
    for at, (id_, source) in enumerate(zip(grouped.ids.tolist(), order.tolist(), strict=True)):
        if source < live:
            groups.setdefault(id_, (at, id_, []))[2].append(source)
    return list(groups.values())


def in_order(parts: list[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _pieces(grads: Tensor, sources: list[int]) -> list[Tensor]:
    cuts = [sources[at : at + PIECE] for at in range(0, len(sources), PIECE)]
    return [in_order([grads[source] for source in cut]) for cut in cuts]


def _summed(grads: Tensor, sources: list[int]) -> Tensor:
    return in_order(_pieces(grads, sources))


def sum_pieces(
    grouped: Grouped, grads: Float32[Tensor, "n dim"], used: Int64[Tensor, "1"] | None = None
) -> tuple[Float32[Tensor, "pieces dim"], Int64[Tensor, "pieces"]]:
    """Sum and size of the pieces after the first, each at its grouped position // PIECE."""
    pieces = -(-len(grads) // PIECE)
    sums, counts = torch.zeros(pieces, grads.shape[1]), torch.zeros(pieces, dtype=torch.int64)
    for at, _, sources in groups_of(grouped, used):
        for k, piece in list(enumerate(_pieces(grads, sources)))[1:]:
            sums[at // PIECE + k] = piece
            counts[at // PIECE + k] = min(PIECE, len(sources) - k * PIECE)
    return sums, counts


def sum_gradients(
    grouped: Grouped, grads: Float32[Tensor, "n dim"], used: Int64[Tensor, "1"] | None = None
) -> tuple[Float32[Tensor, "n dim"], Int64[Tensor, "n"]]:
    """Sum and occurrences of each id, at the position where its group begins; zeros elsewhere."""
    sums, counts = torch.zeros_like(grads), torch.zeros_like(grouped.ids)
    for at, _, sources in groups_of(grouped, used):
        sums[at], counts[at] = _summed(grads, sources), len(sources)
    return sums, counts


def apply(
    table: Arrays,
    grouped: Grouped,
    grads: Float32[Tensor, "n dim"],
    counts: Int64[Tensor, "3"],
    parts: Sequence[Part],
    rates: Sequence[float],
    now: int,
    slots: Int64[Tensor, "n"] | None = None,
    used: Int64[Tensor, "1"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
    *,
    stamp: bool = True,
    at_step: int = NO_STEP,
) -> None:
    """One step for each id with its summed gradient; adds to `counts` as `Applied` has them."""
    told = torch.empty_like(grouped.ids) if placed is None else placed
    told.fill_(-1)
    for at, id_, sources in groups_of(grouped, used):
        total = _summed(grads, sources)
        if not bool(total.isfinite().all()):
            counts[2] += len(sources)
            continue
        known = -1 if slots is None else int(slots[sources[0]])
        slot, new = (known, False) if known >= 0 else insert_one(table, id_)
        counts += torch.tensor([new, slot < 0, 0])
        told[at] = slot
        if slot < 0:
            continue
        row = table.values[slot]
        if new:
            row[: table.dim] = born_rows(torch.tensor([id_]), parts)[0]
        for part, rate in zip(parts, rates, strict=True):
            step(
                row, total[part.start : part.start + part.dim], part, rate, new=new, at_step=at_step
            )
        if stamp or new:
            put_word(table, TIMES, slot, now)


def assign(
    table: Arrays,
    grouped: Grouped,
    rows: Float32[Tensor, "n dim"],
    usable: Bool[Tensor, "n"],
    starts: Float32[Tensor, "states"],
    counts: Int64[Tensor, "3"],
    now: int,
    used: Int64[Tensor, "1"] | None = None,
    states: Float32[Tensor, "n states"] | None = None,
    stamps: Int64[Tensor, "n"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
) -> None:
    """Puts each id's last row that is `usable`; adds to `counts` as `Applied` has them."""
    told = torch.empty_like(grouped.ids) if placed is None else placed
    told.fill_(-1)
    for at, id_, sources in groups_of(grouped, used):
        good = [source for source in sources if bool(usable[source])]
        slot, new = insert_one(table, id_) if good else (-1, False)
        counts += torch.tensor([new, bool(good) and slot < 0, len(sources) - len(good)])
        told[at] = slot
        if slot >= 0:
            table.values[slot, : table.dim] = rows[good[-1]]
            if new or states is not None:
                given = starts if states is None else states[good[-1]]
                table.values[slot, table.dim : table.dim + len(starts)] = given
            put_word(table, TIMES, slot, now if stamps is None else int(stamps[good[-1]]))
