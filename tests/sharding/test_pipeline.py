"""Stages beside training: order, bounds, staleness, errors, and what is left at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from hedgerow.core.errors import InputError, StateError
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import LocalExchange
from hedgerow.sharding.pipeline import Delayed, Item, Prefetch
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import Lookup

from .worlds import Router, configs, keys_of


def items(n: int) -> Iterator[Item[int]]:
    for i in range(n):
        yield Item(i, step=i, ts=100 + i)


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_prefetch_keeps_order_step_and_time(capacity: int) -> None:
    with Prefetch(items(20), lambda item: item.value * 2, capacity) as ahead:
        found = list(ahead)
    assert found == [Item(2 * i, i, 100 + i) for i in range(20)]
    assert ahead.counters.read("taken") == 20
    assert ahead.counters.read("stale_steps") <= 20 * capacity
    assert (ahead.counters.read("stale_steps") > 0) == (capacity > 0)


def test_prefetch_works_in_another_thread_and_no_further_ahead_than_it_may() -> None:
    seen: list[int] = []

    def work(item: Item[int]) -> str:
        seen.append(item.value)
        return threading.current_thread().name

    with Prefetch(items(10), work, 2) as ahead:
        for taken in range(10):
            item = ahead.take(step=taken)
            assert item is not None
            assert item.value != threading.current_thread().name
            assert len(seen) <= taken + 1 + 2
        assert ahead.take() is None
    assert seen == list(range(10))
    assert ahead.counters.read("stale_steps") == 0  # each was taken at its own step


@pytest.mark.parametrize("capacity", [0, 2])
def test_an_error_comes_where_its_item_would_have_come(capacity: int) -> None:
    def work(item: Item[int]) -> int:
        if item.value == 2:
            raise ValueError("the third")
        return item.value

    with Prefetch(items(5), work, capacity) as ahead:
        assert [item.value for item in (ahead.take(), ahead.take()) if item] == [0, 1]
        with pytest.raises(ValueError, match="the third"):
            ahead.take()
        assert [item.value for item in ahead] == [3, 4]


def test_an_error_of_the_source_comes_too() -> None:
    def source() -> Iterator[Item[int]]:
        yield Item(1)
        raise OSError("the file is gone")

    with Prefetch(source(), lambda item: item.value, 1) as ahead:
        assert ahead.take() == Item(1)
        with pytest.raises(OSError, match="the file is gone"):
            ahead.take()
        assert ahead.take() is None


def test_a_drained_prefetch_gives_what_was_started_and_is_closed() -> None:
    ahead = Prefetch(items(9), lambda item: item.value, 3)
    ahead.take()
    assert [item.value for item in ahead.drain()] == [1, 2, 3]
    with pytest.raises(StateError, match="closed"):
        ahead.take()
    ahead.close()


@pytest.mark.parametrize("background", [True, False])
def test_three_runs_apply_twice_before_the_drain(background: bool) -> None:
    done: list[tuple[str, int, int]] = []
    with Delayed(lambda i: done.append((i.value, i.step, i.ts)), 1, background=background) as later:
        for step in range(3):
            later.put(Item(f"gradients {step}", step, ts=50 + step))
        later._settle()
        assert done == [("gradients 0", 0, 50), ("gradients 1", 1, 51)]
        later.drain()
        assert [step for _, step, _ in done] == [0, 1, 2]
    assert later.counters.snapshot() == {"done": 3, "put": 3, "waiting_steps": 2}


def test_without_capacity_nothing_waits() -> None:
    done: list[int] = []
    with Delayed(lambda item: done.append(item.value), 0) as now:
        for i in range(3):
            now.put(Item(i))
            assert done == list(range(i + 1))
    with pytest.raises(StateError, match="closed"):
        now.put(Item(3))


def test_an_error_behind_is_raised_by_the_next_call() -> None:
    def work(item: Item[int]) -> None:
        if item.value == 0:
            raise ValueError("the push failed")

    later = Delayed(work, 1)
    later.put(Item(0))
    later.put(Item(1))
    with pytest.raises(ValueError, match="the push failed"):
        later.put(Item(2))
    later.close()  # what waited behind it is done
    assert later.counters.read("done") == 1


def test_after_an_error_of_the_training_thread_nothing_more_is_done() -> None:
    done: list[int] = []

    def fail() -> None:
        with Delayed(lambda item: done.append(item.value), 2) as later:
            later.put(Item(1))
            raise KeyError("training")

    with pytest.raises(KeyError, match="training"):
        fail()
    assert done == []


def test_capacities_are_counts() -> None:
    with pytest.raises(InputError, match="capacity"):
        Prefetch(items(1), lambda item: item, -1)
    with pytest.raises(InputError, match="capacity"):
        Delayed(lambda item: item, -1)


def test_lookups_ahead_and_updates_behind_on_ranks() -> None:
    """Every rank reads in one thread and writes in another, over an exchange each."""
    made, steps, ranks = configs(), 12, 2
    writes = LocalExchange.of(ranks)
    ids = [[[[step % 3, 7], [rank]] for step in range(steps)] for rank in range(ranks)]

    def work(reads: LocalExchange) -> AllToAllTables:
        routers = [Router("roundrobin", ranks)] * 2
        store, rank = HostTables(made), reads.rank
        tables = AllToAllTables(store, routers, reads, reduce="sum", updates=writes[rank])

        def update(item: Item[Lookup]) -> None:
            ones = torch.ones_like(item.value.rows)
            tables.apply_gradients(item.value, ones, step=item.step, ts=item.ts)

        batches = (Item(keys_of(batch), step, step) for step, batch in enumerate(ids[rank]))
        with (
            Prefetch(batches, lambda item: tables.lookup(item.value), 2) as ahead,
            Delayed(update, 1) as behind,
        ):
            for found in ahead:
                behind.put(found)
            behind.drain()
        return tables

    done = LocalExchange.run(ranks, work)
    for tables in done:
        table = tables.table(0)
        assert table.max_ts() == steps - 1
    rows = {i: row for tables in done for i, row in _rows(tables).items()}
    first = HostTables(made).lookup(keys_of([[0, 1, 2, 7], []]), missing="initializer").rows_of(0)
    for i, start in zip([0, 1, 2, 7], first, strict=True):
        updates = steps * ranks if i == 7 else steps // 3 * ranks
        torch.testing.assert_close(rows[i], start - 0.5 * updates)


def _rows(tables: AllToAllTables) -> dict[int, torch.Tensor]:
    found = {}
    for part in tables.table(0).scan():
        found |= dict(zip(part.ids.tolist(), part.rows, strict=True))
    return found
