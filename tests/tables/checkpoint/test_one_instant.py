"""A checkpoint is of one instant: rows of all tables, filters, and the keys that changed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import CheckpointError, InputError, SaveError, StateError
from hedgerow.tables.filters import SlidingFilter

from .common import content, filled, some_ids, step_of

ONE = torch.tensor([7])


def _table(name: str = "item", **settings: object) -> hr.HostTable:
    segments = (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),)
    return hr.HostTable(hr.TableConfig(name, segments, **settings))  # pyright: ignore[reportArgumentType]


def _value(table: hr.HostTable) -> float:
    return float(table.lookup(ONE).rows[0])


def test_tables_are_saved_as_they_were_together(tmp_path: Path) -> None:
    first, second = _table("first"), _table("second")
    stop = threading.Event()

    def work() -> None:
        value = 0.0
        while not stop.is_set():
            value += 1.0
            for table in (first, second):
                table.assign(ONE, torch.tensor([[value]]))

    writer = threading.Thread(target=work)
    writer.start()
    try:
        for i in range(20):
            hr.save_tables([first, second], tmp_path / str(i))
    finally:
        stop.set()
        writer.join()
    for i in range(20):
        loaded = [_table("first"), _table("second")]
        hr.load_tables(tmp_path / str(i), loaded)
        assert _value(loaded[0]) - _value(loaded[1]) in (0.0, 1.0)


def test_what_is_written_after_save_async_returned_is_not_in_it(tmp_path: Path) -> None:
    table = filled(20_000)
    before = content(table)
    handle = hr.save_tables_async([table], tmp_path / "a")
    ids = torch.tensor(list(before))
    for seed in range(5):
        step_of(table, ids, seed)
    table.erase(ids[:5000])
    handle.wait()
    loaded = filled(0)
    hr.load_tables(tmp_path / "a", [loaded])
    assert content(loaded) == before


def test_expired_rows_are_left_out(tmp_path: Path) -> None:
    table = _table(evict=hr.Ttl("1d"))
    table.assign(torch.tensor([1]), torch.ones(1, 1), ts=1000)
    table.assign(torch.tensor([2]), torch.ones(1, 1), ts=1000 + 86400)
    hr.save_tables([table], tmp_path / "a")
    assert table.size() == 2
    loaded = _table(evict=hr.Ttl("1d"))
    hr.load_tables(tmp_path / "a", [loaded])
    assert list(content(loaded)) == [2]


def test_filters_count_on_after_a_load(tmp_path: Path) -> None:
    table = _table(admit=hr.Count(3))
    for _ in range(2):
        assert table.apply_gradients(ONE, torch.ones(1, 1)).refused == 1
    assert hr.save_tables([table], tmp_path / "a", blobs={"mine": b"x"}).rows == 0
    table.apply_gradients(ONE, torch.ones(1, 1))
    assert table.size() == 1
    loaded = _table(admit=hr.Count(3))
    assert hr.load_tables(tmp_path / "a", [loaded]).blobs == {"mine": b"x"}
    assert loaded.apply_gradients(ONE, torch.ones(1, 1)).inserted == 1
    hr.load_tables(tmp_path / "a", [table])  # back to two sightings and no row
    assert table.size() == 0
    assert table.apply_gradients(ONE, torch.ones(1, 1)).inserted == 1


def test_a_shared_filter_is_saved_once_and_restored(tmp_path: Path) -> None:
    def pair() -> list[hr.HostTable]:
        seen = SlidingFilter(capacity_ids=1000)
        segments = (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),)
        configs = [hr.TableConfig(n, segments, admit=hr.Within(1000, 2)) for n in ("a", "b")]
        return [hr.HostTable(config, filter=seen) for config in configs]

    tables, loaded = pair(), pair()
    tables[1].apply_gradients(ONE, torch.ones(1, 1))
    assert len(hr.save_tables(tables, tmp_path / "a").blobs) == 1
    hr.load_tables(tmp_path / "a", loaded)
    assert loaded[0].apply_gradients(ONE, torch.ones(1, 1)).refused == 1
    assert loaded[1].apply_gradients(ONE, torch.ones(1, 1)).inserted == 1


def test_another_filter_is_an_error_or_counts_afresh(tmp_path: Path) -> None:
    table = _table(admit=hr.Within(1000, 2))
    table.apply_gradients(ONE, torch.ones(1, 1))
    hr.save_tables([table], tmp_path / "a")
    other = _table(admit=hr.Within(5000, 2))
    for _ in range(2):
        other.assign(torch.tensor([9]), torch.ones(1, 1))
    with pytest.raises(CheckpointError, match="filter of tables item"):
        hr.load_tables(tmp_path / "a", [other])
    assert other.size() == 1
    hr.load_tables(tmp_path / "a", [other], on_state_mismatch="reset")
    assert other.apply_gradients(ONE, torch.ones(1, 1)).refused == 1


def test_a_consumer_knows_what_increments_need(tmp_path: Path) -> None:
    table = filled(300)
    hr.save_tables([table], tmp_path, consumer="saves")
    ids = torch.tensor(sorted(content(table)))
    for seed in range(4):
        step_of(table, ids[seed * 50 : seed * 50 + 90], seed)
        table.erase(ids[seed * 10 : seed * 10 + 5])
        table.assign(some_ids(20, 100 + seed), torch.ones(len(some_ids(20, 100 + seed)), 7))
        done = hr.save_increment(tmp_path, [table], consumer="saves", step=seed)
        assert done.rows < 150
        loaded = filled(0)
        hr.load_tables(tmp_path, [loaded])
        assert content(loaded) == content(table)


def test_keys_of_a_failed_save_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(50)
    hr.save_tables([table], tmp_path, consumer="saves")
    table.erase(torch.tensor(sorted(content(table))[:20]))

    def full(*_: object, **__: object) -> None:
        raise SaveError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("hedgerow.tables.checkpoint.increments.write_checkpoint", full)
        patch.setattr("hedgerow.tables.checkpoint.save.write_checkpoint", full)
        with pytest.raises(SaveError, match="no space"):
            hr.save_increment(tmp_path, [table], consumer="saves")
        with pytest.raises(SaveError, match="no space"):
            hr.save_tables([table], tmp_path / "other", consumer="saves")
    assert hr.save_increment(tmp_path, [table], consumer="saves").tables["item"].deletions == 20


def test_a_consumer_that_did_not_see_everything_is_refused(tmp_path: Path) -> None:
    table = filled(50)
    hr.save_tables([table], tmp_path)
    with pytest.raises(CheckpointError, match="has not collected the changed keys"):
        hr.save_increment(tmp_path, [table], consumer="saves")
    hr.save_tables([table], tmp_path, consumer="saves", overwrite=True)
    hr.load_tables(tmp_path, [table])  # all rows are replaced
    with pytest.raises(CheckpointError, match="save a new base"):
        hr.save_increment(tmp_path, [table], consumer="saves")
    with pytest.raises(InputError, match="either changed= or consumer="):
        hr.save_increment(tmp_path, [table])


def test_a_load_keeps_who_watches_the_table(tmp_path: Path) -> None:
    table = filled(50)
    hr.save_tables([table], tmp_path)
    changes, learned = table.touched("all", all_changes=True), table.touched("learned")
    hr.load_tables(tmp_path, [table])
    assert changes.take().whole_table
    key = torch.tensor(sorted(content(table))[:1])
    step_of(table, key, 3)
    assert changes.take().ids.tolist() == learned.take().ids.tolist() == key.tolist()
    with table.snapshot(), pytest.raises(StateError, match="while a snapshot is open"):
        hr.load_tables(tmp_path, [table])


def test_evicted_rows_are_seen_by_who_watches(tmp_path: Path) -> None:
    table = _table(evict=hr.Lru(1))
    table.assign(torch.tensor([1, 2]), torch.ones(2, 1), ts=5)
    table.assign(torch.tensor([3]), torch.ones(1, 1), ts=6)
    hr.save_tables([table], tmp_path, consumer="saves")
    with table.snapshot() as before:
        assert table.evict().rows == 2
        assert sorted(key for part in before.scan() for key in part.ids.tolist()) == [1, 2, 3]
    assert hr.save_increment(tmp_path, [table], consumer="saves").tables["item"].deletions == 2
