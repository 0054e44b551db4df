"""`hr.save`, `hr.save_async`, `hr.save_increment` and `hr.load` take models and tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import DtypeError, InputError, NotSupportedError, UnknownNameError
from tests.support import make_table


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = hr.EmbeddingBags([hr.Table("user", 2)], seed=1)
        self.top = nn.Linear(2, 1)

    def step(self, ids: list[int]) -> None:
        batch = hr.IdBatch.from_lists({"user": [[i] for i in ids]})
        self.top(self.bags(batch)["user"]).sum().backward()


def test_a_save_beside_training_holds_the_state_when_it_began(tmp_path: Path) -> None:
    model = _Model()
    model.step([1, 2, 3])
    weight = model.top.weight.detach().clone()
    handle = hr.save_async(model, tmp_path / "a", step=5, metadata={"epoch": 1})
    with torch.no_grad():
        model.top.weight.add_(1.0)
    model.step([4, 5])
    handle.wait(60)
    fresh = _Model()
    assert hr.load(fresh, tmp_path / "a").step == 5
    assert fresh.bags.row_counts() == {"user": 3}
    assert torch.equal(fresh.top.weight, weight)


def test_one_table_and_several_tables(tmp_path: Path) -> None:
    one, two = make_table(name="one"), make_table(name="two")
    for table in (one, two):
        table.assign(torch.arange(5), torch.ones(5, table.config.dim))
    hr.save(one, tmp_path / "one", consumer=None)
    hr.save_async([one, two], tmp_path / "both").wait(60)
    one.erase(torch.tensor([0]))
    hr.save_increment(one, tmp_path / "one", {"one": torch.tensor([0])})
    fresh = make_table(name="one")
    assert hr.load(fresh, tmp_path / "one").rows == {"one": 4}
    assert hr.load([make_table(name="two")], tmp_path / "both").rows == {"two": 5}


def test_options_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    model, table = _Model(), make_table()
    with pytest.raises(InputError, match="save of a model takes no consumer; tables do"):
        hr.save(model, tmp_path, consumer="saves")  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match="load of a model takes no merge; tables do"):
        hr.load(model, tmp_path, merge=True)  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match="save_async of tables takes no extras; a model does"):
        hr.save_async(table, tmp_path, extras={})
    with pytest.raises(InputError, match="load of tables takes no trusted; a model does"):
        hr.load(table, tmp_path, trusted=True)  # pyright: ignore[reportCallIssue]
    with pytest.raises(NotSupportedError, match="save_increment of a model; save the whole model"):
        hr.save_increment(model, tmp_path)  # pyright: ignore[reportArgumentType]


def test_arguments_in_the_order_of_0_1_are_named(tmp_path: Path) -> None:
    path: object = str(tmp_path)
    with pytest.raises(DtypeError, match="the model or the tables come first, then the folder"):
        hr.load(path, [make_table()])  # pyright: ignore[reportArgumentType]
    with pytest.raises(DtypeError, match="save of a int; pass a model, a table or a list"):
        hr.save(7, tmp_path)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_lists_of_other_things_and_unknown_options_are_refused(tmp_path: Path) -> None:
    table, model = make_table(), _Model()
    stranger: object
    for stranger in ([model], {"x": table}, [table, "other"], [nn.Linear(1, 1)]):
        with pytest.raises(DtypeError, match=r"list with a (_Model|str|Linear); pass one"):
            hr.save(stranger, tmp_path)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(UnknownNameError, match="optimizerr"):
        hr.save(table, tmp_path, optimizerr=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(UnknownNameError, match="report"):
        hr.save_async(table, tmp_path, report=print)
    hr.save((t for t in [table]), tmp_path / "of a generator")
    assert not any(p.name != "of a generator" for p in tmp_path.iterdir())


def test_errors_of_saves_name_calls_that_exist(tmp_path: Path) -> None:
    table, model = make_table(), _Model()
    hr.save(table, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"use hr\.load\(\[table, \.\.\.\], path\)"):
        hr.load(model, tmp_path)
    table.consumer("c")
    with pytest.raises(ValueError, match=r"hr\.save\(\[table, \.\.\.\], path, consumer='c'\)"):
        hr.save_increment(table, tmp_path, consumer="c")
