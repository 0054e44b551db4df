"""Predict requests and responses with large tensors, read and written with one copy per tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..core.protobuf import BYTES, bytes_field, varint, varint_field
from . import buffers, dtypes
from .buffers import Array
from .codec import from_bytes, to_bytes
from .dtypes import ElementType
from .messages import tensor as pb
from .messages import tf_serving
from .tensors import Compat, check_compat, to_message

if TYPE_CHECKING:
    from .messages.tf_serving import PredictRequest


_INT64 = dtypes.of_torch(torch.int64).number
_FLOAT32 = dtypes.of_torch(torch.float32).number
# The number of the element type, the shape, and the first byte and byte length of the values.
PlainInput = tuple[int, tuple[int, ...], int, int]


class PlainRequest(NamedTuple):
    """A parsed Predict request whose inputs are ranges of the request's bytes."""

    data: bytes
    model: str
    version: int | None
    signature: str
    inputs: dict[str, PlainInput]

    @staticmethod
    def read(data: bytes) -> PlainRequest | None:
        """Returns the request, or None if it is not plain and the protobuf parser must read it.

        A plain request has few fields, so check_parts() is not needed.

        >>> import torch
        >>> from hedgerow.wire.tensors import fill
        >>> request = tf_serving.PredictRequest(model_spec={"name": "ctr"})
        >>> fill(request.inputs["id"], torch.tensor([7, 8]))
        >>> asked = PlainRequest.read(request.SerializeToString())
        >>> asked.model, asked.inputs["id"][:2]
        ('ctr', (9, (2,)))
        >>> PlainRequest.read(b"no message") is None
        True
        """
        found = native.plain_request(data)
        return None if found is None else PlainRequest(data, *found)

    def message(self) -> PredictRequest:
        """Returns the request as a protobuf message."""
        return from_bytes(tf_serving.PredictRequest, self.data)

    def array(
        self, alias: str, element: ElementType, shape: tuple[int | None, ...]
    ) -> Array | None:
        """Returns an input, flat and read-only, or None if its type or shape differs.

        A size of None in `shape` fits any size.
        """
        if alias not in self.inputs or not element.is_plain:
            return None
        number, sizes, start, size_bytes = self.inputs[alias]
        if number != element.number or len(sizes) != len(shape):
            return None
        count, reach = 1, element.width
        for size, wanted in zip(sizes, shape, strict=True):
            if size < 0 or (size != wanted and wanted is not None):
                return None
            count *= size
            reach *= size or 1  # next to a size of 0 another size may be beyond any address
        if count * element.width != size_bytes or reach >= 1 << 63:
            return None
        return np.frombuffer(self.data, element.bits, size_bytes // element.width, start)

    def int64s(self, alias: str) -> tuple[int, int] | None:
        """Returns first byte and length of an int64 vector; None if the input is anything else."""
        number, sizes, start, size_bytes = self.inputs.get(alias, (0, (), 0, 0))
        if number != _INT64 or len(sizes) != 1 or 8 * sizes[0] != size_bytes:
            return None
        return start, sizes[0]

    def float_rows(self, alias: str, dim: int) -> tuple[int, int] | None:
        """Returns first byte and number of float32 rows of `dim`; None if it is anything else."""
        number, sizes, start, size_bytes = self.inputs.get(alias, (0, (), 0, 0))
        if number != _FLOAT32 or len(sizes) != 2 or sizes[1] != dim or sizes[0] < 0:
            return None
        return (start, sizes[0]) if 4 * sizes[0] * dim == size_bytes else None


_INPUTS, _KEY_TAG, _VALUE_TAG, _CONTENT_TAG, _CLIENT = (
    varint(number << 3 | BYTES) for number in (2, 1, 2, 4, 6)
)  # of PredictRequest, of its map's entries, of TensorProto; client_id, which serves as padding
_ALIGNED = 16  # the alignment of messages in a server's memory, so that it need not copy values


def request_bytes(request: PredictRequest, inputs: Mapping[str, Tensor]) -> bytes:
    """Returns the bytes of a request with `inputs` added as raw content.

    Contents start at multiples of 16 bytes, so that a reader can use them in place.

    >>> import torch
    >>> from hedgerow.wire.messages import tf_serving
    >>> from hedgerow.wire.tensors import to_torch
    >>> request = tf_serving.PredictRequest(model_spec={"name": "ctr"})
    >>> data = request_bytes(request, {"id": torch.tensor([7, 8])})
    >>> read = tf_serving.PredictRequest.FromString(data)
    >>> read.model_spec.name, to_torch(read.inputs["id"])
    ('ctr', tensor([7, 8]))
    """
    found = {alias: buffers.flat_bits(alias, value)[1] for alias, value in inputs.items()}
    kinds = {alias: (value.dtype, tuple(value.shape)) for alias, value in inputs.items()}
    pieces: list[bytes | memoryview] = []
    for front, bits in zip(fronts(request, kinds), found.values(), strict=True):
        pieces.append(front)
        if bits.nbytes:
            pieces.append(bits.view("u1").data)
    return b"".join(pieces) if pieces else request.SerializeToString()


def fronts(
    request: PredictRequest, inputs: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> list[bytes]:
    """Returns the bytes in front of each input's content in `request_bytes`, by dtype and shape.

    >>> from hedgerow.wire.messages import tf_serving
    >>> request = tf_serving.PredictRequest(model_spec={"name": "ctr"})
    >>> [len(front) for front in fronts(request, {"id": (torch.int64, (2,))})]
    [32]
    """
    found: list[bytes] = []
    before, at = request.SerializeToString(), 0
    for alias, (dtype, shape) in inputs.items():
        element = dtypes.of_torch(dtype)
        content_bytes = math.prod(shape, start=element.width)
        head = pb.TensorProto(dtype=element.number)  # type: ignore[arg-type]
        head.tensor_shape.SetInParent()
        for size in shape:
            head.tensor_shape.dim.add(size=size)
        name = alias.encode()
        begin = head.SerializeToString()
        if content_bytes:
            begin += _CONTENT_TAG + varint(content_bytes)
        entry = (
            _KEY_TAG + varint(len(name)) + name + _VALUE_TAG + varint(len(begin) + content_bytes)
        )
        whole = len(entry) + len(begin) + content_bytes
        front = _INPUTS + varint(whole) + entry + begin
        blank = -(at + len(before) + 2 + len(front)) % _ALIGNED
        found.append(before + _CLIENT + varint(blank) + bytes(blank) + front)
        at += len(found[-1]) + content_bytes
        before = b""
    return found


Part = bytes | memoryview
_OUTPUTS, _KEY, _VALUE = 1, 1, 2  # field numbers of PredictResponse and of a map's entry
_DTYPE, _SHAPE, _DIM, _SIZE, _CONTENT = 1, 2, 2, 1, 4  # of TensorProto, its shape and its sizes
# Field numbers of the types whose typed values have the same bytes in a message as in memory.
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
    """Returns the bytes of a PredictResponse, as to_bytes() would; `spec` is from spec_bytes().

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
    buffers.check_sendable("the answer", sum(map(len, parts)))
    return b"".join(parts)


def raw_head(alias: str, dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """Returns the bytes in front of an output's values, which follow as one raw buffer.

    >>> raw_head("y", torch.float32, (1,)).hex()
    '0a130a0179120e08011204120208012204'
    """
    element = dtypes.of_torch(dtype)
    value_bytes = math.prod(shape, start=element.width)
    return _head(alias, element.number, shape, _CONTENT, value_bytes)


@lru_cache(maxsize=4096)
def spec_bytes(model: str, version: int, signature: str) -> bytes:
    """Returns the response's field with the model, version and signature that answered."""
    response = tf_serving.PredictResponse()
    response.model_spec.name, response.model_spec.signature_name = model, signature
    response.model_spec.version.value = version
    response.model_spec.version.SetInParent()
    return to_bytes(response)


def _entry(alias: str, value: Tensor | Array, compat: Compat) -> list[Part]:
    """Returns one output: the bytes in front of its values, and its values."""
    if not buffers.is_text(value):
        element, bits = buffers.flat_bits(alias, value)
        field = _CONTENT if compat is None else _SAME_BYTES.get(element.name)
        if field is not None:
            head = _head(alias, element.number, tuple(value.shape), field, bits.nbytes)
            return [head, bits.data.cast("B")] if bits.nbytes else [head]
    tensor = to_bytes(to_message(value, compat=compat, name=alias))
    return [_before(alias, len(tensor)), tensor]


@lru_cache(maxsize=4096)  # a server's outputs have few shapes, and this function is slow
def _head(alias: str, number: int, shape: tuple[int, ...], field: int, value_bytes: int) -> bytes:
    """Returns an output's bytes up to its values."""
    dims = (varint_field(_SIZE, size) if size else b"" for size in shape)
    tensor = varint_field(_DTYPE, number)
    tensor += bytes_field(_SHAPE, b"".join(bytes_field(_DIM, dim) for dim in dims))
    if value_bytes:
        tensor += varint(field << 3 | BYTES) + varint(value_bytes)
    return _before(alias, len(tensor) + value_bytes) + tensor


def _before(alias: str, tensor_bytes: int) -> bytes:
    """Returns the bytes in front of an output's tensor: the map entry with its key."""
    entry = bytes_field(_KEY, alias.encode()) + varint(_VALUE << 3 | BYTES) + varint(tensor_bytes)
    return varint(_OUTPUTS << 3 | BYTES) + varint(len(entry) + tensor_bytes) + entry
