"""A checkpoint is of one instant: rows of all tables, filters, and the keys that changed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import (
    CheckpointError,
    CheckpointExistsError,
    InputError,
    SaveError,
    StateError,
)
from hedgerow.tables.admission import SlidingFilter
from hedgerow.tables.checkpoint.save import ChangedKeys

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
            hr.save([first, second], tmp_path / str(i))
    finally:
        stop.set()
        writer.join()
    for i in range(20):
        loaded = [_table("first"), _table("second")]
        hr.load(loaded, tmp_path / str(i))
        assert _value(loaded[0]) - _value(loaded[1]) in (0.0, 1.0)


def test_what_is_written_after_save_async_returned_is_not_in_it(tmp_path: Path) -> None:
    table = filled(20_000)
    before = content(table)
    handle = hr.save_async([table], tmp_path / "a")
    ids = torch.tensor(list(before))
    for seed in range(5):
        step_of(table, ids, seed)
    table.erase(ids[:5000])
    handle.wait()
    loaded = filled(0)
    hr.load([loaded], tmp_path / "a")
    assert content(loaded) == before


def test_expired_rows_are_left_out(tmp_path: Path) -> None:
    table = _table(evict=hr.Ttl("1d"))
    table.assign(torch.tensor([1]), torch.ones(1, 1), ts=1000)
    table.assign(torch.tensor([2]), torch.ones(1, 1), ts=1000 + 86400)
    hr.save([table], tmp_path / "a")
    assert table.size() == 2
    loaded = _table(evict=hr.Ttl("1d"))
    hr.load([loaded], tmp_path / "a")
    assert list(content(loaded)) == [2]


def test_filters_count_on_after_a_load(tmp_path: Path) -> None:
    table = _table(admit=hr.Count(3))
    for _ in range(2):
        assert table.apply_gradients(ONE, torch.ones(1, 1)).refused == 1
    assert hr.save([table], tmp_path / "a", blobs={"mine": b"x"}).rows == 0
    table.apply_gradients(ONE, torch.ones(1, 1))
    assert table.size() == 1
    loaded = _table(admit=hr.Count(3))
    assert hr.load([loaded], tmp_path / "a").blobs == {"mine": b"x"}
    assert loaded.apply_gradients(ONE, torch.ones(1, 1)).inserted == 1
    hr.load([table], tmp_path / "a")  # back to two sightings and no row
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
    assert len(hr.save(tables, tmp_path / "a").blobs) == 1
    hr.load(loaded, tmp_path / "a")
    assert loaded[0].apply_gradients(ONE, torch.ones(1, 1)).refused == 1
    assert loaded[1].apply_gradients(ONE, torch.ones(1, 1)).inserted == 1


def test_another_filter_is_an_error_or_counts_afresh(tmp_path: Path) -> None:
    table = _table(admit=hr.Within(1000, 2))
    table.apply_gradients(ONE, torch.ones(1, 1))
    hr.save([table], tmp_path / "a")
    other = _table(admit=hr.Within(5000, 2))
    for _ in range(2):
        other.assign(torch.tensor([9]), torch.ones(1, 1))
    with pytest.raises(CheckpointError, match="filter of tables item"):
        hr.load([other], tmp_path / "a")
    assert other.size() == 1
    hr.load([other], tmp_path / "a", on_state_mismatch="reset")
    assert other.apply_gradients(ONE, torch.ones(1, 1)).refused == 1


def test_a_consumer_knows_what_increments_need(tmp_path: Path) -> None:
    table = filled(300)
    hr.save([table], tmp_path, consumer="saves")
    ids = torch.tensor(sorted(content(table)))
    for seed in range(4):
        step_of(table, ids[seed * 50 : seed * 50 + 90], seed)
        table.erase(ids[seed * 10 : seed * 10 + 5])
        table.assign(some_ids(20, 100 + seed), torch.ones(len(some_ids(20, 100 + seed)), 7))
        done = hr.save_increment([table], tmp_path, consumer="saves", step=seed)
        assert done.rows < 150
        loaded = filled(0)
        hr.load([loaded], tmp_path)
        assert content(loaded) == content(table)


def test_keys_of_a_failed_save_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(50)
    hr.save([table], tmp_path, consumer="saves")
    table.erase(torch.tensor(sorted(content(table))[:20]))

    def full(*_: object, **__: object) -> None:
        raise SaveError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("hedgerow.tables.checkpoint.increments.write_checkpoint", full)
        patch.setattr("hedgerow.tables.checkpoint.save.write_checkpoint", full)
        with pytest.raises(SaveError, match="no space"):
            hr.save_increment([table], tmp_path, consumer="saves")
        with pytest.raises(SaveError, match="no space"):
            hr.save([table], tmp_path / "other", consumer="saves")
    assert hr.save_increment([table], tmp_path, consumer="saves").tables["item"].deletions == 20


def test_a_consumer_that_did_not_see_everything_is_refused(tmp_path: Path) -> None:
    table = filled(50)
    hr.save([table], tmp_path)
    with pytest.raises(CheckpointError, match="has not collected the changed keys"):
        hr.save_increment([table], tmp_path, consumer="saves")
    hr.save([table], tmp_path, consumer="saves", overwrite=True)
    hr.load([table], tmp_path)  # all rows are replaced
    with pytest.raises(CheckpointError, match="save a new base"):
        hr.save_increment([table], tmp_path, consumer="saves")
    with pytest.raises(InputError, match="either changed= or consumer="):
        hr.save_increment([table], tmp_path)


def test_one_consumer_serves_one_save_at_a_time(tmp_path: Path) -> None:
    table = filled(10)
    hr.save([table], tmp_path / "a", consumer="saves")
    go = threading.Event()

    def slow(ids: torch.Tensor, ts: torch.Tensor) -> torch.Tensor:
        assert go.wait(60)
        return torch.ones_like(ts, dtype=torch.bool)

    step_of(table, torch.tensor([100]), 1)
    handle = hr.save_async([table], tmp_path / "b", consumer="saves", keep=slow)
    with pytest.raises(StateError, match="a second snapshot"):
        hr.save_increment([table], tmp_path / "a", consumer="saves")
    with pytest.raises(CheckpointError, match="another save takes the changed keys"):
        ChangedKeys({"item": table}, "saves").take()
    go.set()
    handle.wait()
    with pytest.raises(CheckpointError, match="has not collected"):
        hr.save_increment([table], tmp_path / "a", consumer="saves")
    hr.save_increment([table], tmp_path / "b", consumer="saves")


def test_a_failed_save_closes_the_consumer_it_opened(tmp_path: Path) -> None:
    table = filled(10)
    hr.save([table], tmp_path)
    with pytest.raises(CheckpointExistsError):
        hr.save([table], tmp_path, consumer="typo")
    assert table.consumer("typo") is None
    table.touched("large", all_changes=True, capacity=10**7)
    hr.save([table], tmp_path, consumer="large", overwrite=True)
    hr.save_increment([table], tmp_path, consumer="large")
    table.touched("learned")
    with pytest.raises(InputError, match="does not see all changes"):
        hr.save_increment([table], tmp_path, consumer="learned")


def test_increments_are_of_one_instant_with_filters_and_expiry(tmp_path: Path) -> None:
    rule = hr.Ttl("1d")
    first, second = _table("first", evict=rule), _table("second", admit=hr.Count(3))
    ids = torch.arange(150_000)
    first.assign(ids, torch.zeros(len(ids), 1), ts=100_000)
    second.apply_gradients(ONE, torch.ones(1, 1))
    hr.save([first, second], tmp_path, consumer="saves")
    second.apply_gradients(ONE, torch.ones(1, 1))
    first.assign(torch.tensor([-5]), torch.zeros(1, 1), ts=5)  # expired already
    stop = threading.Event()

    def work() -> None:
        value = 0.0
        while not stop.is_set():
            value += 1.0
            first.assign(ids, torch.full((len(ids), 1), value), ts=100_000)

    writer = threading.Thread(target=work)
    writer.start()
    try:
        for _ in range(3):
            hr.save_increment([first, second], tmp_path, consumer="saves")
    finally:
        stop.set()
        writer.join()
    loaded = [_table("first", evict=rule), _table("second", admit=hr.Count(3))]
    hr.load(loaded, tmp_path)
    assert len(loaded[0].lookup(ids).rows.unique()) == 1  # of one call
    assert loaded[0].size() == len(ids)
    assert loaded[1].apply_gradients(ONE, torch.ones(1, 1)).inserted == 1


def test_a_load_that_fails_has_changed_nothing(tmp_path: Path) -> None:
    def pair() -> list[hr.HostTable]:
        return [_table("a", admit=hr.Count(2)), _table("b")]

    saved = pair()
    saved[0].apply_gradients(ONE, torch.ones(1, 1))
    saved[1].assign(ONE, torch.ones(1, 1))
    hr.save(saved, tmp_path)
    live = pair()
    live[0].assign(torch.tensor([9, 9]), torch.ones(2, 1))
    live[1].assign(torch.tensor([8]), torch.ones(1, 1))
    with live[1].snapshot(), pytest.raises(StateError, match="while a snapshot is open"):
        hr.load(live, tmp_path)
    assert list(content(live[1])) == [8]
    assert live[0].filter is not None
    assert live[0].filter.counts(torch.tensor([7, 9]), table="a").tolist() == [0, 2]


def test_filters_that_became_one_and_names_of_filters_are_refused(tmp_path: Path) -> None:
    def table(name: str, seen: SlidingFilter) -> hr.HostTable:
        segments = (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),)
        config = hr.TableConfig(name, segments, admit=hr.Within(600, 2))
        return hr.HostTable(config, filter=seen)

    def seen() -> SlidingFilter:
        return SlidingFilter(capacity_ids=600)

    hr.save([table("a", seen()), table("b", seen())], tmp_path)
    shared = seen()
    with pytest.raises(CheckpointError, match="share a filter now"):
        hr.load([table("a", shared), table("b", shared)], tmp_path)
    with pytest.raises(InputError, match="belongs to a filter"):
        hr.save([_table()], tmp_path / "x", blobs={"hedgerow filter item": b""})


def test_a_forked_child_does_not_hold_the_folder(tmp_path: Path) -> None:
    table, go = filled(10), threading.Event()

    def slow(ids: torch.Tensor, ts: torch.Tensor) -> torch.Tensor:
        assert go.wait(60)
        return torch.ones_like(ts, dtype=torch.bool)

    handle = hr.save_async([table], tmp_path / "a", keep=slow)
    here, there = os.pipe()
    child = os.fork()
    if child == 0:  # a worker that outlives the save
        os.read(here, 1)
        os._exit(0)
    try:
        go.set()
        handle.wait()
        hr.save([table], tmp_path / "a", overwrite=True)
    finally:
        os.write(there, b"x")
        os.waitpid(child, 0)


def test_a_save_at_the_end_of_a_program_is_finished(tmp_path: Path) -> None:
    program = f"""
import torch, hedgerow as hr
table = hr.HostTable(hr.TableConfig("t", (hr.Segment(16, hr.Zeros(), hr.Adagrad()),)))
table.assign(torch.arange(200_000), torch.ones(200_000, 16))
hr.save_async([table], {str(tmp_path / "a")!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = hr.HostTable(hr.TableConfig("t", (hr.Segment(16, hr.Zeros(), hr.Adagrad()),)))
    assert hr.load([loaded], tmp_path / "a").rows == {"t": 200_000}


def test_a_failed_save_is_told_even_if_nobody_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(ids: torch.Tensor, ts: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the rule is broken")

    handle = hr.save_async([filled(10)], tmp_path / "a", keep=broken)
    with pytest.raises(RuntimeError, match="the rule is broken"):
        handle.wait()
    assert "a save failed: the rule is broken" in caplog.text
    assert not (tmp_path / "a").exists()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    table = filled(10)
    hr.save([table], tmp_path)
    (tmp_path / "increments-backup").mkdir()
    hr.save([table], tmp_path, overwrite=True)
    assert (tmp_path / "increments-backup").exists()


def test_a_load_keeps_who_watches_the_table(tmp_path: Path) -> None:
    table = filled(50)
    hr.save([table], tmp_path)
    changes, learned = table.touched("all", all_changes=True), table.touched("learned")
    hr.load([table], tmp_path)
    assert changes.take().whole_table
    key = torch.tensor(sorted(content(table))[:1])
    step_of(table, key, 3)
    assert changes.take().ids.tolist() == learned.take().ids.tolist() == key.tolist()
    with table.snapshot(), pytest.raises(StateError, match="while a snapshot is open"):
        hr.load([table], tmp_path)


def test_evicted_rows_are_seen_by_who_watches(tmp_path: Path) -> None:
    table = _table(evict=hr.Lru(1))
    table.assign(torch.tensor([1, 2]), torch.ones(2, 1), ts=5)
    table.assign(torch.tensor([3]), torch.ones(1, 1), ts=6)
    hr.save([table], tmp_path, consumer="saves")
    with table.snapshot() as before:
        assert table.evict().rows == 2
        assert sorted(key for part in before.scan() for key in part.ids.tolist()) == [1, 2, 3]
    assert hr.save_increment([table], tmp_path, consumer="saves").tables["item"].deletions == 2
