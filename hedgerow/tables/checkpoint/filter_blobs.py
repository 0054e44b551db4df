"""The counts of admission filters as named bytes of a checkpoint, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from ...core.errors import CheckpointError, ConfigError, InputError
from ..filters import FilterMeta, FilterState, SlidingFilter
from ..host import HostTable

_PREFIX = "hedgerow filter "
_LENGTH_BYTES = 8


def filter_blobs(tables: Iterable[object]) -> dict[str, bytes]:
    """Every filter of the tables once, under the names of the tables that share it."""
    sharers: dict[int, tuple[SlidingFilter, list[str]]] = {}
    for table in tables:
        if isinstance(table, HostTable) and table.filter is not None:
            sharers.setdefault(id(table.filter), (table.filter, []))[1].append(table.config.name)
    return {_PREFIX + names[0]: _pack(f.dump(), names) for f, names in sharers.values()}


def is_filter_blob(name: str) -> bool:
    """Whether a blob is one of ours.

    >>> is_filter_blob("mine")
    False
    """
    return name.startswith(_PREFIX)


def filters_to_restore(
    blobs: Mapping[str, bytes], tables: Mapping[str, HostTable], *, ignore_others: bool
) -> list[tuple[SlidingFilter, FilterState]]:
    """The saved state of each live filter, checked; a filter that differs is an error or left out.

    A table that has no filter now needs none, and one whose filter was not saved counts afresh.
    """
    found = []
    for name, data in blobs.items():
        if not is_filter_blob(name):
            continue
        state, sharers = _unpack(name, data)
        live = {id(f): f for t in sharers if t in tables and (f := tables[t].filter) is not None}
        for filter_ in live.values():
            now, then = filter_.meta().settings(), state.meta.settings()
            if now == then:
                found.append((filter_, state))
            elif not ignore_others:
                raise CheckpointError(
                    f"the filter of tables {', '.join(sharers)} was saved with {then}, and is now "
                    f"{now}; make it with the same settings, or pass on_state_mismatch='reset' to "
                    f"let it count afresh."
                )
    return found


def _pack(state: FilterState, names: list[str]) -> bytes:
    head = json.dumps({"tables": names, "meta": state.meta.to_dict()}).encode()
    parts = [array.numpy().tobytes() for array in state.arrays]
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, *parts])


def _unpack(name: str, data: bytes) -> tuple[FilterState, list[str]]:
    try:
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        start = _LENGTH_BYTES + length
        head = json.loads(data[_LENGTH_BYTES:start])
        meta = FilterMeta.from_dict(head["meta"])
        tables = [str(table) for table in head["tables"]]
        return FilterState(meta, tuple(_arrays(meta, data, start))), tables
    except (ValueError, KeyError, TypeError, ConfigError, InputError) as error:
        raise CheckpointError(f"blob {name!r} is not the state of a filter: {error}.") from error


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
