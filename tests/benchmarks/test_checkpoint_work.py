"""The comparisons of the checkpoint benchmark: one wrong number is seen."""

from __future__ import annotations

from pathlib import Path

import torch

import hedgerow as hr
from benchmarks.checkpoint import CheckpointWork, Sizes, empty_table
from hedgerow.tables.store import Entries

SIZES = Sizes(rows=300, batch_ids=8, batches=2)


def _copy(work: CheckpointWork) -> hr.HostTable:
    table = empty_table()
    for entries in work.table.scan():
        table.restore(entries)
    return table


def _changed(table: hr.HostTable, key: torch.Tensor) -> Entries:
    found = table.entries(key)
    found.states[0]["sum"][0, 3] += 1
    return found


def test_equal_tables_have_no_wrong_rows() -> None:
    work = CheckpointWork.make(SIZES)
    assert work.wrong_rows(_copy(work)) == 0


def test_a_wrong_state_a_missing_row_and_a_row_too_many_are_seen() -> None:
    work = CheckpointWork.make(SIZES)
    other = _copy(work)
    other.restore(_changed(other, work.ids[:1]))
    assert work.wrong_rows(other) == 1
    other = _copy(work)
    other.erase(work.ids[:1])
    assert work.wrong_rows(other) > 0
    other = _copy(work)
    other.assign(torch.tensor([12345]), torch.ones(1, 16))
    assert work.wrong_rows(other) == 1
    assert work.wrong_rows(work.assigned()) == 300  # values without states


def test_a_checkpoint_is_compared_in_the_same_way(tmp_path: Path) -> None:
    work = CheckpointWork.make(SIZES)
    hr.save([work.table], tmp_path / "a")
    assert work.wrong_rows_in(tmp_path / "a") == 0
    work.table.restore(_changed(work.table, work.ids[:1]))
    assert work.wrong_rows_in(tmp_path / "a") == 1
    work.table.assign(torch.tensor([12345]), torch.ones(1, 16))
    assert work.wrong_rows_in(tmp_path / "a") == 2
