"""Where the orders of leaving stand (`LeaveOrder`) as named bytes of a checkpoint, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from ...core.errors import CheckpointError
from ...core.use_weights import MARK
from ..config import TableConfig
from ..expiry import Lfu, Lru
from ..leave_order import Ordered, OrderState
from .filter_blobs import Place

_PREFIX = "hedgerow order "


def order_rule(config: TableConfig) -> str | None:
    """What numbers of a table's order mean: those of another rule cannot go on. None: no order.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> segments = (Segment(1, Zeros(), Sgd(lr=1.0)),)
    >>> order_rule(TableConfig("t", segments, evict=Lru(9)))
    'lru'
    >>> order_rule(TableConfig("t", segments, evict=Lfu(9, half_life="1h")))
    'lfu 3600 s'
    """
    if isinstance(config.evict, Lfu):
        half_life = config.evict.half_life_is()
        return f"lfu {half_life.uses} uses" if half_life.uses else f"lfu {half_life.seconds} s"
    return "lru" if isinstance(config.evict, Lru) else None


def order_blobs(states: Mapping[str, OrderState], place: Place) -> dict[str, bytes]:
    """States by table as named bytes; every shard has its own."""
    which = "" if place.shards == 1 else f"of shard {place.shard} "
    return {
        f"{_PREFIX}{which}{name}": json.dumps({"table": name, **asdict(state)}).encode()
        for name, state in states.items()
    }


def dump_orders(tables: Mapping[str, object]) -> dict[str, OrderState]:
    """The state of every table that has an order."""
    return {
        name: table.order.state()
        for name, table in tables.items()
        if isinstance(table, Ordered) and table.order is not None
    }


def is_order_blob(name: str) -> bool:
    """Whether a blob is one of ours.

    >>> is_order_blob("mine")
    False
    """
    return name.startswith(_PREFIX)


def orders_to_restore(blobs: Mapping[str, bytes]) -> dict[str, OrderState]:
    """States by table: the latest of all shards, which saw about as much each."""
    found: dict[str, OrderState] = {}
    for name, data in blobs.items():
        if is_order_blob(name):
            table, state = _unpack(name, data)
            found[table] = _later([state, *[found[t] for t in (table,) if t in found]])
    return found


def _later(states: Iterable[OrderState]) -> OrderState:
    each = list(states)
    return OrderState(max(s.newest for s in each), max(s.half_lives for s in each))


def _unpack(name: str, data: bytes) -> tuple[str, OrderState]:
    try:
        values = json.loads(data)
        table, newest, half_lives = (values[key] for key in ("table", "newest", "half_lives"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"blob {name!r} is not the state of an order: {error}.") from error
    good = (
        isinstance(table, str)
        and type(newest) is int
        and 0 <= newest <= MARK
        and isinstance(half_lives, int | float)
        and math.isfinite(half_lives)
        and half_lives >= 0
    )
    if not good:
        raise CheckpointError(
            f"blob {name!r} is not the state of an order: it holds {values!r}; save again, or use "
            f"an older checkpoint."
        )
    return table, OrderState(newest, float(half_lives))
