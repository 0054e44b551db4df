"""A writer that is killed at any moment: the newest complete checkpoint always loads."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.chain import Chain, newest
from hedgerow.tables.checkpoint.increments import compact

from .common import config, some_ids

# Forking a process with threads is what this test is about, and the table is made for it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
ROUTER = Router("hash_roundrobin", 3)


class _Disk:
    """Counts what a save asks of the disk; may die instead of answering."""

    def __init__(self, patch: pytest.MonkeyPatch, dies_at: int = -1) -> None:
        self.calls, self._dies_at = 0, dies_at
        for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "unlink"), (Path, "mkdir")):
            patch.setattr(owner, name, self._watched(getattr(owner, name)))
        patch.setattr(os, "write", self._write)

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._count()
            return real(*arguments, **named)

        return call

    def _write(self, fd: int, data: memoryview) -> int:
        """Dies in the middle of what it writes."""
        if self.calls + 1 == self._dies_at:
            _REAL_WRITE(fd, data[: len(data) // 2])
        self._count()
        return _REAL_WRITE(fd, data)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


_REAL_WRITE = os.write


def _killed(save: Callable[[], object], at_random: random.Random, calls: int) -> None:
    """Runs `save` in a fork that dies at a random call to the disk, or at a random time."""
    by_call = at_random.random() < 0.7
    dies_at = at_random.randrange(1, calls + 2) if by_call else -1
    delay_s = at_random.random() * 0.05
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            with pytest.MonkeyPatch.context() as patch:
                _Disk(patch, dies_at)
                save()
            failed = 0
        finally:
            os._exit(failed)
    if not by_call:
        time.sleep(delay_s)  # a moment that nothing in the writer chose
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)  # stopped or done, never an error


def _calls(save: Callable[[], object]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        disk = _Disk(patch)
        save()
    return disk.calls


def _set_all(table: hr.HostTable, ids: torch.Tensor, step: int) -> None:
    table.assign(ids, torch.full((len(ids), table.layout.dim), float(step)), ts=step)


def _check(folder: Path, steps: set[int], rows: int) -> int:
    """Loads, and proves that rows are those of one step; that step."""
    fresh = hr.HostTable(config())
    loaded = hr.load([fresh], folder)
    assert loaded.step in steps
    values = torch.cat([entries.rows for entries in fresh.scan()])
    assert values.shape[0] == rows
    assert bool((values == float(loaded.step)).all())
    return loaded.step


def _kill_saves(root: Path, times: int, seed: int) -> None:
    at_random, ids = random.Random(seed), some_ids(3000)
    table = hr.HostTable(config())

    def save(folder: Path, step: int) -> object:
        _set_all(table, ids, step)
        return hr.save(
            [table], folder, router=ROUTER, step=step, blobs={"f": bytes(99)}, overwrite=True
        )

    calls = _calls(lambda: save(root / "same", 0))
    save(root / "each" / "step-0", 0)
    last = {"same": 0, "each": 0}
    for step in range(1, times + 1):
        kind = at_random.choice(["same", "each"])
        target = root / "same" if kind == "same" else root / "each" / f"step-{step}"
        _killed(lambda target=target, step=step: save(target, step), at_random, calls)
        found = newest(root / "each") if kind == "each" else root / "same"
        last[kind] = _check(found, {last[kind], step}, len(ids))


def _kill_increments(folder: Path, times: int, seed: int) -> None:
    at_random, ids = random.Random(seed), some_ids(2000)
    table = hr.HostTable(config())
    _set_all(table, ids, 0)
    hr.save([table], folder, router=ROUTER)

    def save(step: int) -> object:
        _set_all(table, ids, step)
        if step % 5 == 0:
            return compact(folder)
        return hr.save_increment([table], folder, {"item": ids}, step=step)

    calls = _calls(lambda: save(1))
    last = 1
    for step in range(2, times + 2):
        _killed(lambda step=step: save(step), at_random, calls)
        last = _check(folder, {last, step}, len(ids))
    table.erase(ids[:10])
    hr.save_increment([table], folder, {"item": ids[:10]}, step=last)  # after all that, goes on
    assert _check(folder, {last}, len(ids) - 10) == last
    assert len(Chain.read(folder).increments) >= 1


def test_a_killed_save_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    _kill_saves(tmp_path, 10, seed=1)


def test_a_killed_increment_leaves_the_chain_before(tmp_path: Path) -> None:
    _kill_increments(tmp_path / "a", 10, seed=2)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_killed_saves(tmp_path: Path) -> None:
    _kill_saves(tmp_path, 200, seed=3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_killed_increments(tmp_path: Path) -> None:
    _kill_increments(tmp_path / "a", 200, seed=4)
