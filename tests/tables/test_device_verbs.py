"""Writes, admission, expiry and touched keys of the table on a device are the host table's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import InputError, NotFiniteError, ServingTableError
from hedgerow.tables import admission, compressors, initializers, monolith_rules, optimizers
from hedgerow.tables.admission import AdmissionRule
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.device_policies import DeviceFilter
from hedgerow.tables.eviction import Lfu, Lru, Ttl
from hedgerow.tables.store import Entries, TableKeys

from ..support import EXTREME_IDS, everything, host_table, table_config
from ..waiting import without_waiting
from .device_pair import Pair

NAN = float("nan")


def _config(**settings: Any) -> TableConfig:
    return table_config(
        settings.pop("optimizer", optimizers.Adagrad(lr=0.1)),
        dim=settings.pop("dim", 3),
        **{"not_finite": "drop", **settings},
    )


def _ids(random: np.random.Generator, n: int, distinct: int = 25) -> torch.Tensor:
    pool = torch.tensor([*EXTREME_IDS, *(k << 45 for k in range(1, distinct - 4))])
    return pool[random.integers(0, len(pool), n)]


def _rows(random: np.random.Generator, n: int, dim: int = 3) -> torch.Tensor:
    rows = torch.from_numpy(random.normal(size=(n, dim)).astype(np.float32))
    rows[random.integers(0, n, 2)] = NAN
    return rows


SEGMENTS = TableConfig(
    "two",
    (
        Segment(1, initializers.Normal(0.1), optimizers.Adam()),
        Segment(2, initializers.Uniform(0.3), optimizers.Momentum(nesterov=True)),
    ),
    not_finite="drop",
)


@pytest.mark.parametrize(
    "config", [pytest.param(_config(), marks=pytest.mark.long), SEGMENTS], ids=["one", "two"]
)
def test_the_rarer_verbs_give_the_rows_of_the_host_table(
    device: torch.device, config: TableConfig
) -> None:
    random = np.random.default_rng(3)
    pair = Pair(config, 128, device)
    for ts in range(1, 4):
        pair.apply(_ids(random, 30), _rows(random, 30), ts, per_occurrence=True)
        pair.assign(_ids(random, 20), _rows(random, 20), ts, add=True)
        pair.clock.advance(5)
        pair.reinitialize(_ids(random, 6))
        pair.erase(_ids(random, 4))
    pair.same()
    kept = host_table(config)
    for part in pair.device.scan():
        kept.restore(part.to("cpu"))
    assert everything(kept) == everything(pair.host)


def test_whole_rows_go_back_with_states_and_times(device: torch.device) -> None:
    pair, random = Pair(SEGMENTS, 128, device), np.random.default_rng(4)
    pair.assign(_ids(random, 20), _rows(random, 20), 7)
    (part,) = pair.host.scan(1000)
    future = torch.where(part.ids == part.ids[0], 10**9, part.ts + 3)
    twice = [torch.cat([x, x]) for x in (part.ids, part.found, part.rows, future)]
    twice[2][0, 0] = NAN
    states = [{name: torch.cat([x, x + 1]) for name, x in one.items()} for one in part.states]
    pair.restore(Entries(twice[0], twice[1], twice[2], states, twice[3]))
    pair.same()
    assert pair.device.stats()["clamped_ts"] == 2
    for wrong in (
        Entries(part.ids, ~part.found, part.rows, part.states, part.ts),
        Entries(part.ids, part.found, part.rows, part.states, part.ts - 100),
        Entries(part.ids, part.found, part.rows[:, :1], part.states, part.ts),
        Entries(part.ids, part.found, part.rows, part.states[:1], part.ts),
    ):
        with pytest.raises(InputError):
            pair.device.restore(wrong)
    pair.same()


RULES: dict[str, AdmissionRule] = {
    "within": admission.Within(1000, 3),
    "per slot": monolith_rules.OccurrenceThreshold(1, ((1, 4), (2, 0)), 1000),
    "never": monolith_rules.OccurrenceThreshold(20, (), 1000, four_bit_counts=True),
    "chance": admission.Chance(0.3),
    "equal": monolith_rules.ProbabilisticThreshold(5, ((2, 0), (1, 2)), "equal"),
    "unequal": monolith_rules.ProbabilisticThreshold(9, (), "unequal"),
}


def _sampled(names: Iterable[str], always: set[str]) -> list[object]:
    """All of them, but in a short run the chosen ones alone."""
    marks = {name: () if name in always else (pytest.mark.long,) for name in names}
    return [pytest.param(name, marks=marks[name]) for name in marks]


@pytest.mark.parametrize("name", _sampled(RULES, {"per slot", "equal"}))
def test_ids_are_admitted_as_the_host_table_admits_them(device: torch.device, name: str) -> None:
    random = np.random.default_rng(len(name))
    pair = Pair(_config(admit=RULES[name]), 128, device)
    for ts in range(1, 4):
        ids, counts = _ids(random, 20), torch.from_numpy(random.integers(1, 4, 20))
        pair.lookup(ids, "training")
        pair.apply(ids, _rows(random, 20), ts, step=ts, counts=counts)
        pair.apply(_ids(random, 20), _rows(random, 20), ts, step=ts, per_occurrence=True)
        pair.assign(_ids(random, 10), _rows(random, 10), ts, add=ts % 2 == 0)
        pair.erase(_ids(random, 3))
    pair.same()
    assert int(pair.device.stats()["refused"]) > 0


def test_a_filter_counts_on_from_where_it_was(device: torch.device) -> None:
    config = _config(admit=admission.Within(1000, 3))
    table = DeviceTable(config, capacity_rows=64, device=device)
    ids, grads = torch.tensor([1, 2], device=device), torch.ones(2, 3, device=device)
    table.apply_gradients(ids, grads)
    assert table.filter is not None
    state = table.filter.dump()
    other = DeviceTable(config, capacity_rows=64, device=device)
    assert other.filter is not None
    other.filter.restore(state)
    assert other.filter.counts(ids, table="test").tolist() == [1, 1]
    assert other.filter.counts(ids, table="else").tolist() == [0, 0]
    assert [other.apply_gradients(ids, grads).inserted for _ in range(2)] == [0, 2]
    shared = DeviceTable(config, capacity_rows=64, device=device, filter=table.filter)
    assert shared.apply_gradients(ids, grads).inserted == 0
    assert shared.apply_gradients(ids, grads).inserted == 2
    with pytest.raises(InputError, match="another filter"):
        DeviceFilter(capacity_ids=999, device=device).restore(state)


def test_the_window_of_a_filter_moves_on(device: torch.device) -> None:
    seen = DeviceFilter(capacity_ids=300, split_num=5, device=device)
    first = torch.arange(74, device=device)
    assert bool(seen.add(first, table="t").all())
    assert seen.head_increment == 1  # 75 ids of a turn, less one
    for turn in range(1, 4):
        assert seen.counts(first[:2], table="t").tolist() == [1, 1]
        seen.add(first + 1000 * turn, table="t")
    assert seen.head_increment == 4
    assert seen.counts(first[:2], table="t").tolist() == [0, 0]
    assert seen.failures == 0


EVICTIONS: dict[str, Ttl | Lru] = {
    "age": Ttl("900s"),
    "ages of slots": Ttl("30m", slots={1: "2h", 3: 0}),
    "the clock": Ttl("15m", reference="wall"),
    "room": Lru(5),
    "much room": Lru(99),
}


@pytest.mark.parametrize("name", _sampled(EVICTIONS, {"ages of slots", "room"}))
def test_rows_leave_as_they_leave_the_host_table(device: torch.device, name: str) -> None:
    rule = EVICTIONS[name]
    random = np.random.default_rng(6)
    pair = Pair(_config(evict=rule), 128, device)
    changed = pair.device.touched("all", all_changes=True, capacity=100)
    for ts in (998_000, 999_000, 10**6):
        pair.assign(_ids(random, 9), torch.ones(9, 3), ts)
    changed.take()
    before = everything(pair.device).keys()
    gone = pair.evict()
    assert (gone > 0) == (rule != Lru(99))
    assert set(changed.take().ids.tolist()) == before - everything(pair.device).keys()
    pair.same()
    pair.evict(**({"rows": 2} if isinstance(rule, Lru) else {"now_s": 2 * 10**6}))
    pair.same()


@pytest.mark.long
def test_the_least_used_rows_leave_first(device: torch.device) -> None:
    random = np.random.default_rng(8)
    pair = Pair(_config(evict=Lfu(9)), 128, device)
    for ts in range(1, 5):
        pair.apply(_ids(random, 14), torch.ones(14, 3), ts, per_occurrence=ts == 2)
        pair.assign(_ids(random, 6), torch.ones(6, 3), ts, add=ts == 3)
        if ts == 1:
            pair.device.reserve(300)
        if ts % 2 == 0:
            assert pair.evict() > 0
        pair.erase(_ids(random, 2))
    pair.evict(rows=3)
    pair.same()


def test_a_table_that_grows_refuses_nobody(device: torch.device) -> None:
    config, random = _config(), np.random.default_rng(9)
    ours = DeviceTable(config, capacity_rows=16, device=device, full="grow")
    model = host_table(config)
    for ts in range(1, 4):
        ids = torch.from_numpy(random.integers(0, 90, 40))
        ids[:5] = torch.tensor(EXTREME_IDS)
        there = ids.to(device)
        found = ours.lookup(there, missing="training")
        grads = _rows(random, 40)
        done = ours.apply_gradients(found, grads.to(device), ts=ts)
        assert repr(done) == repr(model.apply_gradients(ids, grads, ts=ts))
    assert everything(ours) == everything(model)
    assert ours.size() / 0.6 <= ours.capacity_rows + 40 / 0.6
    assert ours.size_at_most() == ours.size()
    slots, found = ours.capacity_rows, ours.lookup(there)
    ours.reserve(10)
    assert ours.capacity_rows == slots
    ours.reserve(1000)
    assert ours.capacity_rows >= 1250
    ours.apply_gradients(found, torch.zeros(40, 3, device=device), ts=9)  # not at the old slots
    model.apply_gradients(ids, torch.zeros(40, 3), ts=9)
    assert everything(ours) == everything(model)


@pytest.mark.parametrize("rule", [None, pytest.param(Lfu(99), marks=pytest.mark.long)], ids=repr)
def test_rows_of_a_full_table_leave_for_new_ids(device: torch.device, rule: Any) -> None:
    """One bucket's worth of places: whoever was not written for longest, or least, goes."""
    table = DeviceTable(_config(evict=rule), capacity_rows=16, device=device, full="evict")
    changed = table.touched("all", all_changes=True, capacity=100)
    ids = torch.arange(30, device=device)
    for ts in (1, 2, 3):  # the first ten last: the oldest of 16 are 10 to 15
        for part in (ids[10:16], ids[:10], *([ids[:10]] if rule else ())):
            done = table.apply_gradients(part, torch.ones(len(part), 3, device=device), ts=ts)
            ts += 1
    assert (table.size(), done.refused) == (16, 0)
    changed.take()
    model = host_table(_config())
    verbs = ("apply_gradients", "assign_add", "assign")
    for verb in verbs[:1] if rule else verbs:  # what was used once would leave before them
        new, ids = ids[20:22], ids + 2
        rows = torch.full((2, 3), 0.5, device=device)
        done = getattr(table, verb)(new, rows, ts=9)
        assert repr(done) == "Applied(inserted=2, refused=0, dropped=0)"
        getattr(model, verb)(new.cpu(), rows.cpu(), ts=9)
    got, wanted = everything(table), everything(model)
    assert {key: got[key] for key in wanted} == wanted
    gone = set(range(16)) - set(got)
    assert gone <= set(range(10, 16))
    assert len(gone) == len(wanted)
    assert set(changed.take().ids.tolist()) == gone | set(wanted)
    assert table.stats()["evicted"] == len(gone)
    nan = torch.full((1, 3), NAN, device=device)
    assert table.apply_gradients(ids[-1:], nan, ts=10).dropped == 1
    assert len(everything(table).keys() - got.keys()) == 0


def test_touched_keys_are_those_of_the_host_table(device: torch.device) -> None:
    random = np.random.default_rng(7)
    pair = Pair(_config(admit=admission.Within(1000, 2)), 128, device)
    names = {"learned": False, "all": True}
    tables = (pair.device, pair.host)
    both = [
        [t.touched(name, all_changes=wide, capacity=100) for t in tables]
        for name, wide in names.items()
    ]
    for ts in range(1, 4):
        pair.apply(_ids(random, 12), _rows(random, 12), ts, per_occurrence=ts == 2)
        pair.assign(_ids(random, 5), _rows(random, 5), ts, add=ts == 3)
        pair.reinitialize(_ids(random, 2))
        pair.erase(_ids(random, 5))
        for ours, model in both:
            taken = ours.take(), model.take()
            assert set(taken[0].ids.tolist()) == set(taken[1].ids.tolist())
            assert len(taken[0]) == len(taken[1])
            if ts == 2:
                ours.give_back(taken[0])
                model.give_back(taken[1])
    pair.device.clear()
    pair.host.clear()
    assert [ours.take().whole_table for ours, _ in both] == [False, True]
    pair.same()


@pytest.mark.long
def test_more_touched_keys_than_the_capacity_are_told(device: torch.device) -> None:
    table = DeviceTable(_config(), capacity_rows=64, device=device)
    ours = table.touched("few", capacity=4)
    forgets = table.touched("old", capacity=4, overflow="forget")
    assert table.touched("few", capacity=4) is ours
    with pytest.raises(ValueError, match="open with"):
        table.touched("few", capacity=5)
    for key in range(6):
        table.apply_gradients(torch.tensor([key], device=device), torch.ones(1, 3, device=device))
    assert (ours.size(), ours.overflows(), forgets.size()) == (0, 1, 1)
    taken = forgets.take()
    assert (taken.ids.tolist(), taken.forgotten, taken.whole_table) == ([5], 5, False)
    assert ours.take().whole_table
    assert not ours.take().whole_table
    ours.close()
    assert table.consumer("few") is None
    with pytest.raises(RuntimeError, match="closed"):
        ours.take()


def test_a_snapshot_keeps_its_rows(device: torch.device) -> None:
    table = DeviceTable(_config(), capacity_rows=64, device=device)
    ids = torch.arange(10, device=device)
    table.assign(ids, torch.ones(10, 3, device=device), ts=5)
    with table.snapshot() as rows:
        table.assign(ids, torch.zeros(10, 3, device=device), ts=6)
        parts = [part for _ in range(2) for part in rows.scan()]
        assert (rows.size, rows.max_ts) == (10, 5)
    assert torch.cat([part.rows for part in parts]).tolist() == [[1.0] * 3] * 10
    assert parts[0].ids.device.type == "cpu"
    with pytest.raises(RuntimeError, match="closed"):
        next(rows.scan())


def test_tables_exchange_rows(device: torch.device) -> None:
    live = DeviceTable(_config(), capacity_rows=16, device=device)
    changed = live.touched("all", all_changes=True, capacity=100)
    ids = torch.arange(40, device=device)
    live.assign(ids[:3], torch.ones(3, 3, device=device), ts=9)
    found = live.lookup(ids[:3])
    staged = live.beside(40)
    assert staged.capacity_rows >= 48
    staged.assign(ids, torch.full((40, 3), 2.0, device=device), ts=4)
    changed.take()
    live.exchange_rows(staged)
    assert (live.size(), live.max_ts(), staged.size()) == (40, 4, 3)
    assert changed.take().whole_table
    live.apply_gradients(found, torch.zeros(9, device=device))  # its slots mean nothing any more
    assert live.lookup(ids).rows.tolist() == [2.0] * 120
    with pytest.raises(InputError, match="differ"):
        live.exchange_rows(DeviceTable(SEGMENTS, capacity_rows=16, device=device))


def test_a_serving_table_takes_rows_and_leaves_zeros_out(device: torch.device) -> None:
    segment = Segment(2, compressor=compressors.Fp32())
    config = TableConfig("served", (segment,), serving=True, skip_zero_embedding=True)
    pair = Pair(config, 64, device)
    pair.assign(torch.tensor([1, 2, 3, 3]), torch.tensor([[1.0, 0], [0, 0], [1, 1], [2, 0]]), 3)
    pair.assign(torch.tensor([3, 1, 1]), torch.tensor([[0.0, 0], [0, 0], [1, 1]]), 4)
    pair.assign(torch.tensor([1, 7]), torch.tensor([[1.0, 2], [3, 4]]), 5, add=True)
    pair.restore(Entries(*_zero_rows(), [{}], torch.tensor([6, 6])))
    pair.same()
    ids = torch.tensor([1], device=device)
    for call in (
        lambda: pair.device.apply_gradients(ids, torch.ones(1, 2, device=device)),
        lambda: pair.device.reinitialize(ids),
        lambda: pair.device.lookup(ids, missing="initializer"),
    ):
        with pytest.raises(ServingTableError):
            call()


def _zero_rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor([1, 9]), torch.tensor([True, True]), torch.tensor([[0.0, 0], [5, 5]])


def test_what_is_not_finite_is_rejected_where_the_table_says_so(device: torch.device) -> None:
    table = DeviceTable(_config(not_finite="reject"), capacity_rows=16, device=device)
    rows = torch.tensor([[1.0, NAN, 1.0]], device=device)
    with pytest.raises(NotFiniteError, match=r"rows\[0\]"):
        table.assign_add(torch.tensor([1], device=device), rows)
    assert table.size() == 0


def test_admission_and_touched_keys_do_not_wait(device: torch.device) -> None:
    config = _config(admit=admission.Within(1000, 2))
    table = DeviceTable(config, capacity_rows=64, device=device)
    table.touched("all", all_changes=True, capacity=100)
    ids = torch.tensor([5, 6, 5, -1], device=device)
    keys = TableKeys(ids, (0, 4), torch.tensor([3], device=device))
    grads = torch.ones(4, 3, device=device)
    with without_waiting(device):
        for _ in range(2):
            done = table.apply_gradients(table.lookup(keys, missing="training"), grads, ts=3)
            each = table.apply_gradients(keys, grads, ts=4, per_occurrence=True)
        table.assign_add(ids, grads)
        table.erase(ids[:1])
        table.reinitialize(ids[:1])
    assert (done.refused, each.refused) == (0, 0)
    assert table.size() == 2
