"""Rows in `state_dict()`: they come back with `load_state_dict`, or an error says what to do."""

from __future__ import annotations

import copy
import io
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import CheckpointError, StateError
from hedgerow.nn import state_dict
from hedgerow.nn.embedding_modules import dense_state

from ..tables.checkpoint.common import content

IDS = torch.arange(-350, 350) * 2**40


class Ranker(nn.Module):
    """Two modules with tables, one of them inside another module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        settings = {"optimizer": hr.Adam(lr=0.1), "clock": ManualClock(77), **settings}
        self.sparse = hr.EmbeddingBags([hr.Table("user", 3), hr.Table("item", 2)], **settings)
        self.tower = nn.ModuleDict({"words": hr.Embeddings([hr.Table("word", 4)], **settings)})
        self.top = nn.Linear(9, 1)

    def forward(self, batch: hr.IdBatch) -> torch.Tensor:
        bags = self.sparse(batch)
        words = self.tower["words"](batch)["word"].values
        return self.top(torch.cat([bags["user"], bags["item"], words], 1))


def batch(ids: torch.Tensor = IDS) -> hr.IdBatch:
    shared = torch.arange(len(ids))
    return hr.IdBatch.from_dict({"user": ids, "item": shared % 100, "word": shared % 13})


def train(model: nn.Module, steps: int) -> nn.Module:
    for _ in range(steps):
        (model(batch()) - 1).square().sum().backward()
    return model


def rows_of(model: Any) -> list[dict[int, Any]]:
    tables = [model.sparse.table("user"), model.sparse.table("item")]
    return [content(table) for table in (*tables, model.tower["words"].table("word"))]


@pytest.fixture(scope="module")
def trained() -> Ranker:
    torch.manual_seed(3)
    made: Any = train(Ranker(), 3)
    return made


@pytest.mark.parametrize("how", [{}, {"weights_only": True}, {"mmap": True}])
def test_rows_states_and_times_come_back(trained: Ranker, tmp_path: Path, how: Any) -> None:
    torch.save(trained.state_dict(), tmp_path / "model.pt")
    fresh = Ranker()
    told = fresh.load_state_dict(torch.load(tmp_path / "model.pt", **how))
    assert (told.missing_keys, told.unexpected_keys) == ([], [])
    assert rows_of(fresh) == rows_of(trained)
    assert sum(fresh.sparse.row_counts().values()) == 700 + 100
    assert (fresh.sparse.updates.step, fresh.tower["words"].updates.step) == (3, 3)
    one, two = copy.deepcopy(trained), fresh
    assert rows_of(train(one, 2)) == rows_of(train(two, 2))  # the same bits later, too


_NEW_PROCESS = """
import sys, torch
from tests.nn.test_state_dict import Ranker
model = Ranker()
model.load_state_dict(torch.load(sys.argv[1], weights_only=True)["state_dict"])
print(sum(model.sparse.row_counts().values()))
"""


def test_a_checkpoint_of_lightning_keeps_its_rows_in_a_new_process(
    trained: Ranker, tmp_path: Path
) -> None:
    checkpoint = {"state_dict": trained.state_dict(), "epoch": 1, "hyper_parameters": {"dim": 3}}
    torch.save(checkpoint, tmp_path / "last.ckpt")
    told = subprocess.run(
        [sys.executable, "-c", _NEW_PROCESS, str(tmp_path / "last.ckpt")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(told.stdout) == 800


def test_a_state_dict_without_rows_is_refused(trained: Ranker) -> None:
    dense = dense_state(trained)
    assert set(dense) == {"top.weight", "top.bias"}
    before = rows_of(trained)
    wanted = (
        r'Missing key.*"sparse._extra_state \(the rows of tables item, user,.*hr.load.*strict=F'
    )
    with pytest.raises(RuntimeError, match=wanted):
        trained.load_state_dict(dense)
    told = trained.load_state_dict(dense, strict=False)
    assert sorted(told.missing_keys) == ["sparse._extra_state", "tower.words._extra_state"]
    assert rows_of(trained) == before
    half = {**trained.state_dict()}
    del half["tower.words._extra_state"]
    with pytest.raises(RuntimeError, match="the rows of tables word"):
        Ranker().load_state_dict(half)


def test_rows_are_in_a_nested_module_and_under_a_prefix(trained: Ranker) -> None:
    inside = nn.ModuleDict({"model": Ranker()})
    prefixed = {f"model.{name}": value for name, value in trained.state_dict().items()}
    inside.load_state_dict(prefixed)
    assert rows_of(inside["model"]) == rows_of(trained)
    assert all(isinstance(value, torch.Tensor) for value in prefixed.values())


def test_rows_are_neither_parameters_nor_buffers(trained: Ranker) -> None:
    assert {name for name, _ in trained.named_parameters()} == {"top.weight", "top.bias"}
    assert not list(trained.buffers())
    averaged = torch.optim.swa_utils.AveragedModel(trained)
    assert rows_of(averaged.module) == rows_of(trained)
    averaged.update_parameters(trained)


def test_a_copy_has_rows_of_its_own(trained: Ranker) -> None:
    before = rows_of(trained)
    twin = copy.deepcopy(trained)
    assert rows_of(twin) == before
    assert twin.sparse.clock is trained.sparse.clock
    train(twin, 1)
    assert rows_of(trained) == before != rows_of(twin)


def test_more_rows_than_the_limit_are_refused_by_name(
    trained: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_dict, "MOST_BYTES", 20_000)
    for verb in (Ranker.state_dict, copy.deepcopy):
        with pytest.raises(StateError, match=r"800 rows of tables item, user.*19\.5 KiB.*hr\.save"):
            verb(trained)
    assert set(dense_state(trained)) == {"top.weight", "top.bias"}  # hr.save has no limit


def test_a_checkpoint_does_not_hold_rows_twice(trained: Ranker, tmp_path: Path) -> None:
    hr.save(trained, tmp_path / "a")
    (dense,) = (tmp_path / "a").glob("dense-*")
    assert dense.stat().st_size < 1000
    fresh = Ranker()
    hr.load(fresh, tmp_path / "a")
    assert rows_of(fresh) == rows_of(trained)
    assert "sparse._extra_state" in fresh.state_dict()  # the switch is off again


def test_a_frozen_model_and_its_program_carry_no_rows(trained: Ranker) -> None:
    frozen = hr.freeze(trained.sparse)
    assert not frozen.state_dict()
    ids = hr.IdBatch.from_dict({"user": IDS[:5], "item": IDS[:5]})
    program = torch.export.export(frozen, (ids,), dynamic_shapes=hr.dynamic_shapes(ids))
    assert not program.state_dict
    saved = io.BytesIO()
    torch.export.save(program, saved)
    assert saved.tell() < 100_000


def _zeros(rows: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(rows)


CHANGES = {
    "cast": lambda rows: rows.float(),
    "averaged": lambda rows: ((rows.int() + rows.roll(1).int()) // 2).to(torch.uint8),
    "cut": lambda rows: rows[:-1],
    "longer": lambda rows: torch.cat([rows, rows[:1]]),
    "zeros": _zeros,
    "empty": lambda rows: rows[:0],
    "a list": lambda rows: rows.tolist(),
    "two rows": lambda rows: rows.view(1, -1),
    "without data": lambda rows: rows.to("meta"),
    "sparse": lambda rows: rows.to_sparse(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_bytes_that_were_changed_are_refused(trained: Ranker, change: str) -> None:
    state = trained.state_dict()
    before = rows_of(trained)
    state["sparse._extra_state"] = CHANGES[change](state["sparse._extra_state"])
    with pytest.raises(CheckpointError):
        trained.load_state_dict(state)
    assert rows_of(trained) == before


def test_every_flipped_bit_is_found(trained: Ranker) -> None:
    good = trained.sparse.get_extra_state()
    before = rows_of(trained)
    at_random = torch.Generator().manual_seed(1)
    for _ in range(150):
        bad = good.clone()
        bad[int(torch.randint(len(bad), (1,), generator=at_random))] ^= 1 << int(
            torch.randint(8, (1,), generator=at_random)
        )
        with pytest.raises(CheckpointError):
            trained.sparse.set_extra_state(bad)
    assert rows_of(trained) == before


def test_tables_that_differ_are_refused_or_left_out(trained: Ranker) -> None:
    packed = trained.sparse.get_extra_state()
    other = hr.EmbeddingBags([hr.Table("user", 3)], optimizer=hr.Adam(lr=0.1))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*rows of table 'item'"):
        other.load_state_dict({"_extra_state": packed})
    other.load_state_dict({"_extra_state": packed}, strict=False)
    assert other.row_counts() == {"user": 700}
    tables = [hr.Table(name, dim) for name, dim in (("user", 3), ("item", 2), ("shop", 2))]
    third = hr.EmbeddingBags(tables, optimizer=hr.Adam(lr=0.1))
    with pytest.raises(RuntimeError, match=r"Missing key.*the rows of table 'shop'"):
        third.load_state_dict({"_extra_state": packed})
    wide = hr.EmbeddingBags([hr.Table("user", 3), hr.Table("item", 5)], optimizer=hr.Adam(lr=0.1))
    with pytest.raises(CheckpointError, match=r"dim: 2 in the checkpoint, 5"):
        wide.load_state_dict({"_extra_state": packed})
    assert sum(wide.row_counts().values()) == 0


def test_counts_of_an_admission_rule_are_carried() -> None:
    def made() -> hr.EmbeddingBags:
        table = hr.Table("user", 2, admit=hr.Count(3))
        return hr.EmbeddingBags([table], optimizer=hr.Sgd(lr=1.0))

    def see(module: nn.Module) -> None:
        ids = hr.IdBatch.from_dict({"user": torch.tensor([7])})
        module(ids)["user"].sum().backward()

    one, two = made(), made()
    see(one), see(one)
    two.load_state_dict(one.state_dict())
    assert two.row_counts() == {"user": 0}
    see(two)  # the third sighting
    assert two.row_counts() == {"user": 1}


@pytest.mark.parametrize(
    "rule", [hr.Lfu(8, half_life=16), hr.Lfu(8), hr.Lfu(8, half_life="1h"), hr.Lru(8)]
)
def test_rows_leave_in_the_same_order_after_a_load_and_in_a_copy(rule: Any) -> None:
    def made() -> hr.EmbeddingBags:
        clock = ManualClock(77)
        table = hr.Table("user", 2, evict=rule)
        return hr.EmbeddingBags([table], optimizer=hr.Sgd(lr=1.0), clock=clock)

    def see(module: nn.Module, ids: list[int]) -> None:
        module(hr.IdBatch.from_dict({"user": torch.tensor(ids)}))["user"].sum().backward()

    at_random = random.Random(0)
    one, two = made(), made()
    for _ in range(200):
        see(one, [at_random.randrange(12) for _ in range(6)])
    two.load_state_dict(one.state_dict())
    all_of_them = (one, two, copy.deepcopy(one))
    tables = [module.table("user") for module in all_of_them]
    if isinstance(rule, hr.Lfu):
        uses = [table.uses(torch.arange(12)).tolist() for table in tables]
        assert sum(uses[0]) > 0
        assert uses[0] == uses[1] == uses[2]
    for new in range(100, 105):
        for module in all_of_them:
            see(module, [new, 3, new + 1])
    assert content(tables[0]).keys() == content(tables[1]).keys() == content(tables[2]).keys()


def test_a_model_that_is_pickled_names_what_keeps_it(trained: Ranker) -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled.*use hr\.save"):
        torch.save(trained, io.BytesIO())


def test_an_empty_model_is_carried_too() -> None:
    fresh: Any = train(Ranker(), 1)
    fresh.load_state_dict(Ranker().state_dict())
    assert rows_of(fresh) == [{}, {}, {}]


def test_rows_in_two_tiers_and_in_a_file(trained: Ranker) -> None:
    with tempfile.TemporaryDirectory() as folder:
        placed = Ranker()
        hr.keep_on_disk(placed, folder, memory="300KiB", rows={"user": 10**5, "item": 9, "word": 9})
        placed.load_state_dict(trained.state_dict())
        assert rows_of(placed) == rows_of(trained)
        assert torch.equal(placed.sparse.get_extra_state(), placed.sparse.get_extra_state())
        back = Ranker()
        back.load_state_dict(placed.state_dict())
        assert rows_of(back) == rows_of(trained)
        with pytest.raises(hr.HedgerowError, match=r"not all in host memory.*hr\.save"):
            copy.deepcopy(placed)
