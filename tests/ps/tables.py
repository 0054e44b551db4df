"""Tables and keys that the tests of servers share."""

from __future__ import annotations

import torch
from torch import Tensor

from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Uniform, Zeros
from hedgerow.tables.optimizers import Adagrad, Adam, Sgd
from hedgerow.tables.store import TableKeys


def two_tables() -> dict[str, TableConfig]:
    wide = (Segment(5, Uniform(0.3), Adagrad(lr=0.1)), Segment(3, Zeros(), Adam(lr=0.01)))
    return {
        "item": TableConfig("any", wide, seed=3),
        "user": TableConfig("any", (Segment(2, Uniform(0.1), Sgd(lr=0.5)),), seed=4),
    }


def counting_table() -> dict[str, TableConfig]:
    """SGD of rate 1 from zeros: a gradient of -1 counts one."""
    return {"count": TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))}


def some_keys(seed: int = 0, items: int = 40, users: int = 30, of: int = 50) -> TableKeys:
    made = torch.Generator().manual_seed(seed)
    ids = torch.randint(-of, of, (items + users,), generator=made)
    return TableKeys(ids, (0, items, items + users))


def some_rows(keys: TableKeys, seed: int = 1) -> Tensor:
    floats = keys.splits[1] * 8 + (keys.splits[2] - keys.splits[1]) * 2
    return torch.randn(floats, generator=torch.Generator().manual_seed(seed))
