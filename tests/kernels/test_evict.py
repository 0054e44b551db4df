"""Rows that leave a full table: random traces against the twins, and what must always hold."""

from __future__ import annotations

import random
from dataclasses import fields
from types import ModuleType

import pytest
import torch

from hedgerow.core.errors import InputError
from hedgerow.kernels import assign, evict, find
from hedgerow.kernels.layout import (
    AHEAD,
    ASSIGNED,
    BUSY,
    EVICTED,
    FRACTION,
    INSERTED,
    KEYS,
    NOT_ASKED,
    RECLAIMED,
    SCORES,
    Arrays,
    Grouped,
)
from tests.twins import kernels_eviction, kernels_table

from .cases import content, moved, same_bits, some_ids, values

CPU = torch.device("cpu")
OURS = {"evict": evict, "find": find, "erase": assign, "pin": evict}
TWINS: dict[str, ModuleType] = {
    "evict": kernels_eviction,
    "find": kernels_table,
    "erase": kernels_table,
    "pin": kernels_eviction,
}
ONE = 1 << FRACTION  # the weight of a use, with no half-life passed
MODES = ("assign", "use")
VERBS = (*["evict"] * 12, "find", "erase", "erase", "pin", "unpin", "touch")


def _done(
    by: dict[str, ModuleType], table: Arrays, verb: str, id_: torch.Tensor, number: int, mode: str
) -> list[torch.Tensor]:
    """What a verb gives, with its number in the trace as the call's."""
    ids, given = id_.view(1), torch.tensor([number % 5], device=id_.device)
    if mode == "use":  # weights of uses; one in five counts none
        given = torch.where(given == 0, 0, ONE + given * 700 + (number // 20) * (ONE // 2))
    top = ONE * (1 + number // 40) + AHEAD
    if verb == "evict":
        rows = torch.full((1, 3), float(number), device=id_.device)
        placed = by["evict"].insert_and_evict(
            table, ids, given, rows, call=number + 1, now=number, mode=mode, top=top
        )
        evicted = placed.codes == EVICTED
        told = [getattr(placed, field.name) for field in fields(placed)]
        return [*told[:4], torch.where(evicted[:, None], placed.victim_rows, 0.0)]
    if verb == "erase":
        return [by["erase"].erase(table, Grouped(ids, None))]
    slots = by["find"].find(table, ids)
    if verb == "touch":
        by["pin"].touch(table, slots, given, mode)
    elif verb in ("pin", "unpin"):
        assert table.pins is not None
        held = bool(slots[0] >= 0) and int(table.pins[slots[0]]) > 0
        if verb == "pin" or held:
            by["pin"].pin(table, slots, 1 if verb == "pin" else -1)
    return [slots]


@pytest.mark.parametrize(
    ("buckets", "mode", "verbs"),
    [
        *((1, "assign", 40), (2, "use", 80)),
        *(pytest.param(b, m, 200, marks=pytest.mark.long) for b in (1, 2) for m in MODES),
    ],
)
def test_traces_give_codes_slots_victims_and_scores_of_the_twin(
    device: torch.device, buckets: int, mode: str, verbs: int
) -> None:
    """Few places, many ids: rows leave, erased places are taken again, pinned rows stay."""
    dice = random.Random(f"{buckets} {mode}")
    pool = some_ids(26 * buckets, seed=buckets)
    model = Arrays.make(buckets, 3, CPU, scored=mode == "use", pinned=True)
    first = pool[: 13 * buckets]  # nearly full from the start
    kernels_eviction.insert_and_evict(model, first, first * 0, call=2**15 - 1, mode=mode)
    ours = moved(model, device)
    seen: set[int] = set()
    for number in range(verbs):
        verb, id_ = dice.choice(VERBS), pool[dice.randrange(len(pool))]
        got = _done(OURS, ours, verb, id_.to(device), number, mode)
        wanted = _done(TWINS, model, verb, id_, number, mode)
        for one, other in zip(got, wanted, strict=True):
            same_bits(one, other)
        seen.update(wanted[0].tolist() if verb == "evict" else ())
    same_bits(ours.index, model.index)
    same_bits(ours.values, model.values)
    assert ours.pins is not None
    assert model.pins is not None
    same_bits(ours.pins, model.pins)
    assert {INSERTED, ASSIGNED, EVICTED} <= seen
    assert buckets > 1 or RECLAIMED in seen


@pytest.mark.parametrize("held", [False, True])
def test_a_call_keeps_what_it_has_put_or_found_and_counts_the_rest(
    device: torch.device, held: bool
) -> None:
    """64 ids for 48 places: what was asked for is found again, or its buckets were busy."""
    table = Arrays.make(3, 2, device, pinned=held)
    old, others = some_ids(120, seed=1).to(device).split(60)
    first = evict.insert_and_evict(table, old, torch.zeros_like(old), call=1)
    there = find.find(table, old) >= 0
    assert torch.equal(there, first.slots >= 0)
    new = torch.cat([old[there][:10], others[:54]])
    if held:
        pinned = find.find(table, old[there][10:20])
        evict.pin(table, pinned)
    rows = values(64, 2, seed=3).to(device)
    before = content(moved(table, CPU))
    used = torch.tensor([60], device=device)
    placed = evict.insert_and_evict(table, new, torch.ones_like(new), rows, call=2, used=used)
    codes = placed.codes.tolist()
    assert codes[60:] == [NOT_ASKED] * 4
    assert codes[:10] == [ASSIGNED] * 10
    assert len(codes) == sum(codes.count(c) for c in (0, 1, ASSIGNED, EVICTED, BUSY, NOT_ASKED))
    assert EVICTED in codes
    slots = find.find(table, new)
    same_bits(slots, placed.slots.cpu())
    asked = placed.slots >= 0
    same_bits(table.values[slots[asked], :2], rows[asked].cpu())
    assert table.read(SCORES, slots[asked]).tolist() == [1] * int(asked.sum())
    after = content(moved(table, CPU))
    gone = placed.victims[placed.codes == EVICTED].tolist()
    assert set(gone) == before.keys() - after.keys()
    assert len(set(gone)) == len(gone)
    if held:
        same_bits(find.find(table, old[there][10:20]), pinned.cpu())


def test_tables_without_pins_say_so() -> None:
    with pytest.raises(InputError, match="pinned=True"):
        evict.pin(Arrays.make(1, 1, CPU), torch.tensor([0]))


def test_a_use_weighs_twice_as_much_as_one_a_half_life_before(device: torch.device) -> None:
    """A row used 7 times three half-lives ago is worth less than one used once now."""
    table = Arrays.make(1, 1, device, scored=True)
    ids = torch.arange(16, device=device)
    ones = torch.ones_like(ids)
    evict.insert_and_evict(table, ids, ones * 0, call=1, mode="use")
    slots = find.find(table, ids)
    for _ in range(7):
        evict.touch(table, slots[:1], ones[:1] * ONE, "use")
    assert table.read(SCORES, slots[:1]).tolist() == [3 * ONE + ONE * 3 // 4]  # 1.75 * 2^2
    now = 4 * ONE  # the weight of a use after three half-lives
    evict.touch(table, slots[1:], ones[1:] * now, "use")
    top = now + AHEAD
    new = evict.insert_and_evict(table, ids[:1] + 99, ones[:1] * now, call=2, mode="use", top=top)
    assert (new.codes.tolist(), new.victims.tolist()) == ([EVICTED], [0])
    assert int((table.line(KEYS) == 99).sum()) == 1
