"""Rules of eviction that a module is given run by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock

_DAY_S = 86400


def _bags(clock: ManualClock, evict: Any, **options: Any) -> hr.EmbeddingBags:
    tables = [hr.Table("item", 2, **options), hr.Table("user", 2, evict=hr.Lru(10_000))]
    return hr.EmbeddingBags(tables, evict=evict, optimizer=hr.Adagrad(lr=0.1), clock=clock)


def _update(bags: hr.EmbeddingBags, items: list[int], users: tuple[int, ...] = (1,)) -> None:
    columns = {"item": [items], "user": [list(users)]}
    found = bags(hr.IdBatch.from_lists(columns))
    sum(v.square().sum() for v in found.values()).backward()  # pyright: ignore[reportAttributeAccessIssue]


def _ids(bags: hr.EmbeddingBags) -> set[int]:
    return {int(i) for entries in bags.table("item").scan() for i in entries.ids}


def _rows(bags: hr.EmbeddingBags) -> dict[int, list[list[float]]]:
    """Rows and optimizer state by id."""
    return {
        int(part.ids[i]): [part.rows[i].tolist(), *(s[i].tolist() for s in part.states[0].values())]
        for part in bags.table("item").scan()
        for i in range(len(part))
    }


@pytest.mark.parametrize("rule", [hr.Lru(80), hr.Lfu(80)])
def test_a_stream_of_new_ids_stays_within_an_eighth_of_the_room(rule: hr.Lru | hr.Lfu) -> None:
    clock = ManualClock(1000)
    bags = _bags(clock, rule)
    sizes = []
    for step in range(60):
        clock.advance(1)
        _update(bags, list(range(7 * step, 7 * step + 7)))
        sizes.append(bags.table("item").size())
    assert max(sizes) <= 90
    assert min(sizes[12:]) == 80
    seen: Any = hr.stats(bags)
    assert seen["item"]["evicted"] == 60 * 7 - sizes[-1]
    assert seen["user"]["evicted"] == 0
    assert set(range(60 * 7 - 80, 60 * 7)) <= _ids(bags)  # the newest are there


def test_lru_keeps_what_is_used_and_lfu_what_is_used_often() -> None:
    for rule in (hr.Lru(8), hr.Lfu(8)):
        clock = ManualClock(1000)
        bags = _bags(clock, rule)
        for step in range(40):
            clock.advance(1)
            _update(bags, [-1, -2, step])
        assert {-1, -2} <= _ids(bags)


def test_rows_not_updated_for_an_age_leave_within_an_eighth_of_it() -> None:
    clock = ManualClock(100 * _DAY_S)
    bags = _bags(clock, hr.Ttl("8d"))
    _update(bags, [1, 2, 3])
    for _ in range(7):
        clock.advance(_DAY_S)
        _update(bags, [1])
    assert _ids(bags) == {1, 2, 3}
    clock.advance(_DAY_S + 1)
    _update(bags, [1])
    assert _ids(bags) == {1}
    assert hr.stats(bags)["item"]["evicted"] == 2  # pyright: ignore[reportArgumentType]


def test_a_rule_of_the_wall_clock_runs_where_other_tables_are_updated() -> None:
    clock = ManualClock(100 * _DAY_S)
    bags = _bags(clock, hr.Ttl("8d", reference="wall"))
    _update(bags, [1, 2])
    clock.advance(9 * _DAY_S)
    _update(bags, [])
    assert _ids(bags) == set()


def test_a_rule_of_age_looks_once_in_an_eighth_of_its_shortest_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(100 * _DAY_S)
    bags = _bags(clock, hr.Ttl("16d", slots={3: "8d"}))
    looks = []
    table = bags.table("item")
    evict = table.evict
    monkeypatch.setattr(table, "evict", lambda: looks.append(clock.now_s()) or evict())
    for _ in range(4 * 24):
        _update(bags, [1])
        clock.advance(3600)
    assert [(at - 100 * _DAY_S) / _DAY_S for at in looks] == [0, 1, 2, 3]


@pytest.mark.parametrize("rule", [hr.Lru(8), hr.Ttl("8s")])
def test_a_resumed_run_evicts_as_an_unbroken_one(rule: hr.Lru | hr.Ttl, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(3)
    batches = torch.randint(0, 40, (40, 3), generator=draw).tolist()
    clock = ManualClock(1000)
    whole, first = _bags(clock, rule), _bags(clock, rule)
    for batch in batches[:17]:
        clock.advance(1)
        _update(whole, batch)
        _update(first, batch)
    hr.save(first, tmp_path / "half")
    resumed = _bags(clock, rule)
    hr.load(resumed, tmp_path / "half")
    for batch in batches[17:]:
        clock.advance(1)
        _update(whole, batch)
        _update(resumed, batch)
        assert _rows(resumed) == _rows(whole)
    evicted: Any = hr.stats(whole)
    assert evicted["item"]["evicted"] > 20


def test_an_eighth_more_than_the_room_stays_and_one_row_more_does_not() -> None:
    bags = _bags(ManualClock(1000), hr.Lru(16))
    _update(bags, list(range(18)))
    assert bags.table("item").size() == 18
    _update(bags, [100])
    assert bags.table("item").size() == 16
