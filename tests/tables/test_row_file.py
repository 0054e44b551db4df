"""Rows in a file: the same table within a budget, full disks, forks and kills."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow import native
from hedgerow.core.errors import (
    ConfigError,
    DtypeError,
    FileMissingError,
    InputError,
    OutOfMemoryError,
    StateError,
)
from hedgerow.tables.local_table import table_stats
from tests.support import everything, make_table, table_config

# On the disk of the checkout: a folder for temporary files may lie in memory. Files have no names.
HERE = Path(__file__).parent
CONFIG = table_config(hr.Adagrad(lr=0.1), dim=64)
CHUNK_ROWS = 32_768


def _in_file(budget_bytes: int, config: hr.TableConfig = CONFIG) -> hr.HostTable:
    return hr.HostTable(config, rows_in=hr.RowFile(HERE, budget_bytes))


def _ids(n: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, n))


def _train_4x(rows: int, steps: int, batch_ids: int) -> None:
    """Bit for bit as in memory, with the memory of the file near its budget all the time."""
    ids, plain = _ids(rows), hr.HostTable(CONFIG)
    budget = rows * (64 * 2 * 4 + 8) // 4
    ours = _in_file(budget)
    random = np.random.default_rng(2)
    most_bytes = 0
    births = list(ids.split(batch_ids))  # every row once, then any of them
    again = [ids[torch.from_numpy(random.integers(0, rows, batch_ids))] for _ in range(steps)]
    for step, batch in enumerate([*births, *again]):
        for table in (ours, plain):
            found = table.lookup(batch, missing="initializer")
            table.apply_gradients(found, found.rows_of() + 0.1, step=step, ts=step)
        most_bytes = max(most_bytes, ours.measured_bytes())
        assert ours.stats()["resident_bytes"] <= budget
    seen = ours.stats()
    assert seen["file_bytes"] >= seen["row_bytes"] >= 4 * budget
    # Far from none, or nothing was kept; a quarter above is for pages that the system is late with.
    assert budget / 2 < most_bytes < 1.25 * budget
    assert ours.size() == plain.size() == rows
    for part in ids.split(65_536):
        a, b = ours.entries(part), plain.entries(part)
        assert bool(a.found.all())
        assert torch.equal(a.ts, b.ts)
        assert torch.equal(a.rows.view(torch.int32), b.rows.view(torch.int32))
        (state,), (expected,) = a.states, b.states
        assert state.keys() == expected.keys()
        for name, values in state.items():
            assert torch.equal(values.view(torch.int32), expected[name].view(torch.int32))
    assert sum(len(part) for part in ours.scan()) == rows
    assert ours.measured_bytes() < 1.25 * budget  # the scan kept to it, too


def test_a_table_4_times_its_memory_trains_as_one_in_memory() -> None:
    _train_4x(rows=20_000, steps=12, batch_ids=1000)


@pytest.mark.long
def test_a_table_of_half_a_gigabyte_trains_in_a_quarter_of_it() -> None:
    _train_4x(rows=1_000_000, steps=20, batch_ids=16_384)


def test_stats_tell_the_bytes_of_the_file_and_of_what_is_in_memory() -> None:
    ours = _in_file(2**19)
    assert table_stats(ours)["file_bytes"] == 0
    ours.assign(_ids(5000), torch.ones(5000, 64))
    seen = table_stats(ours)
    assert int(seen["file_bytes"]) >= int(seen["row_bytes"]) == 5000 * 520
    assert 0 < int(seen["resident_bytes"]) <= 2**19
    assert "file_bytes" not in table_stats(make_table())
    with pytest.raises(StateError, match="in memory, not in a file"):
        make_table().measured_bytes()


def test_rows_in_a_file_count_against_the_memory_limit_up_to_their_budget() -> None:
    before = native.memory_used()
    ours = _in_file(2**19)
    ours.assign(_ids(5000), torch.ones(5000, 64))
    assert native.memory_used() - before == ours.memory().index_bytes + 2**19
    ours.clear()
    assert native.memory_used() == before
    assert table_stats(ours)["file_bytes"] == table_stats(ours)["resident_bytes"] == 0


@pytest.mark.parametrize("evict", [hr.Ttl("20s"), hr.Lru(500), hr.Lfu(500)], ids=repr)
def test_rows_leave_by_the_rules_of_a_table_in_memory(evict: hr.Ttl | hr.Lru | hr.Lfu) -> None:
    config = table_config(hr.Adam(lr=0.1), dim=48, evict=evict)
    tables = (_in_file(2**18, config), hr.HostTable(config))
    ids, random = _ids(3000), np.random.default_rng(4)
    for step in range(5):
        batch = ids[torch.from_numpy(random.zipf(1.3, 800) % len(ids))]
        grads = torch.full((len(batch), 48), 0.5 + step)
        for table in tables:
            table.apply_gradients(batch, grads, step=step, ts=20 * step)
    left = [table.evict(now_s=100, capture=True) for table in tables]
    assert left[0].rows == left[1].rows > 0
    assert left[0].ids is not None
    assert left[1].ids is not None
    assert torch.equal(left[0].ids, left[1].ids)
    for table in tables:  # rows that left are born again in their places
        table.apply_gradients(ids, torch.ones(len(ids), 48), step=11, ts=110)
    assert everything(tables[0]) == everything(tables[1])


def test_checkpoints_of_both_kinds_are_one(tmp_path: Path) -> None:
    ours, plain = _in_file(2**17), hr.HostTable(CONFIG)
    ids = _ids(3000)
    ours.apply_gradients(ids, torch.ones(3000, 64))
    hr.save([ours], tmp_path / "one")
    hr.load([plain], tmp_path / "one")
    assert everything(plain) == everything(ours)
    plain.erase(ids[:1000])
    hr.save([plain], tmp_path / "two")
    hr.load([ours], tmp_path / "two")
    assert everything(plain) == everything(ours)
    assert 0 < int(table_stats(ours)["resident_bytes"]) <= 2**17  # the loaded rows are in a file


def test_tables_in_a_file_and_in_memory_do_not_exchange_rows() -> None:
    ours, plain = _in_file(2**20), hr.HostTable(CONFIG)
    with pytest.raises(InputError, match="only tables with one rows_in exchange rows"):
        ours.exchange_rows(plain)


def test_folders_that_will_not_do_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for absent in (tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(FileMissingError, match="which is not a folder"):
            hr.HostTable(CONFIG, rows_in=hr.RowFile(absent, 2**20))
    with pytest.raises(ConfigError, match="cannot make a file for rows in /proc"):
        hr.HostTable(CONFIG, rows_in=hr.RowFile("/proc", 2**20))  # nobody may write there
    with pytest.raises(InputError, match="resident_bytes is -1"):
        hr.RowFile(tmp_path, -1)
    with pytest.raises(DtypeError, match="resident_bytes is '1GiB'"):
        hr.RowFile(tmp_path, "1GiB")  # pyright: ignore[reportArgumentType]
    with pytest.raises(DtypeError, match="folder is 7"):
        hr.RowFile(7, 2**20)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DtypeError, match="pass RowFile"):
        hr.HostTable(CONFIG, rows_in=str(tmp_path))  # pyright: ignore[reportArgumentType]


def _refused_growth_loses_nothing(ours: hr.HostTable) -> None:
    """Of a table that has a chunk and cannot have a second."""
    ids = _ids(CHUNK_ROWS + 1000)
    rows = torch.arange(len(ids), dtype=torch.float32)[:, None].expand(-1, 64).contiguous()
    first = CHUNK_ROWS - 100
    ours.assign(ids[:first], rows[:first])
    before = table_stats(ours)
    with pytest.raises(OutOfMemoryError, match=r"more bytes of a file in .*Nothing was changed"):
        ours.assign(ids, -rows)
    after = table_stats(ours)
    assert (after["rows"], after["file_bytes"]) == (first, before["file_bytes"])
    assert torch.equal(ours.lookup(ids[:first]).rows_of(), rows[:first])
    ours.assign(ids[first : first + 50], rows[:50])  # what is there still serves
    assert ours.size() == first + 50
    ours.erase(ids[:10_000])  # of every shard enough for its part of what comes
    ours.assign(ids[-900:], rows[-900:])
    assert torch.equal(ours.lookup(ids[-900:]).rows_of(), rows[-900:])


def test_a_limit_on_file_sizes_is_an_error_and_loses_nothing() -> None:
    ours = _in_file(2**21)
    ours.assign(_ids(1, seed=9), torch.ones(1, 64))
    ours.erase(_ids(1, seed=9))  # its chunk stays
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = int(table_stats(ours)["file_bytes"]) + 2**20
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        _refused_growth_loses_nothing(ours)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ours.assign(_ids(2 * CHUNK_ROWS, seed=8), torch.ones(2 * CHUNK_ROWS, 64))  # it grows again


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for one chunk."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a small disk here")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_full_disk_is_an_error_and_loses_nothing(small_disk: Path) -> None:
    ours = hr.HostTable(CONFIG, rows_in=hr.RowFile(small_disk, 2**21))
    _refused_growth_loses_nothing(ours)
    (small_disk / "other").write_bytes(bytes(2**20))  # and the refused bytes were given back
    ours.close()
    (small_disk / "other").write_bytes(bytes(20 * 2**20))


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        table = hr.HostTable(CONFIG, rows_in=hr.RowFile(tmp_path, 2**20))
        ids = np.arange(100, dtype=np.int64)
        table.assign(torch.from_numpy(ids), torch.from_numpy(np.ones((100, 64), np.float32)))
        os.write(tell, str(int(table.stats()["file_bytes"])).encode())
        signal.pause()
    os.close(tell)
    try:
        assert int(os.read(told, 100)) > 2**20
        assert list(tmp_path.iterdir()) == []  # not even now
    finally:
        os.close(told)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert list(tmp_path.iterdir()) == []


def _refused_in_child(ours: hr.HostTable, ids: torch.Tensor, rows: torch.Tensor) -> int:
    calls = (
        lambda: ours.lookup(ids),
        lambda: ours.assign(ids, rows),
        lambda: ours.entries(ids),
        lambda: next(iter(ours.scan())),
        lambda: ours.snapshot(),
        lambda: ours.clear(),
    )
    refused = 0
    for call in calls:
        try:
            call()
        except StateError as error:
            refused += "Make tables with rows in a file after the fork" in str(error)
    return refused


def test_a_forked_child_is_refused_and_its_parent_goes_on() -> None:
    ours = _in_file(2**20)
    ids, rows = _ids(2000), torch.ones(2000, 64)
    ours.assign(ids, rows)
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            refused = _refused_in_child(ours, ids, rows)
            del ours
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    assert torch.equal(ours.lookup(ids).rows_of(), rows)
    ours.assign(ids, 2 * rows)
    assert torch.equal(ours.lookup(ids).rows_of(), 2 * rows)
