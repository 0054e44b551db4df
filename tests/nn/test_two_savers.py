"""Two saves into one folder, one of them stopped at each of its steps: one checkpoint is whole.

A process really stops (SIGSTOP) before a call to the disk, and another saves meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import HedgerowError, SaveError
from hedgerow.tables.checkpoint import files
from hedgerow.tables.checkpoint.manifest_reader import read_manifest

# Forking a process with threads is what this test is about, and tables are made for it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
SAVED, REFUSED = 0, 3


def _model(step: int) -> nn.Sequential:
    """Rows and weights that tell of which save they are."""
    bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    bags.table("user").assign(torch.arange(5), torch.full((5, 2), float(step)))
    linear = nn.Linear(1, 1)
    nn.init.constant_(linear.weight, float(step))
    return nn.Sequential(bags, linear)


def _save(folder: Path, step: int) -> object:
    return hr.save(_model(step), folder, step=step, overwrite=True)


def _save_beside(folder: Path, step: int) -> object:
    """As a save of tables beside training does it."""
    tables = [_model(step)[0].table("user")]
    return hr.save_async(tables, folder, step=step, overwrite=True).wait()


class _Steps:
    """Counts the calls to the disk, and stops this process before one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, stop_at: frozenset[int] = frozenset()) -> None:
        self.calls, self._stop_at, self._lock = 0, stop_at, threading.Lock()
        named = [(os, name) for name in ("fsync", "write", "open", "rmdir", "unlink", "mkdir")]
        named += [(Path, name) for name in ("rename", "unlink", "mkdir", "rmdir", "iterdir")]
        for owner, name in [*named, (files.fcntl, "flock"), (shutil, "rmtree")]:
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with self._lock:  # a save has several threads
                self.calls += 1
                stops = self.calls in self._stop_at
            if stops:
                os.kill(os.getpid(), signal.SIGSTOP)
            return real(*arguments, **named)

        return call


def _count(save: Callable[[], object]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        steps = _Steps(patch)
        save()
    return steps.calls


@contextmanager
def _stopped(save: Callable[[], object], at: int) -> Iterator[Callable[[], int]]:
    """A process that saves, and stopped before its call `at`; what it gives lets it go on."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.MonkeyPatch.context() as patch:
                _Steps(patch, frozenset([at]))
                code = _outcome(save)
        finally:
            os._exit(code)

    def go_on() -> int:
        os.kill(child, signal.SIGCONT)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        yield go_on
    else:  # it had fewer calls than `at`
        yield lambda: os.waitstatus_to_exitcode(status)


def _outcome(save: Callable[[], object]) -> int:
    try:
        save()
    except SaveError as error:
        if "being saved to by another save" not in str(error):
            raise
        return REFUSED
    return SAVED


def _check(folder: Path, possible: set[int], *, whole_model: bool = True) -> int:
    """The checkpoint is of one of these saves, all of it, and nothing else is in the folder."""
    model = _model(-1)
    if whole_model:
        step = hr.load(model, folder).step
        assert model[1].weight.item() == step
    else:
        step = hr.load([model[0].table("user")], folder).step
    rows = torch.cat([entries.rows for entries in model[0].table("user").scan()])
    assert rows.tolist() == [[float(step)] * 2] * 5
    assert {path.name for path in folder.iterdir()} == read_manifest(folder).names() | {
        "manifest.json"
    }
    assert step in possible
    return step


def _at_every_step(
    folder: Path, save: Callable[[Path, int], object], *, replaces: bool, every: int, whole: bool
) -> set[tuple[int, int]]:
    """Stops one saver at each of its calls while another saves; the pairs of their outcomes."""
    outcomes: set[tuple[int, int]] = set()

    def prepared() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if replaces:
            save(folder, 1)

    prepared()
    calls = _count(lambda: save(folder, 2))
    assert calls > 10
    for at in range(1, calls + 1, every):
        prepared()
        with _stopped(lambda: save(folder, 2), at) as go_on:
            other = _outcome(lambda: save(folder, 3))
            if other == SAVED:
                _check(folder, {3}, whole_model=whole) if not _remains(folder) else None
            first = go_on()
        assert SAVED in (first, other), f"none saved at call {at}"
        assert first in (SAVED, REFUSED), f"call {at}"
        # If both saved, the stopped one had either not begun, or had let the folder go.
        wanted = {step for step, code in ((2, first), (3, other)) if code == SAVED}
        _check(folder, wanted, whole_model=whole)
        outcomes.add((first, other))
    return outcomes


def _remains(folder: Path) -> bool:
    """Whether a stopped save has files there."""
    return any(path.name.endswith(".part") for path in folder.iterdir())


@pytest.mark.parametrize("replaces", [False, True])
def test_a_save_that_stops_at_any_step_lets_no_other_in(tmp_path: Path, replaces: bool) -> None:
    every = 1 if replaces else 2
    outcomes = _at_every_step(tmp_path / "a", _save, replaces=replaces, every=every, whole=True)
    assert (SAVED, REFUSED) in outcomes  # it held the folder
    assert (SAVED, SAVED) in outcomes  # it had not begun, or had ended


@pytest.mark.parametrize("replaces", [False, True])
def test_a_save_beside_training_that_stops_lets_no_other_in(tmp_path: Path, replaces: bool) -> None:
    folder = tmp_path / "a"
    outcomes = _at_every_step(folder, _save_beside, replaces=replaces, every=3, whole=False)
    assert (SAVED, REFUSED) in outcomes


def _pairs(folder: Path, pairs: list[tuple[int, int]]) -> None:
    """One saver stops at a call, the other at one of its own; the first ends, then the second."""
    for one, two in pairs:
        shutil.rmtree(folder, ignore_errors=True)
        with (
            _stopped(lambda: _save(folder, 2), one) as first,
            _stopped(lambda: _save(folder, 3), two) as second,
        ):
            done = first(), second()
        assert SAVED in done, f"none saved at calls {one} and {two}"
        _check(folder, {step for step, code in zip((2, 3), done, strict=True) if code == SAVED})


def test_two_savers_that_both_stop_before_they_hold_the_folder(tmp_path: Path) -> None:
    """The steps in which a folder is made, opened, locked, and removed by one that failed."""
    _pairs(tmp_path / "a", [(one, two) for one in range(1, 9) for two in range(1, 9)])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_savers_at_every_pair_of_steps(tmp_path: Path) -> None:
    calls = _count(lambda: _save(tmp_path / "count", 2))
    _pairs(tmp_path / "a", [(i, k) for i in range(1, calls + 1) for k in range(1, calls + 1)])


def test_a_saver_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    _save(folder, 1)
    calls = _count(lambda: _save(folder, 2))
    for at in range(1, calls + 1, 5):
        child = os.fork()
        if child == 0:
            with pytest.MonkeyPatch.context() as patch:
                _Steps(patch, frozenset([at]))
                _save(folder, 2)
            os._exit(0)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        _save(folder, 3)
        _check(folder, {3})


def test_a_folder_that_a_failed_save_removed_is_held_anew(tmp_path: Path) -> None:
    """The lock of a removed folder holds nobody off: it is taken again on the new one."""
    folder = tmp_path / "a"
    real, done = files.fcntl.flock, []

    def replaced(fd: int, how: int) -> None:
        if not done:
            done.append(folder.rmdir())
            folder.mkdir()
        real(fd, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.fcntl, "flock", replaced)
        with files.sole_writer(folder, make=True):
            patch.undo()
            with pytest.raises(HedgerowError, match="another save"), files.sole_writer(folder):
                raise AssertionError("two hold the folder")
