"""The table that a load fills beside the live one: what it shares, what a load does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import DtypeError, InputError

from .common import content, filled

ROW = torch.ones(1, 2)


def _counting(name: str = "t") -> hr.TableConfig:
    admit = hr.Within(1000, 3)
    return hr.TableConfig(name, (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),), admit=admit)


def test_a_table_keeps_its_filter_in_a_load_and_gets_the_saved_counts(tmp_path: Path) -> None:
    table, seen = hr.HostTable(_counting()), torch.tensor([7])
    other = hr.HostTable(_counting("other"), filter=table.filter)
    hr.save([table], tmp_path / "a")
    assert table.apply_gradients(seen, ROW).refused == 1
    hr.load([table], tmp_path / "a")
    assert table.filter is other.filter
    for _ in range(2):
        assert table.apply_gradients(seen, ROW).refused == 1
    assert table.apply_gradients(seen, ROW).inserted == 1  # the third since the save


def test_a_table_beside_is_empty_and_of_the_same_config() -> None:
    table = filled(100)
    beside = table.beside(1000)
    assert beside.size() == 0
    assert beside.config == table.config
    rows = content(table)
    beside.exchange_rows(table)
    assert table.size() == 0
    assert content(beside) == rows


@pytest.mark.parametrize(("rows", "error"), [(-1, InputError), (1.5, DtypeError)])
def test_room_is_a_count(rows: float, error: type[Exception]) -> None:
    with pytest.raises(error, match="rows"):
        filled(1).beside(rows)  # pyright: ignore[reportArgumentType]


def test_save_and_load_do_without_pandas(tmp_path: Path) -> None:
    program = f"""
import sys, torch, hedgerow as hr
table = hr.HostTable(hr.TableConfig("t", (hr.Segment(2, hr.Zeros(), hr.Adagrad()),)))
table.assign(torch.tensor([7]), torch.ones(1, 2))
hr.save([table], {str(tmp_path / "a")!r})
assert hr.load([table], {str(tmp_path / "a")!r}).rows == {{"t": 1}}
assert "pandas" not in sys.modules, "pandas was loaded"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_rows_have_states_of_every_form_and_no_length() -> None:
    entries = filled(5).entries(torch.empty(0, dtype=torch.int64))
    assert [sorted(states) for states in entries.states] == [
        sorted(states) for states in filled(5).entries(torch.tensor([0])).states
    ]
    assert all(len(value) == 0 for states in entries.states for value in states.values())
