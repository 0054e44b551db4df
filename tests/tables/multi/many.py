"""What the tests of many tables share: configs of different widths, and all rows of a store."""

from __future__ import annotations

from typing import Any

from hedgerow.tables import initializers, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.multi.host_tables import HostTables

from ...support import everything, table_config

# Not in byte order, as users write them; dims 1, 3 and 1 + 2.
CONFIGS: dict[str, TableConfig] = {
    "user": table_config(optimizers.Adagrad(lr=0.5), dim=3),
    "item": table_config(optimizers.Sgd(lr=0.25), dim=1),
    "Ü": TableConfig(
        "bias and vector",
        (
            Segment(1, initializers.Zeros(), optimizers.Sgd(lr=0.5)),
            Segment(2, initializers.Uniform(0.5), optimizers.Adam(lr=0.125)),
        ),
        seed=3,
    ),
}
NAMES = ("item", "user", "Ü")
DIMS = (1, 3, 3)


def all_rows(store: HostTables) -> list[dict[int, tuple[Any, ...]]]:
    return [everything(table) for table in store.tables]


def apart() -> list[HostTable]:
    """The same tables, each on its own."""
    return [HostTable(CONFIGS[name]) for name in NAMES]
