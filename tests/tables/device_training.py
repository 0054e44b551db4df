"""The same training on a host table and on a device table: lookups, gradients, updates."""

from __future__ import annotations

import torch

from hedgerow.tables import initializers, monolith_rules, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.optimizers import Optimizer
from hedgerow.tables.store import Lookup

from ..support import everything, host_table

SEVEN: dict[str, Optimizer] = {
    "sgd": optimizers.Sgd(lr=0.05, weight_decay=0.01),
    "momentum": optimizers.Momentum(lr=0.05, nesterov=True),
    "adagrad": optimizers.Adagrad(lr=0.1),
    "row-wise adagrad": optimizers.RowAdagrad(lr=0.1),
    "adam": optimizers.Adam(lr=0.01),
    "ftrl": optimizers.Ftrl(lr=0.1, l1=0.01, l2=0.1, beta=1.0),
    "rmsprop": optimizers.RmsProp(lr=0.01),
}
OF_MONOLITH: dict[str, Optimizer] = {
    "Monolith's momentum": monolith_rules.MonolithMomentum(learning_rate=0.05),
    "Monolith's adam": monolith_rules.MonolithAdam(learning_rate=0.01),
    "Monolith's rmsprop": monolith_rules.MonolithRmsProp(learning_rate=0.01),
}


def train_both(
    optimizer: Optimizer, device: torch.device, *, steps: int, batch: int, ids: int, dim: int
) -> tuple[DeviceTable, list[float]]:
    """Trains rows to fit numbers of their ids, on both; the device table, and both last losses.

    What each table gives makes its own gradients: a difference would grow from step to step.
    """
    segment = Segment(dim, initializers.Uniform(0.1), optimizer)
    config = TableConfig("trained", (segment,), not_finite="drop")
    ours = DeviceTable(config, capacity_rows=2 * ids, device=device)
    model, random = host_table(config), torch.Generator().manual_seed(1)
    target = torch.randn(ids, dim, generator=random)
    losses = [0.0, 0.0]
    for step in range(steps):
        # Squares of uniform numbers: some ids come often, none more than 256 times.
        chosen = (torch.rand(batch, generator=random) ** 2 * ids).long()
        keys = chosen * 0x9E3779B97F4A7C1 - 5
        for k, table in enumerate((ours, model)):
            where = device if table is ours else torch.device("cpu")
            found = table.lookup(keys.to(where), missing="training")
            error = found.rows_of() - target[chosen].to(where)
            losses[k] = float((error.cpu() ** 2).mean())
            at: Lookup = found
            table.apply_gradients(at, 2 * error / dim, step=step, ts=step)
    got, wanted = everything(ours), everything(model)
    assert got.keys() == wanted.keys()
    if not isinstance(optimizer, optimizers.RowAdagrad):  # its sums over a row differ in order
        assert got == wanted
    rows, other = (
        torch.tensor([x[key][0] for key in sorted(x)], dtype=torch.int32).view(torch.float32)
        for x in (got, wanted)
    )
    torch.testing.assert_close(rows, other, rtol=1e-4, atol=1e-5)
    assert [got[key][2] for key in got] == [wanted[key][2] for key in got]
    return ours, losses
