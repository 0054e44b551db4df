"""What a bundle with rows can be asked: all that a serving parameter server can, checked first."""

from __future__ import annotations

<<<<<<< HEAD
import dataclasses
=======
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
>>>>>>> 28e8c63da13883bf84bdc966912bed765279afe8

from ..tables.multi.host_tables import HostTables
from .check_inputs import answers
from .model import Signature
from .ps_model import ps_model


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

<<<<<<< HEAD
    >>> import torch
=======
    `stamp` gives the time of rows that are assigned.

>>>>>>> 28e8c63da13883bf84bdc966912bed765279afe8
    >>> from hedgerow import Fp32, Segment, TableConfig
    >>> config = TableConfig("user", (Segment(2, compressor=Fp32()),), serving=True)
    >>> found = row_signatures(HostTables({"user": config}), multi_name(0))
    >>> [*found]
    ['lookup', 'hashtable_lookup', 'raw_lookup', 'hashtable_assign', \
'MonolithMultiHashTable_0/raw_assign', 'hashtable_remove']
    >>> found["lookup"].run({"user": torch.tensor([7])})
    {'user': tensor([[0., 0.]])}
    """
<<<<<<< HEAD
    found = ps_model("rows", store, shared_name=multi, removes=True).signatures
=======
    served = _Served(store, stamp)
    dims = dict(zip(store.names, store.dims, strict=True))
    rows = {name: TensorSpec(torch.float32, (None, dim)) for name, dim in dims.items()}
    ids = {f"{name}_id": _IDS for name in dims}
    values = {f"{name}_value": spec for name, spec in rows.items()}
    counts = {f"{name}_result": _COUNT for name in dims}
    raw = {"id": _IDS, "id_split": _IDS}
>>>>>>> 28e8c63da13883bf84bdc966912bed765279afe8
    return {
        key: dataclasses.replace(signature, run=answers(signature.inputs, signature.run))
        for key, signature in found.items()
    }
<<<<<<< HEAD
=======


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
>>>>>>> 28e8c63da13883bf84bdc966912bed765279afe8
