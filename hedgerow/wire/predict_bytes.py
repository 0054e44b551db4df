"""A PredictRequest with large tensors, written in one step: each is copied once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.protobuf import BYTES, varint
from . import buffers, dtypes
from .messages import tensor as pb

if TYPE_CHECKING:
    from .messages.tf_serving import PredictRequest

_INPUTS, _KEY, _VALUE, _CONTENT, _CLIENT = (
    varint(number << 3 | BYTES) for number in (2, 1, 2, 4, 6)
)  # of PredictRequest, of an entry of its map, of TensorProto, and client_id, which says nothing
_ALIGNED = 16  # as the bytes of a message lie in a server's memory: it need not copy them


def request_bytes(request: PredictRequest, inputs: Mapping[str, Tensor]) -> bytes:
    """The bytes of a request with these inputs, as raw content; those it has go first.

    Contents begin at multiples of 16 bytes: a reader can use them where they are.

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
    """What stands before the content of each input in `request_bytes`, by its type and shape.

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
            begin += _CONTENT + varint(content_bytes)
        entry = _KEY + varint(len(name)) + name + _VALUE + varint(len(begin) + content_bytes)
        whole = len(entry) + len(begin) + content_bytes
        front = _INPUTS + varint(whole) + entry + begin
        blank = -(at + len(before) + 2 + len(front)) % _ALIGNED
        found.append(before + _CLIENT + varint(blank) + bytes(blank) + front)
        at += len(found[-1]) + content_bytes
        before = b""
    return found
