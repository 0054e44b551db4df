"""A model on disk: whole or not there, and the same bits when it comes back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import CheckpointError, InputError
from hedgerow.tables.checkpoint import save

BATCH = hr.IdBatch.from_lists({"user": [[7], [8], []], "item": [[1, 2], [], [2]]})


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sparse = hr.EmbeddingBags(
            [hr.Table("user", 3), hr.Table("item", 3)],
            init=hr.Uniform(0.1),
            optimizer=hr.Adam(lr=0.1),
        )
        self.top = nn.Linear(6, 1)

    def forward(self, batch: hr.IdBatch) -> torch.Tensor:
        return self.top(torch.cat(list(self.sparse(batch).values()), 1))


def _train(model: _Model, optimizer: torch.optim.Optimizer, steps: int) -> float:
    loss = torch.zeros(())
    for _ in range(steps):
        loss = (model(BATCH) - 1).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_a_model_that_was_saved_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    _train(model, optimizer, 3)
    hr.save(model, tmp_path / "a", optimizer=optimizer, step=3, metadata={"epoch": 1})
    went_on = _train(model, optimizer, 4)

    fresh = _Model()
    fresh_optimizer = torch.optim.Adam(fresh.parameters(), lr=0.01)
    loaded = hr.load(fresh, tmp_path / "a", optimizer=fresh_optimizer)
    assert (loaded.step, fresh.sparse.updates.step) == (3, 3)
    assert _train(fresh, fresh_optimizer, 4) == went_on
    hr.save(fresh, tmp_path / "a", overwrite=True)
    assert len(list((tmp_path / "a").glob("dense-*"))) == 1


def test_a_damaged_or_foreign_checkpoint_changes_nothing(tmp_path: Path) -> None:
    model = _Model()
    hr.save(model, tmp_path / "a")
    (dense,) = (tmp_path / "a").glob("dense-*")
    before = model.top.weight.detach().clone()

    class Wider(_Model):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(6, 2)

    with pytest.raises(CheckpointError, match="does not fit"):
        hr.load(Wider(), tmp_path / "a")
    dense.write_bytes(dense.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="damaged"):
        hr.load(model, tmp_path / "a")
    assert torch.equal(model.top.weight, before)


_KILLED = """
import os, sys
from hedgerow import save
from hedgerow.tables.checkpoint import writer
from tests.nn.test_saving import _Model
writer.write_manifest = lambda *_, **__: os._exit(9)
save(_Model(), sys.argv[1], step=2, overwrite=True)
"""


def test_a_kill_between_the_files_and_the_manifest_leaves_the_old_checkpoint(
    tmp_path: Path,
) -> None:
    model = _Model()
    hr.save(model, tmp_path / "a", step=1)
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "a")])
    assert killed.returncode == 9
    assert len(list((tmp_path / "a").glob("dense-*"))) == 2
    assert hr.load(_Model(), tmp_path / "a").step == 1
    hr.save(model, tmp_path / "a", step=3, overwrite=True)
    assert len(list((tmp_path / "a").glob("dense-*"))) == 1
    assert hr.load(_Model(), tmp_path / "a").step == 3


class _Counting:
    """Anything with a state."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


@pytest.mark.parametrize("metadata", [{1: "a", "1": "b"}, {"x": [{None: 1, "null": 2}]}])
def test_metadata_that_no_load_takes_replaces_no_checkpoint(
    tmp_path: Path, metadata: dict[Any, Any]
) -> None:
    """JSON has no other keys than strings: two that differ may become one."""

    def model() -> nn.Module:
        return nn.Sequential(hr.EmbeddingBags([hr.Table("user", 2)]), nn.Linear(2, 1))

    hr.save(model(), tmp_path / "a", step=1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    with pytest.raises(InputError, match="a key occurs twice"):
        hr.save(model(), tmp_path / "a", step=2, metadata=metadata, overwrite=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    assert hr.load(model(), tmp_path / "a").step == 1


def test_extras_come_back_as_they_were(tmp_path: Path) -> None:
    model, one, two = _Model(), _Counting(), _Counting()
    one.state = {
        "best": float("inf"),
        "pairs": [(1, None), (2.5, True)],
        3: {"hist": torch.arange(5), "empty": torch.empty(0, 2), "scalar": torch.tensor(1.5)},
    }
    hr.save(model, tmp_path / "a", extras={"one": one})
    hr.load(model, tmp_path / "a", extras={"one": two})
    assert two.state["best"] == float("inf")
    assert two.state["pairs"] == [(1, None), (2.5, True)]
    for name, tensor in one.state[3].items():
        assert torch.equal(two.state[3][name], tensor)
        assert two.state[3][name].dtype == tensor.dtype
    hr.load(_Model(), tmp_path / "a")  # the model alone


def test_names_of_extras_may_begin_with_others(tmp_path: Path) -> None:
    model, one, two = _Model(), _Counting(), _Counting()
    one.state, two.state = {"a": torch.ones(2)}, {"a": torch.zeros(3), "b": torch.ones(1)}
    hr.save(model, tmp_path / "a", extras={"one": one, "one.0": two})
    others = {"one": _Counting(), "one.0": _Counting()}
    hr.load(model, tmp_path / "a", extras=others)
    assert torch.equal(others["one"].state["a"], torch.ones(2))
    assert torch.equal(others["one.0"].state["b"], torch.ones(1))


def test_ctrl_c_after_the_manifest_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, clean_after = _Model(), save.clean_after
    hr.save(model, tmp_path / "a", step=1)

    def interrupted(*args: Any) -> None:
        clean_after(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(save, "clean_after", interrupted)
    for name, step in (("a", 2), ("b", 3)):
        with pytest.raises(KeyboardInterrupt):
            hr.save(model, tmp_path / name, step=step, overwrite=True)
        assert hr.load(_Model(), tmp_path / name).step == step


def test_extras_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model, one = _Model(), _Counting()
    one.state = {"bad": [object()]}
    with pytest.raises(hr.HedgerowError, match=r"extra.one\['bad'\]\[0\] is a object"):
        hr.save(model, tmp_path / "a", extras={"one": one})
    assert not (tmp_path / "a").exists()
    hr.save(model, tmp_path / "a")
    with pytest.raises(CheckpointError, match="without extras: one"):
        hr.load(model, tmp_path / "a", extras={"one": one})
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(CheckpointError, match="without optimizer"):
        hr.load(model, tmp_path / "a", optimizer=optimizer)
