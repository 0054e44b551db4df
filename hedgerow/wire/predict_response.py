"""The bytes of a PredictResponse, written around the tensors' memory: values are copied once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from ..core.protobuf import BYTES, bytes_field, varint, varint_field
from . import buffers, dtypes, sizes
from .buffers import Array
from .codec import to_bytes
from .messages import tf_serving
from .tensors import Compat, check_compat, to_message

if TYPE_CHECKING:
    from torch import Tensor

Part = bytes | memoryview
_OUTPUTS, _KEY, _VALUE = 1, 1, 2  # field numbers of PredictResponse and of a map's entry
_DTYPE, _SHAPE, _DIM, _SIZE, _CONTENT = 1, 2, 2, 1, 4  # of TensorProto, its shape and its sizes
# Typed values of these stand in the message as they stand in memory.
_SAME_BYTES = {
    "float32": 5,
    "float64": 6,
    "complex64": 9,
    "bool": 11,
    "complex128": 12,
    "float8_e5m2": 18,
    "float8_e4m3fn": 18,
}


def response_bytes(
    outputs: Mapping[str, Tensor | Array], spec: bytes, *, compat: Compat = None
) -> bytes:
    """The bytes that to_bytes() gives for the same message; `spec` is what spec_bytes() gave.

    >>> import torch
    >>> from hedgerow.wire.codec import from_bytes
    >>> data = response_bytes({"y": torch.tensor([1.0])}, spec_bytes("ctr", 3, "serving_default"))
    >>> response = from_bytes(tf_serving.PredictResponse, data)
    >>> response.outputs["y"].tensor_content.hex(), response.model_spec.version.value
    ('0000803f', 3)
    """
    check_compat(compat)
    parts: list[Part] = []
    for alias, value in sorted(outputs.items()):
        parts += _entry(alias, value, compat)
    parts.append(spec)
    sizes.check_sendable("the answer", sum(map(len, parts)))
    return b"".join(parts)


def raw_head(alias: str, dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """What stands before the values of an output, where these follow as one buffer.

    >>> raw_head("y", torch.float32, (1,)).hex()
    '0a130a0179120e08011204120208012204'
    """
    element = dtypes.of_torch(dtype)
    value_bytes = math.prod(shape, start=element.width)
    return _head(alias, element.number, shape, _CONTENT, value_bytes)


@lru_cache(maxsize=4096)
def spec_bytes(model: str, version: int, signature: str) -> bytes:
    """The field of a response that says who answered."""
    response = tf_serving.PredictResponse()
    response.model_spec.name, response.model_spec.signature_name = model, signature
    response.model_spec.version.value = version
    response.model_spec.version.SetInParent()
    return to_bytes(response)


def _entry(alias: str, value: Tensor | Array, compat: Compat) -> list[Part]:
    """One output: what stands before its values, and the values."""
    if not buffers.is_text(value):
        element, bits = buffers.flat_bits(alias, value)
        field = _CONTENT if compat is None else _SAME_BYTES.get(element.name)
        if field is not None:
            head = _head(alias, element.number, tuple(value.shape), field, bits.nbytes)
            return [head, bits.data.cast("B")] if bits.nbytes else [head]
    tensor = to_bytes(to_message(value, compat=compat, name=alias))
    return [_before(alias, len(tensor)), tensor]


@lru_cache(maxsize=4096)  # a server's answers have few shapes, and making this takes a while
def _head(alias: str, number: int, shape: tuple[int, ...], field: int, value_bytes: int) -> bytes:
    """An output's bytes up to its values."""
    dims = (varint_field(_SIZE, size) if size else b"" for size in shape)
    tensor = varint_field(_DTYPE, number)
    tensor += bytes_field(_SHAPE, b"".join(bytes_field(_DIM, dim) for dim in dims))
    if value_bytes:
        tensor += varint(field << 3 | BYTES) + varint(value_bytes)
    return _before(alias, len(tensor) + value_bytes) + tensor


def _before(alias: str, tensor_bytes: int) -> bytes:
    """What stands before the tensor of an output: the map's entry with its key."""
    entry = bytes_field(_KEY, alias.encode()) + varint(_VALUE << 3 | BYTES) + varint(tensor_bytes)
    return varint(_OUTPUTS << 3 | BYTES) + varint(len(entry) + tensor_bytes) + entry
