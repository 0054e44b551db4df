"""A model with four times the rows that fit its memory learns what it learns in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import ConfigError, FileMissingError, StateError
from hedgerow.nn.model_tables import tables_of
from hedgerow.tables.host import HostTable
from hedgerow.tiers.hybrid import HybridTable

from ..support import everything
from .training import train

# On the disk of the checkout: a folder for temporary files may lie in memory. Files have no names.
HERE = Path(__file__).parent
ROWS = {"item": 6000, "user": 3000, "shop": 50}


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sparse = hr.EmbeddingBags(
            [
                hr.Table("item", 32, features=["item", "seen"], rows=ROWS["item"]),
                hr.Table("shop", 4, rows=ROWS["shop"], optimizer=hr.Sgd(lr=0.2)),
                hr.Table("user", 16, optimizer=hr.Adam(lr=0.05), evict=hr.Lru(2500)),
            ],
            optimizer=hr.Adagrad(lr=0.1),
            seed=3,
            clock=ManualClock(10**6),
        )
        self.top = torch.nn.Linear(84, 1)

    def forward(self, ids: hr.IdBatch) -> torch.Tensor:
        return self.top(torch.cat(list(self.sparse(ids).values()), dim=1)).squeeze(1)


# Rows, their states and times: Adagrad has one number for each, Adam two and a count.
NEEDED = ROWS["item"] * (32 * 8 + 8) + ROWS["user"] * (16 * 12 + 4 + 8)


def _on_disk(model: torch.nn.Module, memory: int = NEEDED // 4) -> torch.nn.Module:
    hr.keep_on_disk(model, HERE, memory=memory, rows={"user": ROWS["user"]})
    return model


def _batches(steps: int, seed: int) -> Iterator[tuple[hr.IdBatch, torch.Tensor]]:
    random = np.random.default_rng(seed)
    for _ in range(steps):
        user = random.zipf(1.2, 256) % ROWS["user"]
        item, seen = random.integers(0, ROWS["item"], 256), random.zipf(1.2, 512) % ROWS["item"]
        columns = {"item": item, "shop": item % 50, "user": user}
        ids = {name: column[:, None].tolist() for name, column in columns.items()}
        ids["seen"] = seen.reshape(256, 2).tolist()
        yield hr.IdBatch.from_lists(ids), torch.from_numpy(user % 2).float()


def _train(model: torch.nn.Module, steps: int, seed: int = 1) -> list[float]:
    return train(model, _batches(steps, seed))


def _rows_in_memory(model: torch.nn.Module) -> int:
    """Bytes of rows in memory, as the system says it of files."""
    found = 0
    for table in tables_of(model).values():
        if isinstance(table, HybridTable):
            fast = len(table.resident) * (table.layout.row_bytes + 8)
            found += fast + table.slow.measured_bytes()
    return found


def test_a_model_4_times_its_memory_trains_as_one_in_memory(tmp_path: Path) -> None:
    plain, ours = _Model(), _on_disk(_Model())
    kinds = {name: type(table) for name, table in tables_of(ours).items()}
    assert kinds == {"item": HybridTable, "shop": HostTable, "user": HybridTable}
    assert _train(ours, 30) == _train(plain, 30)
    assert NEEDED // 16 < _rows_in_memory(ours) < 1.25 * NEEDED // 4
    hr.save(ours, tmp_path / "saved", step=30)
    resumed = _on_disk(_Model(), memory=NEEDED // 3)
    hr.load(resumed, tmp_path / "saved")
    expected = _train(plain, 6, seed=2)
    assert _train(ours, 6, seed=2) == expected
    assert _train(resumed, 6, seed=2) == expected
    for name, table in tables_of(plain).items():
        assert everything(tables_of(ours)[name]) == everything(table)
        assert everything(tables_of(resumed)[name]) == everything(table)
    assert hr.stats(ours)["item"]["promotions"] > 0


def test_tables_that_fit_stay_in_memory() -> None:
    model = _on_disk(_Model(), memory=2 * NEEDED)
    assert {type(table) for table in tables_of(model).values()} == {HostTable}


def test_rows_that_leave_by_their_uses_lie_in_two_tiers_as_others() -> None:
    model = hr.EmbeddingBags([hr.Table("item", 64, rows=10_000, evict=hr.Lfu(5000))])
    hr.keep_on_disk(model, HERE, memory="1MiB")
    (table,) = tables_of(model).values()
    assert type(table) is HybridTable
    assert "resident_bytes" in table.stats()


def test_what_will_not_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'user' has no rows=.*give rows=\{'user'"):
        hr.keep_on_disk(_Model(), HERE, memory="1MiB")
    with pytest.raises(ConfigError, match=r"memory is 97\.7 KiB, of which table 'user' gets"):
        _on_disk(_Model(), memory=100_000)
    with pytest.raises(FileMissingError, match=r"rows_in names .*absent, which is not a folder"):
        hr.keep_on_disk(_Model(), tmp_path / "absent", memory="1MiB", rows={"user": 10_000})
    with pytest.raises(StateError, match="in two tiers already"):
        _on_disk(_on_disk(_Model()))
    used = _Model()
    _train(used, 1)
    with pytest.raises(StateError, match="rows do not move"):
        _on_disk(used)


def test_a_model_on_disk_does_not_move_to_a_device() -> None:
    model = _on_disk(_Model())
    with pytest.raises(StateError, match="do not move to meta; bring the model's other modules"):
        model.to("meta")
    assert model.to(torch.float32) is model
