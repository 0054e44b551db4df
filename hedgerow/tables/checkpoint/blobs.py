"""The counts of admission filters and the states of eviction orders, as bytes in a checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from ...core.errors import CheckpointError, InputError
from ...core.use_weights import MARK
from ..admission import FilterMeta, FilterState
from ..config import TableConfig
from ..eviction import EvictionOrderState, HasEvictionOrder, Lfu, Lru
from ..local_table import LocalTable, SavableFilter

_FILTER_PREFIX = "hedgerow filter "
_LENGTH_BYTES = 8


Dumped = list[tuple[FilterState, list[str]]]
"""The states of filters, each with the names of the tables that share the filter."""


def dump_filters(tables: Iterable[object]) -> Dumped:
    """Returns the state of every filter of the tables; a shared filter is dumped once."""
    sharers: dict[int, tuple[SavableFilter, list[str]]] = {}
    for table in tables:
        if isinstance(table, LocalTable) and table.filter is not None:
            sharers.setdefault(id(table.filter), (table.filter, []))[1].append(table.config.name)
    return [(filter_.dump(), names) for filter_, names in sharers.values()]


@dataclass(frozen=True, slots=True)
class BlobShard:
    """The shard that a filter counts for, and the number of shards."""

    shard: int = 0
    shards: int = 1


ALONE = BlobShard()


def filter_blobs(dumped: Dumped, place: BlobShard) -> dict[str, bytes]:
    """Returns the states as named bytes; each shard has its own names."""
    which = "" if place.shards == 1 else f"of shard {place.shard} "
    return {
        f"{_FILTER_PREFIX}{which}{names[0]}": _pack_filter(state, names, place)
        for state, names in dumped
    }


def is_filter_blob(name: str) -> bool:
    """Returns whether a blob is the state of a filter.

    >>> is_filter_blob("mine")
    False
    """
    return name.startswith(_FILTER_PREFIX)


def filters_to_restore(
    blobs: Mapping[str, bytes],
    tables: Mapping[str, LocalTable],
    place: BlobShard,
    *,
    moved: Collection[str] = (),
    ignore_others: bool,
) -> list[tuple[SavableFilter, FilterState]]:
    """Returns the saved state of each live filter; raises or skips if the settings differ.

    - A table that has no filter now needs no state. A filter without a saved state starts empty.
    - The state of a single process is restored on every shard.
    - The state of one of several shards is restored on the same shard of the same number of shards.
      If rows have `moved`, the filter starts empty, because it does not know which ids it counted.
    - A filter that moved between host and device starts empty, because the two hash ids
      differently.
    """
    found: dict[int, tuple[SavableFilter, FilterState]] = {}
    for name, data in blobs.items():
        if not is_filter_blob(name):
            continue
        state, sharers, saved = _unpack_filter(name, data)
        if saved.shards > 1 and (saved != place or any(t in moved for t in sharers)):
            continue
        live = {id(f): f for t in sharers if t in tables and (f := tables[t].filter) is not None}
        for filter_ in live.values():
            if filter_.meta().kind != state.meta.kind:
                continue
            now, then = filter_.meta().settings(), state.meta.settings()
            if id(filter_) in found:
                raise CheckpointError(
                    f"tables {', '.join(sharers)} share a filter now and did not when they were "
                    f"saved; two sets of counts cannot be merged. Give each its own filter."
                )
            if now == then:
                found[id(filter_)] = filter_, state
            elif not ignore_others:
                raise CheckpointError(
                    f"the filter of tables {', '.join(sharers)} was saved with {then}, and is now "
                    f"{now}; make it with the same settings, or pass on_state_mismatch='reset' to "
                    f"start with empty counts."
                )
    return list(found.values())


def _pack_filter(state: FilterState, names: list[str], place: BlobShard) -> bytes:
    about = {"tables": names, "meta": state.meta.to_dict()}
    head = json.dumps(about | (asdict(place) if place.shards > 1 else {})).encode()
    parts = [array.numpy().tobytes() for array in state.arrays]
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, *parts])


def _unpack_filter(name: str, data: bytes) -> tuple[FilterState, list[str], BlobShard]:
    try:
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        start = _LENGTH_BYTES + length
        head = json.loads(data[_LENGTH_BYTES:start])
        meta = FilterMeta.from_dict(head["meta"])
        _check_numbers(meta.head, meta.head_increment, meta.failures, meta.slot_key)
        _check_numbers(*meta.settings().values(), *(n for array in meta.arrays for n in array))
        tables = [str(table) for table in head["tables"]]
        place = BlobShard(head.get("shard", 0), head.get("shards", 1))
        _check_numbers(place.shard, place.shards)
        return FilterState(meta, tuple(_arrays(meta, data, start))), tables, place
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # ours, too
        raise CheckpointError(f"blob {name!r} is not the state of a filter: {error}.") from error


def _check_numbers(*values: object) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value < 2**64:
            raise InputError(f"it holds {value!r} instead of a number from 0 to 2**64-1")


def _arrays(meta: FilterMeta, data: bytes, start: int) -> list[Tensor]:
    arrays = []
    for cell_bytes, cells, _ in meta.arrays:
        stop = start + cell_bytes * cells
        if not 0 <= start <= stop <= len(data):
            raise InputError(f"its arrays end at byte {stop} of {len(data)}")
        arrays.append(torch.from_numpy(np.frombuffer(data[start:stop], np.uint8).copy()))
        start = stop
    if start != len(data):
        raise InputError(f"{len(data) - start} bytes too many")
    return arrays


_ORDER_PREFIX = "hedgerow order "


def order_rule(config: TableConfig) -> str | None:
    """Returns the rule that gives a table's marks their meaning; None if it has no order.

    An order can continue from saved marks only if the rule is the same.

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


def order_blobs(states: Mapping[str, EvictionOrderState], place: BlobShard) -> dict[str, bytes]:
    """Returns the states of orders as named bytes; each shard has its own names."""
    which = "" if place.shards == 1 else f"of shard {place.shard} "
    return {
        f"{_ORDER_PREFIX}{which}{name}": json.dumps({"table": name, **asdict(state)}).encode()
        for name, state in states.items()
    }


def dump_orders(tables: Mapping[str, object]) -> dict[str, EvictionOrderState]:
    """Returns the state of every table that has an order."""
    return {
        name: table.order.state()
        for name, table in tables.items()
        if isinstance(table, HasEvictionOrder) and table.order is not None
    }


def is_order_blob(name: str) -> bool:
    """Returns whether a blob is the state of an eviction order.

    >>> is_order_blob("mine")
    False
    """
    return name.startswith(_ORDER_PREFIX)


def orders_to_restore(blobs: Mapping[str, bytes]) -> dict[str, EvictionOrderState]:
    """Returns the latest state of all shards, per table; shards see about equally many writes."""
    found: dict[str, EvictionOrderState] = {}
    for name, data in blobs.items():
        if is_order_blob(name):
            table, state = _unpack_order(name, data)
            found[table] = _later([state, *[found[t] for t in (table,) if t in found]])
    return found


def _later(states: Iterable[EvictionOrderState]) -> EvictionOrderState:
    each = list(states)
    return EvictionOrderState(max(s.newest for s in each), max(s.half_lives for s in each))


def _unpack_order(name: str, data: bytes) -> tuple[str, EvictionOrderState]:
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
    return table, EvictionOrderState(newest, float(half_lives))
