"""A PredictRequest with large tensors, written in one step: each is copied once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from ..core.protobuf import BYTES, varint
from . import buffers
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
    pieces: list[bytes | memoryview] = [request.SerializeToString()]
    at = len(pieces[0])
    for alias, value in inputs.items():
        element, bits = buffers.flat_bits(alias, value)
        head = pb.TensorProto(dtype=element.number)  # type: ignore[arg-type]
        head.tensor_shape.SetInParent()
        for size in value.shape:
            head.tensor_shape.dim.add(size=size)
        name = alias.encode()
        begin = head.SerializeToString()
        if bits.nbytes:
            begin += _CONTENT + varint(bits.nbytes)
        entry = _KEY + varint(len(name)) + name + _VALUE + varint(len(begin) + bits.nbytes)
        whole = len(entry) + len(begin) + bits.nbytes
        front = _INPUTS + varint(whole) + entry + begin
        blank = -(at + 2 + len(front)) % _ALIGNED
        pieces.append(_CLIENT + varint(blank) + bytes(blank) + front)
        if bits.nbytes:
            pieces.append(bits.view("u1").data)
        at += 2 + blank + len(front) + bits.nbytes
    return b"".join(pieces)
