"""Messages that push rows to servers: ClientConfig, PushRequest, its parts, and PushResult."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Float, Int64
from . import buffers, tensors
from .buffers import Array
from .codec import from_bytes, to_bytes
from .messages import parameter_sync, tf_serving
from .tensors import Compat

if TYPE_CHECKING:
    from .messages.parameter_sync import ClientConfig, PushRequest, PushResult
    from .messages.tf_serving import PredictRequest

    Replicas = Sequence[str] | Mapping[str, ClientConfig.TargetExtraInfo]
    Delta = PushRequest.DeltaEmbeddingHashTable


ASSIGN_SIGNATURE = "hashtable_assign"
TIMEOUT_MS = 3000


def config_bytes(model_name: str, replicas: Replicas) -> bytes:
    """Returns a new configuration's bytes; replicas are addresses, with details if a mapping.

    >>> config_bytes("ps_1", ["localhost:8500"]).hex()
    '0a0470735f311210686173687461626c655f61737369676e1a0e6c6f63616c686f73743a3835303020b817'
    """
    config = parameter_sync.ClientConfig(
        model_name=model_name,
        signature_name=ASSIGN_SIGNATURE,
        targets=list(replicas),
        timeout_in_ms=TIMEOUT_MS,
    )
    if isinstance(replicas, Mapping):
        config.targets_extra_info.extend(replicas.values())
    return to_bytes(config)


def read_config(data: bytes) -> ClientConfig:
    """Returns the configuration in some bytes; empty bytes mean a configuration without targets.

    >>> read_config(b"").timeout_in_ms
    1000
    """
    return from_bytes(parameter_sync.ClientConfig, data)


def add_rows(
    request: PushRequest,
    table: str,
    fids: Int64[Tensor, "n"],
    rows: Float[Tensor, "n dim"],
    *,
    multi: bool = False,
) -> None:
    """Adds a table's rows to a request. Add tables without rows too: servers expect every table.

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
    buffers.append_numbers(delta, "embeddings", rows.detach().numpy().reshape(-1))


def row_count(request: PushRequest) -> int:
    """Returns the number of rows that a push of this request updates, with repeated tables."""
    return sum(len(delta.fids) for delta in tables_of(request))


def tables_of(request: PushRequest) -> list[Delta]:
    """Returns the tables that are pushed: those of a multi table, else the plain ones."""
    return list(request.delta_multi_hash_tables or request.delta_hash_tables)


def arrays_of(delta: Delta) -> tuple[Array, Array]:
    """Returns the fids [n] and the values [n * dim] of a table."""
    fids = buffers.read_numbers(delta, "fids", "<i8", len(delta.fids))
    return fids, buffers.read_numbers(delta, "embeddings", "<f4", len(delta.embeddings))


def to_predict(request: PushRequest, *, compat: Compat = None) -> PredictRequest:
    """Returns the Predict request that assigns the rows of a push.

    Monolith's test server reads only `compat="typed"`.
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


LIMIT_BYTES = 4 << 20
Rule = Literal["balanced", "reference"]


def split_request(
    request: PushRequest, limit_bytes: int = LIMIT_BYTES, rule: Rule = "balanced"
) -> list[PushRequest]:
    """Returns the request if it fits the limit, else parts: size / limit, rounded up.

    "balanced" divides the rows evenly. "reference" is Monolith's rule: all parts have the same
    number of rows, and the last one also has the remainder. A part may be a little larger than
    the limit, because names are repeated and fids differ in length.

    >>> from hedgerow.wire.messages import parameter_sync
    >>> request = parameter_sync.PushRequest(model_name="m")
    >>> _ = request.delta_hash_tables.add(fids=range(5), embeddings=[0.0] * 5)
    >>> [len(part.delta_hash_tables[0].fids) for part in split_request(request, 15)]
    [1, 2, 2]
    >>> [len(part.delta_hash_tables[0].fids) for part in split_request(request, 15, "reference")]
    [1, 1, 3]
    """
    checks.count("limit_bytes", limit_bytes, least=1)
    if rule not in ("balanced", "reference"):
        raise InputError(f"rule is {rule!r}; it must be 'balanced' or 'reference'.")
    count = -(-request.ByteSize() // limit_bytes)
    if count <= 1:
        return [request]
    parts = [_empty_part(request) for _ in range(count)]
    for delta in request.delta_hash_tables:
        _deal(delta, [part.delta_hash_tables.add() for part in parts], rule)
    for delta in request.delta_multi_hash_tables:
        _deal(delta, [part.delta_multi_hash_tables.add() for part in parts], rule)
    return parts


def _empty_part(request: PushRequest) -> PushRequest:
    part = parameter_sync.PushRequest(timeout_in_ms=request.timeout_in_ms)
    for name in ("model_name", "signature_name"):
        if request.HasField(name):
            setattr(part, name, getattr(request, name))
    return part


def _deal(delta: Delta, shares: list[Delta], rule: Rule) -> None:
    """Copies each part's rows of a table."""
    fids, values = arrays_of(delta)
    width = values.size // len(fids) if len(fids) else 0
    if values.size != width * len(fids):
        raise InputError(
            f"table {delta.unique_id!r} has {values.size} values for {len(fids)} rows; "
            "it must have the same number for each row."
        )
    for place, share in enumerate(shares):
        begin, end = _rows(len(fids), place, len(shares), rule)
        if delta.HasField("unique_id"):
            share.unique_id = delta.unique_id
        if delta.HasField("dim_size"):
            share.dim_size = delta.dim_size
        buffers.append_numbers(share, "fids", fids[begin:end])
        buffers.append_numbers(share, "embeddings", values[begin * width : end * width])


def _rows(rows: int, place: int, parts: int, rule: Rule) -> tuple[int, int]:
    """Returns the first row of one part, and the row after its last."""
    if rule == "balanced":
        return rows * place // parts, rows * (place + 1) // parts
    each = rows // parts
    return each * place, rows if place == parts - 1 else each * (place + 1)


def result_json(result: PushResult) -> str:
    """Returns JSON with the names of the .proto file, and every field that is set, even to zero.

    >>> from hedgerow.wire.messages import parameter_sync
    >>> result_json(parameter_sync.PushResult())
    '{}'
    """
    from google.protobuf.json_format import MessageToJson

    return MessageToJson(result, preserving_proto_field_name=True, ensure_ascii=False)
