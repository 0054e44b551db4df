"""What a model with rows can be asked: to look them up, to set them, to remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..core.errors import InputError
from ..tables.multi.host_tables import HostTables
from ..tables.store import TableKeys, as_keys
from .check_inputs import Run, answers
from .model import Signature, Tensors, TensorSpec

LOOKUP, RAW_LOOKUP = "lookup", "raw_lookup"
ASSIGN, RAW_ASSIGN, REMOVE = "hashtable_assign", "raw_assign", "hashtable_remove"
_IDS = TensorSpec(torch.int64, (None,))
_FLOATS = TensorSpec(torch.float32, (None,))
_COUNT = TensorSpec(torch.int32, ())


def multi_name(number: int) -> str:
    """The name that pushes know all tables of one server by.

    >>> multi_name(3)
    'MonolithMultiHashTable_3'
    """
    return f"MonolithMultiHashTable_{number}"


def row_signatures(
    store: HostTables, multi: str, stamp: Callable[[], int] = lambda: 0
) -> dict[str, Signature]:
    """Signatures over tables, of which the raw ones take all tables at once, in name order.

    `stamp` gives the time of rows that are assigned.

    >>> from hedgerow import Fp32, Segment, TableConfig
    >>> config = TableConfig("user", (Segment(2, compressor=Fp32()),), serving=True)
    >>> found = row_signatures(HostTables({"user": config}), multi_name(0))
    >>> [*found]
    ['lookup', 'raw_lookup', 'hashtable_assign', 'MonolithMultiHashTable_0/raw_assign', \
'hashtable_remove']
    >>> found["lookup"].run({"user": torch.tensor([7])})
    {'user': tensor([[0., 0.]])}
    """
    served = _Served(store, stamp)
    dims = dict(zip(store.names, store.dims, strict=True))
    rows = {name: TensorSpec(torch.float32, (None, dim)) for name, dim in dims.items()}
    ids = {f"{name}_id": _IDS for name in dims}
    values = {f"{name}_value": spec for name, spec in rows.items()}
    counts = {f"{name}_result": _COUNT for name in dims}
    raw = {"id": _IDS, "id_split": _IDS}
    return {
        LOOKUP: _signature(dict.fromkeys(dims, _IDS), rows, served.lookup),
        RAW_LOOKUP: _signature(raw, {"flat_emb": _FLOATS}, served.raw_lookup),
        ASSIGN: _signature(ids | values, counts, served.assign),
        f"{multi}/{RAW_ASSIGN}": _signature(
            {**raw, "flat_value": _FLOATS}, {"result": _COUNT}, served.raw_assign
        ),
        REMOVE: _signature(ids, counts, served.remove),
    }


def _signature(
    inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], run: Run
) -> Signature:
    return Signature(inputs, outputs, answers(inputs, run))


class _Served:
    """The verbs. Reading never inserts; a write is checked as a whole before it changes a row."""

    def __init__(self, store: HostTables, stamp: Callable[[], int]) -> None:
        self._store, self._stamp = store, stamp

    def lookup(self, inputs: Tensors) -> Tensors:
        """Rows of each table."""
        found = self._store.lookup(self._keys(inputs, ""))
        return {name: found.rows_of(k) for k, name in enumerate(self._store.names)}

    def raw_lookup(self, inputs: Tensors) -> Tensors:
        """Rows of all tables, flat."""
        return {"flat_emb": self._store.lookup(self._raw_keys(inputs)).rows}

    def assign(self, inputs: Tensors) -> Tensors:
        """Sets rows; how many ids there were."""
        keys = self._keys(inputs, "_id")
        for name in self._store.names:
            ids, values = inputs[f"{name}_id"], inputs[f"{name}_value"]
            if len(ids) != len(values):
                raise InputError(f"{name}_id has {len(ids)} ids, {name}_value {len(values)} rows.")
        parts = [inputs[f"{name}_value"].reshape(-1) for name in self._store.names]
        self._store.assign(keys, _joined(parts), ts=self._stamp())
        return self._counts(len(keys.ids_of(k)) for k in range(keys.tables))

    def raw_assign(self, inputs: Tensors) -> Tensors:
        """Sets rows of all tables; 0."""
        keys, rows = self._raw_keys(inputs), inputs["flat_value"].contiguous()
        sizes = (len(keys.ids_of(k)) * dim for k, dim in enumerate(self._store.dims))
        floats = sum(sizes)
        if len(rows) != floats:
            raise InputError(f"flat_value has {len(rows)} numbers; these ids need {floats}.")
        self._store.assign(keys, rows)
        return {"result": torch.tensor(0, dtype=torch.int32)}

    def remove(self, inputs: Tensors) -> Tensors:
        """Removes rows; how many were there."""
        keys = self._keys(inputs, "_id")
        gone = self._store.erase(keys)
        borders = zip(keys.splits, keys.splits[1:], strict=False)
        return self._counts(int(gone[start:stop].sum()) for start, stop in borders)

    def _keys(self, inputs: Tensors, suffix: str) -> TableKeys:
        parts = [inputs[name + suffix] for name in self._store.names]
        return TableKeys(_joined(parts), (0, *accumulate(len(part) for part in parts)))

    def _raw_keys(self, inputs: Tensors) -> TableKeys:
        keys = TableKeys(inputs["id"].contiguous(), tuple(inputs["id_split"].tolist()))
        return as_keys(keys, len(self._store.names))

    def _counts(self, counts: Iterator[int]) -> dict[str, Tensor]:
        pairs = zip(self._store.names, counts, strict=True)
        return {f"{name}_result": torch.tensor(n, dtype=torch.int32) for name, n in pairs}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One after the other; one alone is not copied."""
    return parts[0].contiguous() if len(parts) == 1 else torch.cat([*parts])
