"""Plain twins of the kernels that move rows between stores, for several tables at once."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from hedgerow.core.shapes import Bool, Int32, Int64
from hedgerow.kernels.incoming_rows import ArrivalCounts, IncomingRows, MissList, WaitingBatch
from hedgerow.kernels.layout import ERASED, KEYS, LANES, NEWBORN, TIMES, Arrays
from hedgerow.kernels.leave import NEVER, EvictionCandidates

from .kernels_table import find, insert_one, place_by, put_word

__all__ = [
    "absent",
    "absent_slots",
    "choose_old",
    "clean",
    "find_and_list",
    "mark",
    "oldest",
    "put_rows",
    "single_out",
    "take_out",
]


def _tables(table: Arrays) -> list[tuple[int, Arrays]]:
    """The first slot of each table, and its part of the arrays."""
    spans = [(0, table.buckets)] if table.spans is None else table.spans.tolist()
    return [
        (
            first * LANES,
            Arrays(
                table.index[first : first + count + 1],
                table.values[first * LANES : (first + count) * LANES + 2],
                table.dim,
                marked=table.marked,
            ),
        )
        for first, count in spans
    ]


def absent(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    used: Int32[Tensor, "slots"],
    now: int,
    room: int | None = None,
) -> MissList:
    """The ids of each table without a row, as `absent_slots`; the others are used."""
    slots, listing = find_and_list(table, ids, splits, room)
    for k, (first, _) in enumerate(_tables(table)):
        own = slots[int(splits[k]) : int(splits[k + 1])]
        there = first + own[own >= 0]
        used[there] = used[there].clamp(min=now)
    return listing


def find_and_list(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    room: int | None = None,
) -> tuple[Int64[Tensor, "n"], MissList]:
    """The slots of ids, each within its table; and those that are -1, as `absent_slots`."""
    slots = torch.empty_like(ids)
    for k, (_, own) in enumerate(_tables(table)):
        start, stop = splits[k : k + 2].tolist()
        slots[start:stop] = find(own, ids[start:stop])
    return slots, absent_slots(ids, slots, splits, room)


def absent_slots(
    ids: Int64[Tensor, "n"],
    slots: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    room: int | None = None,
) -> MissList:
    """Those of the ids whose slots are -1: of each table the first for which there is room."""
    tables = len(splits) - 1
    places = len(ids) if room is None else tables * room
    words = torch.zeros(2 * tables + places, dtype=torch.int64)
    at = torch.zeros(places, dtype=torch.int64)
    for k, (start, stop) in enumerate(pairwise(splits.tolist())):
        lacking = start + (slots[start:stop] < 0).nonzero()[:, 0]
        words[k] = len(lacking)
        first = start if room is None else k * room
        for j, i in enumerate(lacking[:room].tolist(), start=first):
            words[2 * tables + j], at[j] = ids[i], i
    return MissList(words, at, room or 0, splits if room is None else None)


def oldest(
    table: Arrays, used: Int32[Tensor, "slots"], ranks: Int64[Tensor, "K"], *, sample: int
) -> Int32[Tensor, "K"]:
    """Of each table the time of this rank in a sorted sample of its slots."""
    found = []
    for k, (first, own) in enumerate(_tables(table)):
        slots = own.buckets * LANES
        at = torch.arange(min(sample, slots)) * (slots // sample | 1) % slots
        rest = torch.full((sample - len(at),), NEVER, dtype=torch.int32)
        times = torch.cat([used[first + at], rest]).sort().values
        found.append(int(times[ranks[k]]) if ranks[k] >= 0 else 0)
    return torch.tensor(found, dtype=torch.int32)


def _old(own: Arrays, used: list[int], oldest: int, limit: int) -> list[int]:
    """Slots of one table whose rows may leave: old ones, and the oldest of a bucket that is full.

    Of a table that need not make room (`oldest` is 0) full buckets do not matter.
    """
    taken, chosen = own.taken().tolist(), []
    for start in range(0, own.buckets * LANES, LANES):
        rows = [slot for slot in range(start, start + LANES) if taken[slot]]
        old = {slot for slot in rows if used[slot] <= oldest}
        if len(rows) >= LANES - 1 and oldest > 0:
            old.add(min(rows, key=lambda slot: used[slot]))  # the first of several
        chosen += [slot for slot in rows if slot in old and used[slot] <= limit]
    return chosen


def choose_old(
    table: Arrays,
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"],
    oldest: Int32[Tensor, "K"],
    starts: Int64[Tensor, "K+1"],
    *,
    room: int,
    buckets: int,
    limit: int,
    turn: int,
) -> EvictionCandidates:
    """Rows last used up to `oldest` and `limit`, one of nearly full buckets; the first that fit."""
    going, dirty = torch.full((2, room), -1)
    ids, times = torch.zeros((2, room), dtype=torch.int64)
    counts = torch.zeros(table.tables, 3, dtype=torch.int64)
    for k, (first, own) in enumerate(_tables(table)):
        start, stop = starts[k : k + 2].tolist()
        old = torch.tensor(_old(own, used[first:].tolist(), int(oldest[k]), limit)).long() + first
        fit = old[: stop - start]
        written = fit[changed[fit]]
        going[start : start + len(fit)] = fit
        here = slice(start, start + len(written))
        dirty[here], ids[here] = written, table.ids(written)
        times[here] = table.read(TIMES, written)
        counts[k] = torch.tensor([len(old), len(written), int(own.taken().sum())])
    return EvictionCandidates(starts, limit, going, dirty, ids, times, counts)


def single_out(
    table: Arrays,
    chosen: EvictionCandidates,
    keys: Int64[Tensor, "n"],
    splits: Int64[Tensor, "K+1"],
    oldest: Int32[Tensor, "K"],
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"],
) -> None:
    """Adds the oldest row of the two buckets of each key, if they are full."""
    for k, (first, own) in enumerate(_tables(table)):
        (start, stop), taken = chosen.starts[k : k + 2].tolist(), set()
        mine = keys[int(splits[k]) : int(splits[k + 1])]
        for pair in (
            zip(*place_by(mine, own.buckets, own.mix()), strict=True) if oldest[k] <= 0 else ()
        ):
            slots = [first + int(bucket) * LANES + lane for bucket in pair for lane in range(LANES)]
            when = {slot: int(used[slot]) for slot in slots}
            old = [x for x in slots if x not in taken and when[x] <= chosen.limit]
            count, written = chosen.counts[k, :2].tolist()
            if NEVER in when.values() or not old or start + count >= stop:
                continue
            slot = min(old, key=lambda x: when[x])
            taken.add(slot)
            chosen.going[start + count] = slot
            chosen.counts[k, 0] += 1
            if changed[slot]:
                at, one = start + written, torch.tensor([slot])
                chosen.dirty[at], chosen.ids[at] = slot, table.ids(one)[0]
                chosen.times[at] = table.read(TIMES, one)[0]
                chosen.counts[k, 1] += 1


def clean(chosen: EvictionCandidates, changed: Bool[Tensor, "slots"]) -> None:
    """The rows that were listed as changed are written elsewhere."""
    changed[chosen.dirty[chosen.dirty >= 0]] = False


def take_out(
    table: Arrays,
    chosen: EvictionCandidates,
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"],
    left: Int64[Tensor, "K"],
) -> None:
    """Chosen rows that were neither used nor changed since leave; `left` counts them."""
    for k, (start, stop) in enumerate(pairwise(chosen.starts.tolist())):
        for slot in chosen.going[start:stop].tolist():
            if slot >= 0 and int(used[slot]) <= chosen.limit and not bool(changed[slot]):
                table.index[slot // LANES, :, slot % LANES] = NEWBORN
                put_word(table, KEYS, slot, ERASED)
                used[slot] = NEVER
                left[k] += 1


def mark(
    slots: Int32[Tensor, "n"],
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"] | None,
    now: int,
) -> None:
    """Sets `used` of these slots to `now`, and `changed` if given; negative slots are left out."""
    there = slots[slots >= 0].long()
    used[there] = now
    if changed is not None:
        changed[there] = True


def put_rows(
    table: Arrays,
    coming: IncomingRows,
    uses: ArrivalCounts,
    now: int,
    waiting: WaitingBatch | None = None,
) -> Int32[Tensor, "n"]:
    """Gives ids without a row those found, the first of equal ones; slots of all tables, or -1."""
    ids, found, rows, states, times = coming.parts()
    places, cuts = torch.full((len(ids),), -1, dtype=torch.int32), coming.cuts.tolist()
    for k, (first, own) in enumerate(_tables(table)):
        for i in range(cuts[k], cuts[k + 1]):
            slot, new = insert_one(own, int(ids[i])) if bool(found[i]) else (-1, False)
            if new:
                own.values[slot, : table.dim] = rows[i]
                own.values[slot, table.dim : table.dim + states.shape[1]] = states[i]
                put_word(own, TIMES, slot, int(times[i]))
                places[i], uses.used[first + slot] = first + slot, now
                uses.came[k] += 1
        if waiting is not None:
            _tell(waiting, k, own, ids[cuts[k] : cuts[k + 1]], found[cuts[k] : cuts[k + 1]])
            if waiting.out is not None:
                at = _listed_at(waiting.listing, k, cuts[k + 1] - cuts[k])
                waiting.out[at] = rows[cuts[k] : cuts[k + 1]]
    return places


def _listed_at(listing: MissList, k: int, count: int) -> Int64[Tensor, "count"]:
    """Where in the batch the ids stand that were listed of a table."""
    begin = k * listing.room if listing.cuts is None else int(listing.cuts[k])
    return listing.at[begin : begin + count]


def _tell(waiting: WaitingBatch, k: int, own: Arrays, ids: Tensor, found: Tensor) -> None:
    """Slots of listed ids, each table's own numbers; how many have none."""
    slots = torch.where(found, find(own, ids), -1)
    waiting.slots[_listed_at(waiting.listing, k, len(ids))] = slots
    waiting.listing.left[k] += (slots < 0).sum()
