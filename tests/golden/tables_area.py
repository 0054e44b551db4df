"""The area `tables`: what its files share, and how its numbers compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Constant
from hedgerow.tables.optimizers import Optimizer

from .runner import Area

AREA = Area(
    "tables",
    file_values={
        "optimizers": {"kind", "note"},
        "torch_optimizers": {"kind", "compare"},
        "initializers": {"kind", "compare"},
        "string_ids": {"kind", "rule"},
        "tables": {"kind"},
        "duplicates": {"kind"},
        "compressors": {"kind", "rtol_float32_hashnet"},
        "schedules": {"kind"},
        "eviction": {"kind"},
        "clipping": {"kind", "dense", "sparse", "clip_norm", "global_norm"},
        "quirks": {"kind", "note"},
        "filters": {"kind"},
        "sharding": {"kind", "owner_rule"},
        "touched": {"kind"},
        "alltoall": {"kind"},
        "partitioned": {"kind", "fid_offset_encoding", "nfl_flag"},
        "factory": {"kind"},
        "benchmarks": {"kind"},
    },
)

ATOL, RTOL = 2e-6, 2e-5


def close(
    actual: Tensor, expected: Any, *, atol: float = ATOL, rtol: float = RTOL, what: str = ""
) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(
        actual.double(), wanted, atol=atol, rtol=rtol, msg=lambda text: f"{what}: {text}"
    )


def original(name: str, config: dict[str, Any]) -> Optimizer:
    return Optimizer.from_dict({"kind": name, **config})


_maker: list[Callable[..., Any]] = [HostTable]


@contextmanager
def tables_of_kind(make: Callable[..., Any]) -> Iterator[None]:
    """Handlers make their tables by `make(config, **settings)`; HostTable otherwise."""
    _maker.append(make)
    try:
        yield
    finally:
        _maker.pop()


def make_table(config: TableConfig, **settings: Any) -> Any:
    return _maker[-1](config, **settings)


def one_segment(optimizer: Optimizer, dim: int, init: float = 0.0) -> Any:
    return make_table(TableConfig("golden", (Segment(dim, Constant(init), optimizer),)))


def row_and_state(table: HostTable, key: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    found = table.entries(torch.tensor([key]))
    assert bool(found.found[0])
    return found.rows[0], {name: value[0] for name, value in found.states[0].items()}


def same_state(actual: dict[str, Tensor], expected: dict[str, Any], **tolerance: float) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        close(actual[name], value, what=name, **tolerance)
