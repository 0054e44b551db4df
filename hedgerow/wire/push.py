"""Rows of tables as a PushRequest, and a PushRequest as the PredictRequest that serving takes."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Float, Int64
from . import packed, tensors
from .buffers import Array
from .messages import tf_serving
from .tensors import Compat

if TYPE_CHECKING:
    from .messages.parameter_sync import PushRequest
    from .messages.tf_serving import PredictRequest

    Delta = PushRequest.DeltaEmbeddingHashTable


def add_rows(
    request: PushRequest,
    table: str,
    fids: Int64[Tensor, "n"],
    rows: Float[Tensor, "n dim"],
    *,
    multi: bool = False,
) -> None:
    """Adds a table's rows to a request; a table without rows is added too, for serving wants all.

    >>> from hedgerow.wire.messages import parameter_sync
    >>> request = parameter_sync.PushRequest()
    >>> add_rows(request, "t", torch.tensor([7]), torch.tensor([[1.5, 2.5]]))
    >>> row_count(request), request.delta_hash_tables[0].dim_size
    (1, 2)
    """
    checks.tensor("fids", fids, torch.int64, (None,))
    checks.tensor("rows", rows, torch.float32, (fids.numel(), None))
    deltas = request.delta_multi_hash_tables if multi else request.delta_hash_tables
    delta = deltas.add(unique_id=table, dim_size=rows.shape[1])
    delta.fids.extend(fids.tolist())
    packed.append(delta, "embeddings", rows.detach().numpy().reshape(-1))


def row_count(request: PushRequest) -> int:
    """The rows that a successful push of this request updates, those of repeated names as well."""
    return sum(len(delta.fids) for delta in tables_of(request))


def tables_of(request: PushRequest) -> list[Delta]:
    """The tables that are pushed: those of a multi table, or else the plain ones."""
    return list(request.delta_multi_hash_tables or request.delta_hash_tables)


def arrays_of(delta: Delta) -> tuple[Array, Array]:
    """The fids [n] and the values [n * dim] of a table."""
    fids = packed.read(delta, "fids", "<i8", len(delta.fids))
    return fids, packed.read(delta, "embeddings", "<f4", len(delta.embeddings))


def to_predict(request: PushRequest, *, compat: Compat = None) -> PredictRequest:
    """The Predict call that assigns a request's rows.

    The original's own test server reads only `compat="typed"`.
    """
    predict = tf_serving.PredictRequest()
    predict.model_spec.name = request.model_name
    predict.model_spec.signature_name = request.signature_name
    multi = bool(request.delta_multi_hash_tables)
    inputs = _multi_inputs(request) if multi else _plain_inputs(request)
    for alias, value in inputs.items():
        tensors.fill(predict.inputs[alias], value, compat=compat, name=alias)
    return predict


def _multi_inputs(request: PushRequest) -> dict[str, Array]:
    pairs = [arrays_of(delta) for delta in request.delta_multi_hash_tables]
    ends = accumulate((len(fids) for fids, _ in pairs), initial=0)
    return {
        "id": np.concatenate([fids for fids, _ in pairs]),
        "id_split": np.array(list(ends), dtype=np.int64),
        "flat_value": np.concatenate([values for _, values in pairs]),
    }


def _plain_inputs(request: PushRequest) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for delta in request.delta_hash_tables:
        fids, values = arrays_of(delta)
        if delta.dim_size < 0 or values.size != len(fids) * delta.dim_size:
            raise InputError(
                f"table {delta.unique_id!r} has {values.size} values for {len(fids)} rows of "
                f"{delta.dim_size}; it must have rows times dim_size."
            )
        inputs[f"{delta.unique_id}_id"] = fids
        inputs[f"{delta.unique_id}_value"] = values.reshape(len(fids), delta.dim_size)
    return inputs
