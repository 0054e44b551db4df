"""Signatures that look up, assign and remove rows of tables."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..core.errors import ConfigError, InputError
from ..tables.multi import parts
from ..tables.multi.host_tables import HostTables
from ..tables.multi.parts import TableCall
from ..wire.predict import PlainRequest, raw_head
from .calls import check_answer, checked_run
from .model import Model, Signature, Tensors, TensorSpec

_IDS = TensorSpec(torch.int64, (None,))
_FLOATS = TensorSpec(torch.float32, (None,))
_COUNT = TensorSpec(torch.int32, ())


def ps_model(
    name: str,
    tables: HostTables,
    *,
    version: int = 1,
    shared_name: str | None = None,
    removes: bool = False,
    stamp: Callable[[], int] = lambda: 0,
) -> Model:
    """Returns a model over live tables. Pushes change them; a lookup never inserts a row.

    `shared_name` is the name on the wire of all tables together (`MonolithMultiHashTable_<i>` in
    Monolith); the default is the model's name. `removes` adds `hashtable_remove`. `stamp` returns
    the time stamp for pushed rows (0 in Monolith).

    >>> from hedgerow.tables.compressors import Fp32
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> config = TableConfig("user", (Segment(2, compressor=Fp32()),), serving=True)
    >>> model = ps_model("ps_0", HostTables({"user": config}))
    >>> sorted(model.signatures)
    ['hashtable_assign', 'hashtable_lookup', 'lookup', 'ps_0/raw_assign', 'raw_lookup']
    >>> rows = {"user_id": torch.tensor([7]), "user_value": torch.tensor([[1.0, 2.0]])}
    >>> model.signatures["hashtable_assign"].run(rows)
    {'user_result': tensor(1, dtype=torch.int32)}
    >>> model.signatures["lookup"].run({"user": torch.tensor([7, 8])})
    {'user': tensor([[1., 2.],
            [0., 0.]])}
    """
    _check_filters(tables)
    served = _RowSignatures(tables, stamp)
    lookup = served.lookup_signature()
    signatures = {
        "lookup": lookup,
        "hashtable_lookup": lookup,
        "raw_lookup": Signature(
            {"id": _IDS, "id_split": _IDS},
            {"flat_emb": _FLOATS},
            served.raw_lookup,
            answer_plain=served.answer_plain,
        ),
        "hashtable_assign": served.assign_signature(),
        f"{shared_name or name}/raw_assign": Signature(
            {"id": _IDS, "id_split": _IDS, "flat_value": _FLOATS},
            {"result": _COUNT},
            served.raw_assign,
            pushes=True,
        ),
    }
    if removes:
        signatures["hashtable_remove"] = served.remove_signature()
    return Model(name, version, signatures)


def _check_filters(tables: HostTables) -> None:
    """Raises if a table has an admission rule: a push must store every row that it sends."""
    for table in tables.tables:
        if table.config.admit is not None:
            raise ConfigError(
                f"table {table.config.name!r} admits ids by {table.config.admit!r}, which would "
                "drop rows that training admitted; serve a table made with serving=True."
            )


class _RowSignatures:
    """The functions of the signatures. The tables are safe to use from many threads."""

    def __init__(self, tables: HostTables, stamp: Callable[[], int]) -> None:
        self._store, self._stamp = tables, stamp
        self._names, self._dims = tables.names, tables.dims
        self._named = list(zip(tables.names, tables.tables, strict=True))

    def lookup_signature(self) -> Signature:
        rows = {
            name: TensorSpec(torch.float32, (None, dim))
            for name, dim in zip(self._names, self._dims, strict=True)
        }
        return Signature(dict.fromkeys(self._names, _IDS), rows, self._lookup)

    def assign_signature(self) -> Signature:
        inputs = {f"{name}_id": _IDS for name in self._names}
        for name, dim in zip(self._names, self._dims, strict=True):
            inputs[f"{name}_value"] = TensorSpec(torch.float32, (None, dim))
        return Signature(
            inputs, self._results(), self._assign, answer_plain=self._assign_plain, pushes=True
        )

    def remove_signature(self) -> Signature:
        inputs = {f"{name}_id": _IDS for name in self._names}
        return Signature(inputs, self._results(), self._remove, pushes=True)

    def _results(self) -> dict[str, TensorSpec]:
        return {f"{name}_result": _COUNT for name in self._names}

    def _lookup(self, inputs: Tensors) -> Tensors:
        named = zip(self._names, self._dims, strict=True)
        check_answer(sum(len(inputs[name]) * dim for name, dim in named))
        return {name: table.lookup(inputs[name]).rows_of() for name, table in self._named}

    def _assign(self, inputs: Tensors) -> Tensors:
        """Assigns rows after a check of all tables: an invalid push changes none."""
        shares = [
            TableCall(table, inputs[f"{name}_id"], inputs[f"{name}_value"])
            for name, table in self._named
        ]
        given = [share for share in shares if len(share.ids) or len(share.rows)]
        parts.assign(given, ts=self._stamp())
        return {f"{name}_result": _count(len(inputs[f"{name}_id"])) for name in self._names}

    def _assign_plain(self, request: PlainRequest, tail: bytes) -> bytes | None:
        """Does what _assign() does on a request's bytes; None if its inputs are not plain."""
        if len(request.inputs) != 2 * len(self._names):
            return None
        places = []
        for name, dim in zip(self._names, self._dims, strict=True):
            ids = request.int64s(f"{name}_id")
            rows = request.float_rows(f"{name}_value", dim)
            if ids is None or rows is None or ids[1] != rows[1]:
                return None
            places.append((ids[0], ids[1], rows[0]))
        if not self._store.assign_in(request.data, places, ts=self._stamp()):
            return None
        counts = {f"{name}_result": n for name, (_, n, _) in zip(self._names, places, strict=True)}
        told = (
            raw_head(alias, torch.int32, ()) + struct.pack("<i", n)
            for alias, n in sorted(counts.items())
        )
        return b"".join(told) + tail

    def _remove(self, inputs: Tensors) -> Tensors:
        return {
            f"{name}_result": _count(int(table.erase(inputs[f"{name}_id"]).sum()))
            for name, table in self._named
        }

    def raw_lookup(self, inputs: Tensors) -> Tensors:
        ids = inputs["id"]
        splits = self._splits(len(ids), inputs["id_split"].tolist())
        floats = parts.float_offsets(splits, self._dims)[-1]
        check_answer(floats)
        if len(splits) != len(self._dims) + 1:
            return {"flat_emb": self._store.lookup_cells(ids, splits)}
        flat = torch.empty(floats, dtype=torch.float32)
        self._store.lookup_at(ids.data_ptr(), splits, "zeros", None, flat.data_ptr())
        return {"flat_emb": flat}

    def answer_plain(self, request: PlainRequest, tail: bytes) -> bytes | None:
        """Does what raw_lookup() does on bytes: rows are copied straight into the answer.

        Returns None if an input is not plain, or if the ids are those of several requests.
        """
        ids, split = request.int64s("id"), request.int64s("id_split")
        if ids is None or split is None or len(request.inputs) != 2:
            return None
        (start, n), (split_at, numbers) = ids, split
        if not n:  # an answer without values has another form
            return None
        splits = self._splits(n, struct.unpack_from(f"<{numbers}q", request.data, split_at))
        if len(splits) != len(self._dims) + 1:
            return None
        floats = parts.float_offsets(splits, self._dims)[-1]
        check_answer(floats)
        head = raw_head("flat_emb", torch.float32, (floats,))
        return self._store.lookup_between(request.data, start, splits, head, tail)

    def raw_assign(self, inputs: Tensors) -> Tensors:
        ids, flat = inputs["id"], inputs["flat_value"]
        splits = self._splits(len(ids), inputs["id_split"].tolist())
        floats = parts.float_offsets(splits, self._dims)[-1]
        if len(flat) != floats:
            raise InputError(
                f"flat_value has {len(flat)} values; the {len(ids)} ids need {floats}: one row "
                "each, table after table."
            )
        parts.assign(parts.cut(self._store.tables, ids, splits, flat), ts=self._stamp())
        return {"result": _count(0)}

    def _splits(self, ids: int, splits: Sequence[int]) -> Sequence[int]:
        """Returns the offsets after a check; the ids may be those of several requests in a row."""
        tables = len(self._names)
        if len(splits) < 1 or (len(splits) - 1) % tables:
            raise InputError(
                f"id_split has {len(splits)} numbers; {tables} tables need {tables + 1}."
            )
        rises = splits[0] == 0 and all(begin <= end for begin, end in pairwise(splits))
        if not rises or splits[-1] != ids:
            raise InputError(f"id_split must rise from 0 to {ids}, the number of ids.")
        return splits


def _count(number: int) -> Tensor:
    return torch.tensor(number, dtype=torch.int32)


def multi_name(number: int) -> str:
    """Returns the name on the wire of all tables of one server.

    >>> multi_name(3)
    'MonolithMultiHashTable_3'
    """
    return f"MonolithMultiHashTable_{number}"


def row_signatures(
    store: HostTables, multi: str, stamp: Callable[[], int] = lambda: 0
) -> dict[str, Signature]:
    """Returns the signatures of tables. The raw ones take all tables at once, sorted by name.

    `stamp` returns the time stamp for assigned rows.

    >>> import torch
    >>> from hedgerow import Fp32, Segment, TableConfig
    >>> config = TableConfig("user", (Segment(2, compressor=Fp32()),), serving=True)
    >>> found = row_signatures(HostTables({"user": config}), multi_name(0))
    >>> [*found]
    ['lookup', 'hashtable_lookup', 'raw_lookup', 'hashtable_assign', \
'MonolithMultiHashTable_0/raw_assign', 'hashtable_remove']
    >>> found["lookup"].run({"user": torch.tensor([7])})
    {'user': tensor([[0., 0.]])}
    """
    found = ps_model("rows", store, shared_name=multi, removes=True, stamp=stamp).signatures
    return {
        key: dataclasses.replace(signature, run=checked_run(signature.inputs, signature.run))
        for key, signature in found.items()
    }
