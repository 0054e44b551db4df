"""The one op through which a frozen module reads rows: torch knows it by name and exports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core import registry
from ..core.checks import unknown
from ..core.errors import InputError, StateError
from ..core.id_batch import IdBatch
from ..ops.library import register, unknown_size
from ..tables.bags import Bags, Feature, FeatureGroup, Pooling
from ..tables.store import Lookup, Missing, TableKeys
from .pooling import pool_features


@runtime_checkable
class ReadableRows(Protocol):
    """What an exported program reads: the rows of a module, or others under its names."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        ...

    def lookup(
        self, keys: TableKeys, *, missing: Missing = "zeros", step: int | None = None
    ) -> Lookup:
        """Rows of `keys`; an absent one gives zeros."""
        ...


_SCHEMA = (
    "read_rows(str store, str[] names, str[] features, str[] tables, str[] poolings, int[] dims, "
    "int step, Tensor values, Tensor offsets, Tensor? weights) -> Tensor[]"
)


def pooling_text(pooling: Pooling) -> str:
    """A pooling as a schema takes it.

    >>> pooling_text("sum"), pooling_text(("first", 3))
    ('sum', 'first 3')
    """
    return " ".join(map(str, pooling)) if isinstance(pooling, tuple) else pooling


def _pooling(text: str) -> Pooling:
    kind, _, count = text.partition(" ")
    return (kind, int(count)) if count else kind


def _store(name: str, tables: Sequence[str], dims: Sequence[int]) -> ReadableRows:
    store = registry.find(name)
    if not isinstance(store, ReadableRows):
        raise StateError(
            f"an exported program reads the store {name!r}, which is not in this process (any "
            f"more). Keep the model it came from alive, or build it again, load its rows with "
            f"hr.load, and hr.freeze it: that brings the store back under its name."
        )
    for table, dim in zip(tables, dims, strict=True):
        if table not in store.names:
            unknown("table", table, store.names)
        there = store.dims[store.names.index(table)]
        if there != dim:
            raise InputError(
                f"table {table!r} of the store {name!r} has dim {there}; the exported program was "
                f"made for dim {dim}. Freeze the model that it was exported from."
            )
    return store


def _read(
    store: str,
    names: list[str],
    features: list[str],
    tables: list[str],
    poolings: list[str],
    dims: list[int],
    step: int,
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
) -> list[Tensor]:
    rows_of = _store(store, tables, dims)
    batch = IdBatch(tuple(names), values, offsets, weights)
    wanted = [
        Feature(name, rows_of.names.index(table), _pooling(text))
        for name, table, text in zip(features, tables, poolings, strict=True)
    ]
    bags = Bags(batch, FeatureGroup.of(batch.names, wanted, features))
    keys = bags.keys(len(rows_of.names))
    found = rows_of.lookup(keys.keys, missing="zeros", step=step)
    return pool_features(bags, keys.rows(found))


def _shapes(
    store: str,
    names: list[str],
    features: list[str],
    tables: list[str],
    poolings: list[str],
    dims: list[int],
    step: int,
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
) -> list[Tensor]:
    samples = (offsets.shape[0] - 1) // len(names)
    made = []
    for text, dim in zip(poolings, dims, strict=True):
        pooling = _pooling(text)
        shape: tuple[int | torch.SymInt, ...] = (samples, dim)
        if isinstance(pooling, tuple):
            shape = (samples, pooling[1], dim)
        elif pooling == "none":  # of one feature all ids are its own
            shape = (values.shape[0] if len(names) == 1 else unknown_size(), dim)
        made.append(values.new_empty(shape, dtype=torch.float32))
    return made


# On a GPU the same function refuses: the rows are in host memory.
read_rows = register(_SCHEMA, cpu=_read, plain=_read, shapes=_shapes)
