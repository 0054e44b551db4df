"""What a save does beside training: low priority, and a disk that works early."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow import native
from hedgerow.core.errors import SaveError
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint import files
from hedgerow.tables.checkpoint.files import BackgroundSha256
from hedgerow.tables.checkpoint.workers import Workers, background_threads
from hedgerow.tables.store import Entries

from .common import content, filled


def _priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


class _Watched:
    """A table that notes the priority of whoever reads it."""

    def __init__(self, table: hr.HostTable) -> None:
        self.config, self._table = table.config, table
        self.seen: list[int] = []

    def max_ts(self) -> int:
        return self._table.max_ts()

    def size(self) -> int:
        return self._table.size()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        self.seen.append(_priority())
        return self._table.scan(rows)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_a_save_beside_training_gives_way_and_others_keep_their_priority(tmp_path: Path) -> None:
    table, before = _Watched(filled(50)), _priority()
    hr.save_async([table], tmp_path / "a").wait()
    hr.save([table], tmp_path / "b")
    assert table.seen == [max(before, 19), before]
    assert _priority() == before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(_priority).result() == before


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_save_beside_training_takes_a_quarter_of_the_threads_of_tables(
    tmp_path: Path, threads: int
) -> None:
    before = native.threads()
    try:
        native.set_threads(threads)
        assert background_threads(1) == min(1, threads // 4)
        table, fresh = filled(2000), filled(3)
        hr.save_async([table], tmp_path / "a", router=Router("roundrobin", 3)).wait()
        hr.load([fresh], tmp_path / "a", router=Router("roundrobin", 1))
        assert content(fresh) == content(table)
    finally:
        native.set_threads(before)


@given(st.lists(st.integers(0, 3 << 19), max_size=30))
@settings(max_examples=20)
def test_a_checksum_behind_is_that_of_all_pieces_in_order(sizes: list[int]) -> None:
    behind, together = BackgroundSha256(), hashlib.sha256()
    for number, size in enumerate(sizes):
        piece = bytes([number]) * size
        behind.update(memoryview(piece))
        together.update(piece)
    assert behind.hexdigest() == together.hexdigest()


def test_tasks_without_threads_run_at_once_and_keep_their_errors() -> None:
    with Workers(0) as workers:
        assert workers.submit(threading.current_thread).result() is threading.current_thread()
        assert isinstance(workers.submit(int, "x").exception(), ValueError)


def test_a_file_that_was_flushed_on_the_way_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_FLUSH_BYTES", 100)
    table, fresh = filled(2000), filled(3)
    hr.save([table], tmp_path / "a")
    hr.load([fresh], tmp_path / "a")
    assert content(fresh) == content(table)


def test_an_error_of_an_early_flush_is_an_error_of_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, real = threading.current_thread(), os.fsync
    calls: list[int] = []

    def broken(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            assert threading.current_thread() is not main
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(files, "_FLUSH_BYTES", 100)
    file = files.HashedFile(tmp_path / "x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        file.write(b"." * 200)
        with pytest.raises(OSError, match="Input/output error"):
            file.publish()
        file.close()
    assert not (tmp_path / "x").exists()

    calls.clear()
    (tmp_path / "c").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(SaveError, match="Input/output error"):
            hr.save([filled(2000)], tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []
