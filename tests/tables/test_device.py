"""The table on a device has the rows of the host table, to the bit, and never waits in a step.

Runs in Triton's interpreter, or on a GPU where there is one; against the C++ core, or against its
plain twin where that is not built.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import ConfigError, InputError, NotFiniteError
from hedgerow.kernels.layout import EMPTY, ERASED, TAKEN
from hedgerow.tables import compressors, initializers, monolith_rules, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.host import HostTable
from hedgerow.tables.optimizers import Polynomial
from hedgerow.tables.store import TableKeys

from ..support import EXTREME_IDS, everything, host_table, table_config
from ..waiting import without_waiting
from .device_pair import Pair

NOT_FINITE = (float("nan"), float("inf"), -float("inf"))


def _config(dim: int = 5, **settings: Any) -> TableConfig:
    sgd = optimizers.Sgd(lr=0.1, weight_decay=0.01)
    return table_config(sgd, dim=dim, **{"not_finite": "drop", **settings})


@pytest.fixture
def table(device: torch.device) -> DeviceTable:
    return DeviceTable(_config(), capacity_rows=64, device=device)


def _batch(random: np.random.Generator, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    pool = torch.tensor(
        [*EXTREME_IDS, EMPTY, ERASED, TAKEN, *range(2, 25), *(k << 33 for k in range(30))]
    )
    n = int(random.integers(0, 40))
    rows = random.normal(size=(n, dim)) * 2.0 ** random.integers(-20, 20, (n, dim))
    if n and random.random() < 0.3:
        rows[random.integers(n), random.integers(dim)] = random.choice(NOT_FINITE)
    return pool[random.integers(0, len(pool), n)], torch.from_numpy(rows.astype(np.float32))


def _several(*segments: Segment) -> TableConfig:
    return TableConfig("several", segments, not_finite="drop")


CONFIGS = {
    "adagrad": table_config(optimizers.Adagrad(weight_decay=0.1), dim=64, not_finite="drop"),
    "three segments": _several(
        Segment(1, initializers.Uniform(0.3), optimizers.Ftrl(l1=0.01)),
        Segment(2, initializers.Normal(0.1), optimizers.Momentum(nesterov=True)),
        Segment(5, initializers.Constant(0.5), optimizers.RmsProp(momentum=0.5)),
    ),
    "Monolith's": _several(
        Segment(3, initializers.Uniform(0.3), monolith_rules.MonolithAdam(learning_rate=0.1)),
        Segment(
            4,
            initializers.Uniform(0.2),
            monolith_rules.MonolithRmsProp(learning_rate=0.1, momentum=0.9),
        ),
        Segment(
            2,
            initializers.Zeros(),
            monolith_rules.MonolithMomentum(learning_rate=0.1, momentum=0.9),
        ),
    ),
    "adamw": table_config(
        optimizers.AdamW(), dim=9, init=initializers.Normal(0.1), not_finite="drop"
    ),
}
LONG_CONFIGS = {
    "sgd": _config(33),
    "adam": table_config(optimizers.Adam(), dim=3, not_finite="drop"),
}


@pytest.mark.parametrize(
    "name", [*CONFIGS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG_CONFIGS)]
)
def test_any_sequence_of_operations_gives_the_rows_of_the_host_table(
    device: torch.device, name: str
) -> None:
    random = np.random.default_rng(len(name))
    config = {**CONFIGS, **LONG_CONFIGS}[name]
    dim = config.dim
    pair = Pair(config, capacity_rows=112, device=device)
    for ts in range(5):
        ids, rows = _batch(random, dim)
        pair.lookup(ids, random.choice(["zeros", "initializer"]))
        if random.random() < 0.7:
            pair.apply(ids, rows, ts, probe_first=random.random() < 0.5)
        else:
            pair.assign(ids, rows, ts)
        pair.erase(ids[:: int(random.integers(2, 9))].contiguous())
    pair.same()


def test_ids_without_room_are_refused_and_counted_and_the_others_learn(
    device: torch.device,
) -> None:
    pair = Pair(_config(), capacity_rows=32, device=device)
    ids = torch.arange(60).repeat(2)
    refused = 0
    for ts in range(2):
        grads = torch.full((120, 5), 1.0 + ts)
        ours = pair.device.apply_gradients(ids.to(device), grads.to(device), ts=ts)
        pair.host.apply_gradients(ids, grads, ts=ts)
        assert ours.inserted + (pair.device.size() if ts else 0) + ours.refused == 60
        refused += ours.refused
    rows, model = everything(pair.device), everything(pair.host)
    assert 28 <= len(rows) == pair.device.size() <= 32
    assert all(model[id_] == row for id_, row in rows.items())
    assert pair.device.stats()["refused"] == refused
    absent = [k for k in range(60) if k not in rows]
    assert not bool(pair.device.contains(torch.tensor(absent, device=device)).any())


def test_a_lookup_of_earlier_still_tells_where_rows_are(table: DeviceTable) -> None:
    """Ids that were absent then may have been born since; another table's slots mean nothing."""
    ids = torch.tensor([1, 2, 3], device=table.device)
    earlier = table.lookup(ids)
    assert earlier.slots is not None
    assert earlier.slots.tolist() == [-1, -1, -1]
    table.apply_gradients(ids[1:], torch.ones(2, 5, device=table.device))
    assert table.apply_gradients(earlier, torch.ones(15, device=table.device)).inserted == 1
    other = DeviceTable(table.config, capacity_rows=4000, device=table.device)
    other.assign(torch.arange(40, device=table.device), torch.ones(40, 5, device=table.device))
    before = table.lookup(ids).rows_of()
    table.apply_gradients(other.lookup(ids), torch.ones(3, 5, device=table.device))
    assert torch.allclose(table.lookup(ids).rows_of(), before - 0.1 * (1 + 0.01 * before))


def test_room_behind_the_keys_is_neither_read_nor_written(table: DeviceTable) -> None:
    ids = torch.tensor([7, 8, 7, 9, 7], device=table.device)
    keys = TableKeys(ids, (0, 5), torch.tensor([3], device=table.device))
    rows = torch.ones(5, 5, device=table.device)
    first = table.lookup(keys, missing="initializer")
    assert bool((first.rows_of()[:3] != 0).all())
    assert not bool(first.rows_of()[3:].any())
    assert table.apply_gradients(keys, rows).inserted == 2
    assert table.contains(keys).tolist() == [True, True, True, False, False]
    assert table.contains(keys.ids).tolist() == [True, True, True, False, True]
    rows[2:] = torch.tensor([2.0, float("nan"), 3.0], device=table.device)[:, None]
    assert repr(table.assign(keys, rows)) == "Applied(inserted=0, refused=0, dropped=0)"
    assert table.entries(ids).rows[:, 0].tolist() == [2.0, 1.0, 2.0, 0.0, 2.0]
    strict = DeviceTable(_config(not_finite="reject"), capacity_rows=64, device=table.device)
    assert strict.assign(keys, rows).inserted == 2
    assert keys.exact().ids.tolist() == [7, 8, 7]
    beyond = TableKeys(keys.ids, keys.splits, torch.tensor([99]))
    assert beyond.exact().splits == (0, len(keys.ids))


def test_rows_that_are_not_finite_are_rejected_where_the_table_says_so(
    device: torch.device,
) -> None:
    table = DeviceTable(_config(not_finite="reject"), capacity_rows=16, device=device)
    rows = torch.ones(2, 5, device=device)
    rows[1, 3] = float("nan")
    with pytest.raises(NotFiniteError, match=r"rows\[1\]"):
        table.assign(torch.tensor([1, 2], device=device), rows)
    assert table.size() == 0
    done = table.apply_gradients(torch.tensor([1, 2], device=device), rows)
    assert repr(done) == "Applied(inserted=1, refused=0, dropped=1)"  # it does not wait to raise


def test_rates_come_from_the_call_the_schedule_or_the_optimizer(device: torch.device) -> None:
    zeros = initializers.Zeros()
    config = table_config(optimizers.Sgd(lr=Polynomial(1.0, 10, 0.0)), dim=1, init=zeros)
    table = DeviceTable(config, capacity_rows=16, device=device)
    ids, grads = torch.tensor([4], device=device), torch.ones(1, 1, device=device)
    with pytest.raises(InputError, match="pass step="):
        table.apply_gradients(ids, grads)
    table.apply_gradients(ids, grads, step=5)
    assert table.lookup(ids).rows.tolist() == [-0.5]
    table.apply_gradients(ids, grads, rates=[2.0])
    assert table.lookup(ids).rows.tolist() == [-2.5]


@pytest.mark.parametrize(
    "config",
    [
        TableConfig("serving", (Segment(4, compressor=compressors.Fp16()),), serving=True),
        table_config(optimizers.AmsGrad()),
        table_config(compressor=compressors.FixedR8()),
        table_config(stochastic_rounding_float16=True),
        table_config(dim=2000),
    ],
    ids=["serving", "amsgrad", "fixed_r8", "rounding", "wide"],
)
def test_what_a_device_does_not_offer_is_refused(config: TableConfig, device: torch.device) -> None:
    with pytest.raises(ConfigError, match="cannot live on a device:"):
        DeviceTable(config, capacity_rows=16, device=device)


def test_wrong_arguments_are_refused(table: DeviceTable) -> None:
    ids, rows = torch.tensor([1, 2], device=table.device), torch.ones(2, 5, device=table.device)
    for call in (
        lambda: table.lookup(ids.to("meta")),
        lambda: table.lookup(ids, missing="nothing"),  # pyright: ignore[reportArgumentType]
        lambda: table.lookup(ids, out=torch.empty(2, 4, device=table.device)),
        lambda: table.lookup(TableKeys(ids, (0, 1, 2))),
        lambda: table.apply_gradients(ids, rows[:1]),
        lambda: table.apply_gradients(ids, rows.T.contiguous().T),
        lambda: table.apply_gradients(ids, rows, ts=-1),
        lambda: table.apply_gradients(ids, rows, counts=ids[:1]),
        lambda: table.assign(ids, rows.to("meta")),
        lambda: DeviceTable(_config(), capacity_rows=0, device=table.device),
        lambda: DeviceTable(_config(), capacity_rows=2**31, device=table.device),
    ):
        with pytest.raises((InputError, ConfigError)):
            call()
    assert table.size() == 0


def test_empty_batches_do_nothing(table: DeviceTable) -> None:
    none = torch.empty(0, dtype=torch.int64, device=table.device)
    rows = torch.empty(0, 5, device=table.device)
    assert table.lookup(none).rows_of().shape == (0, 5)
    assert table.apply_gradients(none, rows).inserted == table.assign(none, rows).inserted == 0
    assert list(table.scan()) == []
    assert len(table.entries(none)) == len(table) == 0


def test_a_step_never_waits_for_the_device(table: DeviceTable) -> None:
    ids = torch.tensor([5, 6, 5, -1], device=table.device)
    keys = TableKeys(ids, (0, 4), torch.tensor([3], device=table.device))
    grads = torch.ones(4, 5, device=table.device)
    with without_waiting(table.device):
        found = table.lookup(keys, missing="initializer")
        done = table.apply_gradients(found, grads, ts=3)
        again = table.apply_gradients(ids, grads, ts=4)
    assert (done.inserted, again.inserted, table.size()) == (2, 1, 3)
    with pytest.raises((AssertionError, RuntimeError)), without_waiting(table.device):
        done.inserted  # noqa: B018


def test_a_host_table_does_not_take_what_is_on_a_device(device: torch.device) -> None:
    if device.type == "cpu":
        device = torch.device("meta")
    host: HostTable = host_table(_config())
    with pytest.raises(InputError, match="CPU"):
        host.lookup(torch.tensor([1], device=device))


def test_keys_that_differ_and_times_that_begin_late_give_the_rows_of_the_host(
    device: torch.device,
) -> None:
    config = CONFIGS["adagrad"]
    ours, host = DeviceTable(config, capacity_rows=64, device=device), HostTable(config)
    random = np.random.default_rng(3)
    for ts in (0, 0, 7, 0, 3):
        ids = torch.from_numpy(random.permutation(24)[:16])
        grads = torch.from_numpy(random.normal(size=(16, 64)).astype(np.float32))
        keys = TableKeys(ids.to(device), (0, 16), distinct=True)
        ours.apply_gradients(keys, grads.to(device), ts=ts)
        host.apply_gradients(TableKeys(ids, (0, 16), distinct=True), grads, ts=ts)
        mine, theirs = ours.entries(torch.arange(24, device=device)), host.entries(torch.arange(24))
        assert torch.equal(mine.ts.cpu(), theirs.ts)
        assert torch.equal(mine.rows.cpu(), theirs.rows)
    assert set(theirs.ts.tolist()) > {0, 3}
