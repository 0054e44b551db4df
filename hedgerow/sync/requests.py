"""Rows of a source as the calls that a replica takes: assigned if there, removed if not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.shapes import Int64
from ..wire.messages import tf_serving
from ..wire.predict_bytes import fronts, request_bytes
from .protocol import ASSIGN, REMOVE
from .source import RowSource, Share

if TYPE_CHECKING:
    from ..wire.messages.tf_serving import PredictRequest

PART_BYTES = 1 << 20  # of one call: a replica answers its readers between two of them


@dataclass(frozen=True, slots=True)
class Push:
    """A call, made just before it is sent."""

    signature: str
    rows: int
    request: bytes


def parts_of(
    ids: Mapping[str, Int64[Tensor, "n"]], dims: Mapping[str, int], part_bytes: int = PART_BYTES
) -> Iterator[dict[str, Int64[Tensor, "n"]]]:
    """Keys in shares that fit into one call; a share may have keys of several tables.

    >>> ids = {"a": torch.arange(3), "b": torch.arange(2)}
    >>> [{t: len(i) for t, i in part.items()} for part in parts_of(ids, {"a": 2, "b": 2}, 48)]
    [{'a': 3}, {'b': 2}]
    """
    part: dict[str, Tensor] = {}
    left = part_bytes
    for table, all_ids in ids.items():
        row_bytes = 8 + 4 * dims[table]
        at = 0
        while at < len(all_ids):
            fit = left // row_bytes
            if fit <= 0 and part:
                yield part
                part, left = {}, part_bytes
                continue
            share = all_ids[at : at + max(1, fit)]
            part[table] = share
            at += len(share)
            left -= len(share) * row_bytes
    if part:
        yield part


def pushes_of(
    source: RowSource,
    model: str,
    tables: Sequence[str],
    dims: Mapping[str, int],
    part: Mapping[str, Int64[Tensor, "n"]],
) -> Iterator[Push]:
    """The calls for these keys, with the rows as they are now.

    Each names all tables that the model has, those without keys as well: the server wants that.
    """
    none = torch.empty(0, dtype=torch.int64)
    whole = source.message(_shares(model, {table: part.get(table, none) for table in tables}, dims))
    if whole is not None:
        yield Push(ASSIGN, sum(len(ids) for ids in part.values()), whole)
        return
    there: dict[str, tuple[Tensor, Tensor]] = {}
    gone: dict[str, Tensor] = {}
    for table, ids in part.items():
        read = source.read(table, ids)
        if bool(read.present.all()):
            there[table] = (ids, read.rows)
        else:
            there[table] = (ids[read.present], read.rows[read.present])
            gone[table] = ids[~read.present]
    rows = sum(len(ids) for ids, _ in there.values())
    if rows:
        given: dict[str, Tensor] = {}
        for table in tables:
            empty = torch.empty(0, dims[table], dtype=torch.float32)
            ids, values = there.get(table) or (none, empty)
            given[f"{table}_id"], given[f"{table}_value"] = ids, values
        yield Push(ASSIGN, rows, _request(model, ASSIGN, given))
    removed = sum(len(ids) for ids in gone.values())
    if removed:
        ids_only = {f"{table}_id": gone.get(table, none) for table in tables}
        yield Push(REMOVE, removed, _request(model, REMOVE, ids_only))


def _shares(model: str, ids: Mapping[str, Tensor], dims: Mapping[str, int]) -> list[Share]:
    """The frame of an assign of these ids: the bytes that _request would write around them."""
    tables = tuple((table, len(one), dims[table]) for table, one in ids.items())
    found = iter(_fronts(model, tables))
    return [Share(table, one, next(found), next(found)) for table, one in ids.items()]


@lru_cache(maxsize=64)  # nearly all pushes of a model are of one size
def _fronts(model: str, tables: tuple[tuple[str, int, int], ...]) -> list[bytes]:
    kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for table, n, dim in tables:
        kinds[f"{table}_id"] = (torch.int64, (n,))
        kinds[f"{table}_value"] = (torch.float32, (n, dim))
    return fronts(_head(model, ASSIGN), kinds)


def _head(model: str, signature: str) -> PredictRequest:
    request = tf_serving.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    return request


def _request(model: str, signature: str, inputs: Mapping[str, Tensor]) -> bytes:
    return request_bytes(_head(model, signature), inputs)
