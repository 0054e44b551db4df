"""A model whose tables are on a device is saved and loaded like any other, and elsewhere."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock

from ..support import everything

pytest.importorskip("pyarrow")


def _model(device: torch.device | None = None) -> hr.EmbeddingBags:
    tables = [
        hr.Table("user", 3, optimizer=hr.Adam(lr=0.1)),
        hr.Table("item", 2, optimizer=hr.Adagrad(lr=0.1)),
    ]
    model = hr.EmbeddingBags(tables, seed=3, clock=ManualClock(1000))
    if device is not None:
        model.place(device, capacity_rows={"user": 64, "item": 64})
    return model


def _trained(device: torch.device) -> hr.EmbeddingBags:
    model = _model(device)
    for table in ("user", "item"):
        ids = torch.arange(-3, 12, device=device)
        rows = model.table(table)
        dim = rows.config.dim
        for ts in (5, 6):
            rows.apply_gradients(ids, torch.randn(len(ids), dim, device=device), ts=ts)
    return model


def test_a_model_goes_to_disk_and_to_either_kind_of_tables(
    device: torch.device, tmp_path: Path
) -> None:
    ours = _trained(device)
    hr.save(ours, tmp_path / "a", step=7)
    wanted = {name: everything(ours.table(name)) for name in ("user", "item")}
    for other in (_model(), _model(device)):
        loaded = hr.load(other, tmp_path / "a")
        assert (loaded.step, loaded.rows) == (7, {"item": 15, "user": 15})
        assert {name: everything(other.table(name)) for name in wanted} == wanted


def test_a_model_on_a_device_tells_what_it_holds(device: torch.device) -> None:
    ours = _trained(device)
    told = hr.stats(ours)
    assert told["user"]["rows"] == told["item"]["inserted"] == 15
    assert "user" in hr.summary(ours)
    assert "30 rows" in hr.summary(ours)


def test_a_state_dict_carries_rows_to_either_kind_of_tables(device: torch.device) -> None:
    ours = _trained(device)
    state = ours.state_dict()
    assert state["_extra_state"].device.type == "cpu"
    wanted = {name: everything(ours.table(name)) for name in ("user", "item")}
    for other in (_model(), _model(device)):
        other.load_state_dict(state)
        assert {name: everything(other.table(name)) for name in wanted} == wanted
    with pytest.raises(hr.HedgerowError, match=r"not all in host memory.*hr\.save"):
        copy.deepcopy(ours)
