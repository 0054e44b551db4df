"""Alike tables on a device take a step together, and give what tables in host memory give."""

from __future__ import annotations

import pytest
import torch

from hedgerow.tables import optimizers
from hedgerow.tables.config import TableConfig
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys

from ...support import everything, table_config

NAMES: list[str] = ["a", "b", "c"]


def _configs(**rates: float) -> dict[str, TableConfig]:
    return {
        name: table_config(
            optimizers.Adagrad(lr=rates.get(name, 0.1)), dim=3, name=name, not_finite="drop"
        )
        for name in NAMES
    }


def _keys(step: int, device: torch.device) -> TableKeys:
    """Ids that all tables have; the last table is not asked in every step."""
    random = torch.Generator().manual_seed(step)
    sizes = (0, 12, 30, 30 + 8 * (step % 2))
    ids = torch.randint(-9, 9, (sizes[-1],), generator=random)
    return TableKeys(ids.to(device), sizes)


def _same(ours: DeviceTables, host: HostTables) -> None:
    for k in range(len(NAMES)):
        assert everything(ours.table(k)) == everything(host.table(k))
        for count in ("inserted", "refused", "dropped"):
            assert ours.table(k).stats()[count] == host.table(k).stats().get(count, 0)
        assert ours.table(k).max_ts() == host.table(k).max_ts()


@pytest.mark.parametrize("rates", [{}, {"b": 0.3}])
def test_alike_tables_step_together_until_one_leaves(
    device: torch.device, rates: dict[str, float]
) -> None:
    room = dict.fromkeys(NAMES, 40)
    ours = DeviceTables(_configs(**rates), device=device, capacity_rows=room)
    host = HostTables(_configs(**rates))
    assert ours._group is not None
    for step in range(4):
        if step == 3:
            assert ours._group.whole()
            ours._on_device(1).reserve(100)
            assert not ours._group.whole()
        keys, asked = _keys(step, device), _keys(step, torch.device("cpu"))
        found, wanted = (
            store.lookup(own, missing="initializer") for store, own in ((ours, keys), (host, asked))
        )
        assert torch.equal(found.rows.cpu(), wanted.rows)
        grads = torch.randn(len(wanted.rows), generator=torch.Generator().manual_seed(step))
        grads[5 * (step == 1)] = torch.inf
        done = ours.apply_gradients(found if step else keys, grads.to(device), ts=10 + step)
        assert repr(done) == repr(host.apply_gradients(asked, grads, ts=10 + step))
        assert ours.contains(keys).tolist() == host.contains(asked).tolist()
    _same(ours, host)


def test_tables_that_differ_or_grow_are_for_themselves(device: torch.device) -> None:
    other = {**_configs(), "c": table_config(optimizers.Sgd(lr=0.1), dim=3, name="c")}
    assert DeviceTables(other, device=device, capacity_rows=dict.fromkeys(NAMES, 9))._group is None
    assert DeviceTables(_configs(), device=device)._group is None
