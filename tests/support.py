"""What several test files share: tables, their plain twins, and configurations of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor

from hedgerow import native
from hedgerow.tables import (
    admission,
    compressors,
    host_core,
    initializers,
    layout,
    monolith_rules,
    optimizers,
)
from hedgerow.tables.compressors import Compressor
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Initializer
from hedgerow.tables.optimizers import Optimizer
from hedgerow.tables.store import Entries
from tests.twins import native_core

if TYPE_CHECKING:
    from hedgerow.tables.device import DeviceTable

EXTREME_IDS = [0, -1, 1, -(2**63), 2**63 - 1]

OPTIMIZERS: list[Optimizer] = [
    optimizers.Sgd(lr=0.1, weight_decay=0.01),
    optimizers.Momentum(lr=0.1, nesterov=True, weight_decay=0.01),
    optimizers.Adagrad(lr=0.1),
    optimizers.RowAdagrad(lr=0.1, weight_decay=0.02),
    optimizers.RowAdagrad(lr=0.1),
    optimizers.Adam(lr=0.1, weight_decay=0.01),
    optimizers.AmsGrad(lr=0.1),
    optimizers.AdamW(lr=0.1),
    optimizers.RmsProp(lr=0.1),
    optimizers.RmsProp(lr=0.1, momentum=0.5),
    optimizers.Ftrl(lr=0.1, l1=0.05, l2=0.1, beta=1.0),
    monolith_rules.MonolithSgd(),
    monolith_rules.MonolithMomentum(weight_decay_factor=0.01),
    monolith_rules.MonolithMomentum(use_nesterov=True),
    monolith_rules.MonolithAdagrad(weight_decay_factor=0.02),
    monolith_rules.DynamicWdAdagrad(decouple_weight_decay=True, weight_decay_factor=0.1),
    monolith_rules.Adadelta(),
    monolith_rules.MonolithAdam(use_nesterov=True),
    monolith_rules.MonolithAmsGrad(weight_decay_factor=0.01),
    monolith_rules.GroupFtrl(l1_regularization_strength=0.3),
    monolith_rules.GroupAdagrad(l2_regularization_strength=0.1, beta=0.5),
    monolith_rules.MovingAverage(),
    monolith_rules.MonolithRmsProp(),
    monolith_rules.RmsPropV2(),
]


def table_config(
    optimizer: Optimizer | None = None,
    dim: int = 4,
    init: Initializer | None = None,
    compressor: Compressor | None = None,
    **settings: Any,
) -> TableConfig:
    segment = Segment(
        dim,
        init or initializers.Uniform(0.3),
        optimizer or optimizers.Sgd(lr=0.1),
        compressor,
        settings.pop("stochastic_rounding_float16", False),
    )
    return TableConfig(settings.pop("name", "test"), (segment,), **{"seed": 7, **settings})


def make_table(*args: Any, **kwargs: Any) -> HostTable:
    return HostTable(table_config(*args, **kwargs))


def twin_of(cfg: TableConfig, **settings: Any) -> HostTable:
    """A `HostTable` over the plain twin of the core instead of the core."""
    with contextmanager(_reference_core)():
        return HostTable(cfg, **settings)


def host_table(cfg: TableConfig, **settings: Any) -> HostTable:
    """Over the C++ core, or over its plain twin where the core is not built (use "drop" there)."""
    try:
        return HostTable(cfg, **settings)
    except ImportError:
        return twin_of(cfg, **settings)


def _reference_core() -> Iterator[None]:
    with (
        mock.patch.object(host_core, "native", native_core),
        mock.patch.object(layout, "native", native_core),
        mock.patch.object(compressors, "native", native_core),
        mock.patch.object(admission, "native", native_core),
        mock.patch.object(admission, "native", native_core),
        mock.patch.object(monolith_rules, "native", native_core),
    ):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = native.threads()
    native.set_threads(count)
    try:
        yield
    finally:
        native.set_threads(before)


@contextmanager
def isa(name: str) -> Iterator[None]:
    native.set_isa(name)
    try:
        yield
    finally:
        native.set_isa("fastest")


def everything(table: HostTable | DeviceTable) -> dict[int, tuple[Any, ...]]:
    """All rows by id: bits of row and states, and time."""
    found: dict[int, tuple[Any, ...]] = {}
    for part in table.scan(1000):
        states = [(name, v) for segment in part.states for name, v in sorted(segment.items())]
        for i, key in enumerate(part.ids.tolist()):
            assert key not in found, f"id {key} was scanned twice"
            found[key] = (
                bits(part.rows[i]),
                [(name, v[i].tolist()) for name, v in states],
                int(part.ts[i]),
            )
    return found


def bits(rows: Tensor) -> list[int]:
    return rows.contiguous().view(torch.int32).flatten().tolist()


def entries_of(table: HostTable) -> Entries:
    (part,) = table.scan(10**6)
    return part
