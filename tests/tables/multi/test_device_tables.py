"""Steps of several tables on a device, as one: what one of them refuses changes none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow.core.errors import InputError
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Uniform, Zeros
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.optimizers import Adagrad, Sgd
from hedgerow.tables.store import TableKeys


def _bad_rate(step: int) -> float:
    return -1.0


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"rates": [0.1, 0.2, _bad_rate], "step": 1},
        {"rates": [0.1, 0.2, lambda step: 0.1]},  # which needs a step
        {"rates": [0.1, 0.1, _bad_rate], "step": 1},
        {"counts": torch.ones(5, dtype=torch.int64)},
    ],
)
def test_a_step_that_one_table_refuses_changes_none(
    device: torch.device, settings: dict[str, Any], watched: bool
) -> None:
    segment = (Segment(2, Zeros(), Sgd(lr=1.0)),)
    configs = {name: TableConfig(name, segment) for name in "abc"}
    store = DeviceTables(configs, device=device, capacity_rows=dict.fromkeys(configs, 40))
    if watched:  # then each table steps for itself
        store.table(2).touched("me")
    keys = TableKeys(torch.arange(6, device=device), (0, 2, 4, 6))
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in settings.items()}
    with pytest.raises(InputError):
        store.apply_gradients(keys, torch.ones(12, device=device), **given)
    assert [table.size() for table in store.tables] == [0, 0, 0]


def test_one_table_alone_steps_as_in_host_memory(device: torch.device) -> None:
    """A group of one: with equal ids, empty batches, and room behind the keys."""
    config = TableConfig("only", (Segment(3, Uniform(0.5), Adagrad(lr=0.1)),))
    ours = DeviceTables({"only": config}, device=device, capacity_rows={"only": 200})
    assert ours._group is not None
    model = HostTables({"only": config})
    random = torch.Generator().manual_seed(1)
    for turn in range(12):
        n = (0, 1, 17, 40)[turn % 4]
        ids = torch.randint(-20, 20, (n,), generator=random)
        grads = torch.randn(n * 3, generator=random)
        keys = TableKeys(ids, (0, n))
        there = TableKeys(ids.to(device), (0, n))
        if turn % 3 == 2:  # with room behind them
            ids = torch.cat([ids, ids.new_full((5,), 7)])
            used = torch.tensor([n], device=device)
            there = TableKeys(ids.to(device), (0, n + 5), used)
            grads_there = torch.cat([grads, torch.full((15,), 9.0)]).to(device)
        else:
            grads_there = grads.to(device)
        found = ours.lookup(there, missing="training")
        wanted = model.lookup(keys, missing="training").rows
        assert torch.equal(found.rows.cpu()[: 3 * n], wanted)
        done = ours.apply_gradients(found, grads_there, ts=turn)
        assert repr(done) == repr(model.apply_gradients(keys, grads, ts=turn))
    every = torch.arange(-20, 20)
    for name in ("rows", "ts", "found"):
        one, two = (
            getattr(store.table(0).entries(every.to(at)), name).cpu()
            for store, at in ((ours, device), (model, torch.device("cpu")))
        )
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
