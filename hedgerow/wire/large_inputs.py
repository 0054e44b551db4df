"""Large tensors of a PredictRequest, read where they lie: a parser would copy each twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..core.protobuf import BYTES, VARINT, varint
from .codec import from_bytes
from .messages.tf_serving import PredictRequest

_LARGE_BYTES = 128 << 10  # below this, looking for it takes as long as a copy
_INPUTS, _KEY, _VALUE, _CONTENT = 2, 1, 2, 4  # of PredictRequest, of a map's entry, of TensorProto


def read_request(data: bytes) -> tuple[PredictRequest, Mapping[str, memoryview]]:
    """A request, and the contents of its large tensors by input, which it then lacks.

    >>> import torch
    >>> from hedgerow.wire import tensors
    >>> request = PredictRequest(model_spec={"name": "ctr"})
    >>> tensors.fill(request.inputs["id"], torch.zeros(40_000))
    >>> read, contents = read_request(request.SerializeToString())
    >>> read.model_spec.name, len(read.inputs["id"].tensor_content), contents["id"].nbytes
    ('ctr', 0, 160000)
    """
    if len(data) >= _LARGE_BYTES:
        found = _split(data)
        if found is not None:
            small, contents, entries = found
            request = from_bytes(PredictRequest, small)
            if len(request.inputs) == entries:  # else one input came twice, and the last counts
                return request, contents
    return from_bytes(PredictRequest, data), {}


def _split(data: bytes) -> tuple[bytes, dict[str, memoryview], int] | None:
    """The bytes without large contents, those, and how many inputs there are.

    None where there is nothing large, or where a parser must say what is wrong.
    """
    pieces: list[bytes] = []
    contents: dict[str, memoryview] = {}
    kept = entries = 0
    try:
        for number, kind, start, at, end in _fields(data, 0, len(data)):
            if number != _INPUTS or kind != BYTES:
                continue
            entries += 1
            cut = _cut(data, at, end) if end - at >= _LARGE_BYTES else None
            if cut is not None:
                name, small, content = cut
                front = varint(_INPUTS << 3 | BYTES) + varint(len(small))
                pieces += [data[kept:start], front, small]
                contents[name], kept = content, end
    except (IndexError, UnicodeDecodeError):
        return None
    return (b"".join([*pieces, data[kept:]]), contents, entries) if contents else None


def _cut(data: bytes, at: int, end: int) -> tuple[str, bytes, memoryview] | None:
    """Name, bytes without content, and content of an input; None of one in another form."""
    parts = {number: (begin, stop) for number, _, _, begin, stop in _fields(data, at, end)}
    if [*parts] != [_KEY, _VALUE]:
        return None
    (name_at, name_end), (tensor_at, tensor_end) = parts[_KEY], parts[_VALUE]
    found = [
        (start, begin, stop)
        for number, kind, start, begin, stop in _fields(data, tensor_at, tensor_end)
        if number == _CONTENT and kind == BYTES
    ]
    if len(found) != 1:
        return None
    ((start, begin, stop),) = found
    tensor = data[tensor_at:start] + data[stop:tensor_end]
    small = data[at:name_end] + varint(_VALUE << 3 | BYTES) + varint(len(tensor)) + tensor
    return data[name_at:name_end].decode(), small, memoryview(data)[begin:stop]


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Number and kind of each field, where it starts, and where its value begins and ends."""
    while at < end:
        start = at
        tag, at = _number(data, at)
        if tag & 7 == BYTES:
            size, at = _number(data, at)
            begin, at = at, at + size
        elif tag & 7 == VARINT:
            begin = at
            _, at = _number(data, at)
        else:
            raise IndexError("a field of another kind: the parser knows it")
        if at > end:
            raise IndexError("cut off")
        yield tag >> 3, tag & 7, start, begin, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("too long")
