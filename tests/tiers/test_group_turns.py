"""Several caches whose rows come, leave and are told of in unlucky order, or many times at once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.tables.store import TableKeys
from hedgerow.tiers import eviction, misses
from hedgerow.tiers.misses import HostReadback, MissRead

from .test_group import NAMES, Pair, config
from .test_group_beside_threads import _keys, _on


def _all(*ids: int) -> TableKeys:
    """The same keys of each table."""
    many = len(ids)
    return TableKeys(torch.tensor(ids * len(NAMES)), tuple(many * k for k in range(4)))


def test_a_row_that_was_chosen_to_leave_before_somebody_reads_it_lands_first(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup of another thread lists a row that then comes, is changed, chosen, and leaves."""
    monkeypatch.setattr(eviction, "_SPARE", 6)
    monkeypatch.setattr(eviction, "MOST_SPARE", 6)
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES])
    fetches: Any = pair.groups[0].miss_handler
    leaving: Any = fetches.evictions
    monkeypatch.setattr(leaving, "go_on", lambda: None)  # its thread is late
    for first in range(0, 48, 12):
        pair.step(_all(*range(first, first + 12)))
    for turn in range(8):
        pair.step(_all(*((24 + 3 * turn + i) % 48 for i in range(3))))
    table, ours = pair.ours.table(0), (0, 1, 2)
    turns: list[str] = []
    asked, read = fetches.missing_ids, MissRead.read

    def cached() -> bool:
        return bool((table.resident.find(np.array(ours)) >= 0).any())

    def chosen() -> set[int]:
        going = leaving.next.chosen.going[: leaving.next.most[0]]
        return set(table.resident.ids_at(going[going >= 0].cpu().numpy()).tolist())

    def others(turn: int) -> TableKeys:
        return _all(*((3 * turn + i) % 45 + 3 for i in range(3)))

    def listed(*call: Any) -> Any:
        found = asked(*call)
        if not turns:
            turns.append("listed")
            pair.step(_all(*ours))
            for turn in range(40):
                if set(ours) & chosen():
                    turns.append("chosen")
                    break
                pair.step(others(turn))
        return found

    def was_read(behind: MissRead) -> None:
        read(behind)
        if turns == ["listed", "chosen"]:
            turns.append("read")
            for turn in range(40):
                if not cached():
                    turns.append("left")
                    break
                pair.step(others(turn))

    monkeypatch.setattr(fetches, "missing_ids", listed)
    monkeypatch.setattr(MissRead, "read", was_read)
    assert not cached()
    keys = _all(*ours)
    found = pair.ours.lookup(_on(device, keys), missing="training")
    assert turns == ["listed", "chosen", "read", "left"]
    assert torch.equal(found.rows.cpu(), pair.model.lookup(keys, missing="training").rows)
    pair.step(keys)
    pair.compare()


def test_tables_that_were_used_by_themselves_have_one_time(device: torch.device) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES], fast_rows=8, slots=32)
    for _ in range(2):
        pair.step(_all(*range(8)))
    table = pair.ours.table(1)
    born = torch.arange(100, 116, device=device)
    table.assign(born, torch.ones(16, 4, device=device))
    for _ in range(20):
        pair.ours.table(0).lookup(torch.arange(3, device=device), missing="training")
    pair.ours.prefetch(_on(device, _all(*range(8))))
    for ids in born.split(4):
        table.apply_gradients(ids, torch.ones(4, 4, device=device))
        assert len(table.resident) <= 8


@pytest.mark.parametrize("many", [1, 20])
def test_few_rows_leave_for_ids_that_come_often_in_a_batch(many: int, device: torch.device) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES], fast_rows=96, slots=128)
    for _ in range(2):
        for first in (0, 46):
            pair.step(_keys(*range(first, first + 46)))
    pair.step(_keys(*range(200, 200 + many)))
    table = pair.ours.table(0)
    before = table.stats()
    pair.step(_keys(*[200] * (141 - many), *range(201, 200 + many)))
    after = table.stats()
    assert after["fetches"] - before["fetches"] == many
    assert after["cache_evictions"] - before["cache_evictions"] <= 2 * many + 12
    pair.compare()


def test_counts_below_one_are_one_wherever_a_brought_row_lies(device: torch.device) -> None:
    """What would be refused for a row behind a cache is not, once the others have stepped."""
    many = 128
    settings: dict[str, Any] = {"fast_rows": many, "slots": many}
    pair = Pair("CACHING", device, 13, [config(name) for name in NAMES], **settings)
    keys = TableKeys(torch.arange(many) * 977, (0, many, many, many))
    for _ in range(3):
        pair.step(keys)
    found = pair.ours.lookup(_on(device, keys), missing="training")
    where = next(iter(found.epoch.found.values()))
    assert where.came
    assert bool((where.slots < 0).any())
    grads, zeros = torch.ones(4 * many), torch.zeros(many, dtype=torch.int64)
    pair.ours.apply_gradients(found, grads.to(device), counts=zeros.to(device), ts=500)
    pair.model.apply_gradients(keys, grads, ts=500)
    pair.compare()


def test_of_too_many_batches_the_next_ones_are_kept(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misses, "_MOST_BATCHES", 2)
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES])
    fetches: Any = pair.groups[0].miss_handler
    batches = [_on(device, _all(9 * n, 9 * n + 1)) for n in range(7)]
    for keys in batches[:4]:
        pair.ours.prefetch(keys)
    waiting = [one.whole.data_ptr() for one in fetches.prefetcher.batches]
    assert waiting == [keys.ids.data_ptr() for keys in batches[:2]]
    pair.ours.lookup(batches[0], missing="training")
    for keys in batches[4:]:  # one takes the place of the first; then nobody looks any up
        pair.ours.prefetch(keys)
    assert len(fetches.prefetcher) == 2
    pair.ours.prefetch(batches[0])
    assert [one.whole.data_ptr() for one in fetches.prefetcher.batches] == [
        batches[0].ids.data_ptr()
    ]


def test_a_lookup_waits_for_its_list_after_all_is_launched(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device reads rows, and is asked for the next batch, while the host gets the list."""
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES])
    fetches: Any = pair.groups[0].miss_handler
    done: list[str] = []

    def note(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def noted(*given: Any, **more: Any) -> Any:
            done.append(name)
            return real(*given, **more)

        monkeypatch.setattr(owner, name, noted)

    pair.step(_keys(1, 2, 3))
    for owner, name in (
        *((fetches.device_group, name) for name in ("find_and_list", "read")),
        *((fetches.prefetcher, "ask"), (fetches, "fetch"), (HostReadback, "wait")),
    ):
        note(owner, name)
    pair.ours.prefetch(_on(device, _keys(2, 3)))
    pair.ours.lookup(_on(device, _keys(1, 2, 3)), missing="training")
    assert done[:5] == ["find_and_list", "read", "ask", "wait", "fetch"]
    assert len(fetches.prefetcher) == 1
    assert next(iter(fetches.prefetcher.batches)).request is not None


def test_a_batch_that_two_threads_look_up_is_taken_by_one(device: torch.device) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES])
    fetches: Any = pair.groups[0].miss_handler
    first, second = (_on(device, _keys(*ids)) for ids in ((1, 2), (3, 4)))
    pair.ours.prefetch(first)
    pair.ours.prefetch(second)
    assert fetches.prefetcher.pop(second.ids) is not None
    assert fetches.prefetcher.pop(second.ids) is None
    assert len(fetches.prefetcher) == 0
    assert fetches.prefetcher.take(first.ids) is None


def test_a_list_takes_no_more_memory_than_the_keys(device: torch.device) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES])
    fetches: Any = pair.groups[0].miss_handler
    fetches.list_room.lacked([1 << 20])  # what one table lacked of an earlier call
    keys = _on(device, _keys(*range(900)))
    listing = fetches.residency(keys, torch.full_like(keys.ids, -1), 0).listing
    assert len(listing.at) <= len(keys.ids)
    assert int(listing.words[0]) == 900


def test_of_uneven_tables_all_that_is_lacking_is_read_ahead(device: torch.device) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES], fast_rows=2000, slots=2500)
    table = pair.ours.table(0)
    for first in range(0, 4500, 900):  # of one table alone, and more than a list has room for
        pair.step(_keys(*range(first, first + 900)))
    for first in range(0, 4500, 900):
        keys = _keys(*range(first, first + 900))
        there = _on(device, keys)
        pair.ours.prefetch(there)
        pair.step(_keys(1))
        before = table.stats()["prefetches"]
        found = pair.ours.lookup(there, missing="training")
        assert torch.equal(found.rows.cpu(), pair.model.lookup(keys, missing="training").rows)
        assert table.stats()["prefetches"] - before >= 898  # one was used meanwhile
        pair.step(keys)
    pair.compare()


def test_a_batch_that_cannot_be_asked_for_fails_no_other(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES])
    pair.step(_keys(1, 2, 3))
    later = _on(device, _keys(1, 2))
    pair.ours.prefetch(later)
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise MemoryError("no room for a list")

        patch.setattr(pair.groups[0].device_group, "absent", broken)
        pair.step(_keys(4, 5))
        pair.step(_keys(1, 2, 3))
    with pytest.raises(MemoryError, match="no room for a list"):
        pair.ours.lookup(later, missing="training")
    pair.step(_keys(1, 2, 3))
    pair.compare()


def test_a_batch_is_asked_for_once_whoever_looks_up(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES])
    pair.step(_keys(1, 2, 3))
    ahead: Any = pair.groups[0].miss_handler.prefetcher  # pyright: ignore[reportOptionalMemberAccess]
    group, asked = pair.groups[0].device_group, []
    real, batches = group.absent, [_on(device, _keys(n)) for n in (1, 2, 7)]

    def slow(*call: Any) -> Any:
        asked.append(call[0].ids.data_ptr())
        if len(asked) == 1:  # meanwhile the owner goes on, and so do others
            pair.ours.prefetch(batches[2])
            other = threading.Thread(target=ahead.ask)
            other.start()
            others.append(other)
        return real(*call)

    others: list[threading.Thread] = []
    monkeypatch.setattr(group, "absent", slow)
    for keys in batches[:2]:
        pair.ours.prefetch(keys)
    pair.ours.lookup(_on(device, _keys(3)), missing="training")
    for other in others:
        other.join()
    ahead.ask()
    assert sorted(asked) == sorted(keys.ids.data_ptr() for keys in batches)
