"""What torch.export needs: a custom op that reads rows, and batches as pytrees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.weak import WeakTensorKeyDictionary

from ..core import process_state
from ..core.checks import unknown
from ..core.errors import InputError, StateError
from ..core.id_batch import IdBatch
from ..core.ids import Ragged
from ..ops.library import register, unknown_size
from ..tables.module_store import FeatureBags, FeatureGroup, Pooling, TableFeature
from ..tables.store import Lookup, Missing, TableKeys
from .batch_rows import pool_features


@runtime_checkable
class ReadableRows(Protocol):
    """The rows that an exported program reads: those of a module, or others under the same name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """The number of columns of each table."""
        ...

    def lookup(
        self, keys: TableKeys, *, missing: Missing = "zeros", step: int | None = None
    ) -> Lookup:
        """Returns the rows of `keys`, with zeros for absent keys."""
        ...


_SCHEMA = (
    "read_rows(str store, str[] names, str[] features, str[] tables, str[] poolings, int[] dims, "
    "int step, Tensor values, Tensor offsets, Tensor? weights) -> Tensor[]"
)


def pooling_text(pooling: Pooling) -> str:
    """Returns a pooling as a string, which an op schema can hold.

    >>> pooling_text("sum"), pooling_text(("first", 3))
    ('sum', 'first 3')
    """
    return " ".join(map(str, pooling)) if isinstance(pooling, tuple) else pooling


def _pooling(text: str) -> Pooling:
    kind, _, count = text.partition(" ")
    return (kind, int(count)) if count else kind


def _store(name: str, tables: Sequence[str], dims: Sequence[int]) -> ReadableRows:
    store = process_state.find(name)
    if not isinstance(store, ReadableRows):
        raise StateError(
            f"an exported program reads the store {name!r}, which is not in this process (any "
            f"more). Keep a reference to the frozen model, or build it again, load its rows with "
            f"hr.load, and hr.freeze it: this registers the store under its name."
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
        TableFeature(name, rows_of.names.index(table), _pooling(text))
        for name, table, text in zip(features, tables, poolings, strict=True)
    ]
    bags = FeatureBags(batch, FeatureGroup.of(batch.names, wanted, features))
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
        elif pooling == "none":  # a single feature has all ids of the batch
            shape = (values.shape[0] if len(names) == 1 else unknown_size(), dim)
        made.append(values.new_empty(shape, dtype=torch.float32))
    return made


# On a GPU the same function raises an error: the rows are in host memory.
read_rows = register(_SCHEMA, cpu=_read, plain=_read, shapes=_shapes)


# torch identifies inputs by object: flattening the same offsets twice must give the same tensor.
_LENGTHS = WeakTensorKeyDictionary()
_Keyed = list[tuple[Any, Any]]


def register_batches() -> None:
    """Registers IdBatch and Ragged as inputs and outputs of exported programs, once per process."""
    if IdBatch in _pytree.SUPPORTED_NODES:
        return
    _pytree.register_pytree_node(
        IdBatch,
        lambda batch: ([part for _, part in _parts(batch)], batch.names),
        _batch,
        serialized_type_name="hedgerow.IdBatch",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=lambda batch: (_parts(batch), batch.names),
    )
    _pytree.register_pytree_node(
        Ragged,
        lambda ragged: ([ragged.values, ragged.row_splits], None),
        lambda parts, _: Ragged.trusted(*parts),
        serialized_type_name="hedgerow.Ragged",
    )
    torch.serialization.add_safe_globals([IdBatch])  # torch saves example inputs with a program


def _parts(batch: IdBatch) -> _Keyed:
    """Returns ids, lengths of the bags [features, samples] and weights, with their pytree keys.

    The shape of the lengths contains the number of samples. If it were computed from offsets, torch
    would infer that it was not 1 in the example, and the exported program would refuse one sample.
    """
    parts = {"values": batch.values, "lengths": _lengths(batch), "weights": batch.weights}
    return [(_pytree.GetAttrKey(name), part) for name, part in parts.items()]


def _lengths(batch: IdBatch) -> Any:
    offsets: Any = batch.offsets
    if not isinstance(offsets, Tensor):  # torch passes placeholders to learn the structure
        return offsets
    features, cells = max(1, len(batch.names)), offsets.shape[0] - 1
    lengths = (offsets[1:] - offsets[:-1]).view(features, cells // features)
    return _kept(offsets, lengths)


def _kept(offsets: Tensor, lengths: Tensor) -> Tensor:
    """Returns the lengths computed earlier from these offsets, if the offsets have not changed."""
    if torch.compiler.is_dynamo_compiling() or offsets.is_inference():
        return lengths
    before = _LENGTHS.get(offsets)
    if before is not None and before[0] == offsets._version:
        return before[1]
    _LENGTHS[offsets] = (offsets._version, lengths)
    return lengths


def _batch(parts: Iterable[Any], names: tuple[str, ...]) -> IdBatch:
    """Returns a batch without checking values, which an export cannot read. The op checks it."""
    values, offsets, weights = parts
    if isinstance(offsets, Tensor):
        lengths = offsets
        offsets = torch.cat([lengths.new_zeros(1), lengths.flatten().cumsum(0)])
        _kept(offsets, lengths)
    made = object.__new__(IdBatch)
    fields = {"names": names, "values": values, "offsets": offsets, "weights": weights, "cut": None}
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def traced_batch(
    names: tuple[str, ...], values: Tensor, lengths: Tensor, weights: Tensor | None
) -> IdBatch:
    """Returns a batch from ids and bag lengths [features, samples], inside an exported graph.

    It checks nothing; the op that reads the rows does.

    >>> traced_batch(("user",), torch.tensor([7, 8]), torch.tensor([[0, 2]]), None).samples
    2
    """
    return _batch((values, lengths, weights), names)


def dynamic_shapes(*inputs: Any) -> tuple[Any, ...]:
    """Returns the `dynamic_shapes` of `torch.export.export` for any number of samples and ids.

    `inputs` are the inputs of the model's forward: tensors whose first dimension is samples,
    IdBatches, and values that torch exports as constants.

    >>> import hedgerow as hr
    >>> ids = hr.IdBatch.from_lists({"user": [[1], [2]], "item": [[5, 6], []]})
    >>> dense, (values, lengths, weights) = hr.dynamic_shapes(torch.ones(2, 4), ids)
    >>> dense[0].__name__, values[0].__name__, lengths[1].__name__, weights
    ('samples', 'ids1', 'samples', None)
    """
    register_batches()
    samples = torch.export.Dim("samples")
    return tuple(_shape(i, one, samples) for i, one in enumerate(inputs))


def _shape(number: int, given: Any, samples: Any) -> Any:
    if isinstance(given, Tensor):
        return {0: samples} if given.dim() else None
    if not isinstance(given, IdBatch):
        return None
    if not given.names:
        raise InputError(f"input {number} is an IdBatch without features; pass a real batch.")
    ids = torch.export.Dim(f"ids{number}")
    return [{0: ids}, {1: samples}, None if given.weights is None else {0: ids}]
