"""Tensors of KServe v2 requests and responses: raw buffers in order, or typed contents."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..core.errors import DtypeError, InputError
from . import buffers, dtypes
from .buffers import Array
from .dtypes import BYTES
from .tensors import Compat, check_compat

_LENGTH = struct.Struct("<I")


def join_strings(items: list[bytes]) -> bytes:
    """Returns a buffer with all strings, each after its length.

    >>> join_strings([b"ab", b""]).hex()
    '02000000616200000000'
    """
    return b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))


def split_strings(name: str, data: bytes) -> list[bytes]:
    """Returns the strings in a buffer of join_strings().

    >>> split_strings("words", bytes.fromhex("02000000616200000000"))
    [b'ab', b'']
    """
    items, place = [], 0
    while place < len(data):
        begin = place + _LENGTH.size
        end = begin + _LENGTH.unpack_from(data, place)[0] if begin <= len(data) else begin
        if end > len(data):
            raise InputError(
                f"{name} ends at byte {len(data)} inside a string that begins at {place}; "
                "each string follows its length in four little-endian bytes."
            )
        items.append(data[begin:end])
        place = end
    return items


if TYPE_CHECKING:
    from .messages.kserve import ModelInferRequest, ModelInferResponse

    InferTensor = ModelInferRequest.InferInputTensor | ModelInferResponse.InferOutputTensor

Values = Mapping[str, Tensor | Array]


def read_inputs(request: ModelInferRequest) -> dict[str, Tensor | Array]:
    """Returns the inputs of a request by name: tensors, or numpy arrays of bytes objects."""
    return _read(request.inputs, request.raw_input_contents)


def read_outputs(response: ModelInferResponse) -> dict[str, Tensor | Array]:
    """Returns the outputs of a response by name, as read_inputs() does."""
    return _read(response.outputs, response.raw_output_contents)


def write_inputs(request: ModelInferRequest, values: Values, *, compat: Compat = None) -> None:
    """Adds inputs to a request: raw buffers, or with `compat="typed"` typed contents.

    >>> import torch
    >>> from hedgerow.wire.messages import kserve
    >>> request = kserve.ModelInferRequest()
    >>> write_inputs(request, {"id": torch.tensor([7, 8])})
    >>> request.inputs[0].datatype, read_inputs(request)["id"]
    ('INT64', tensor([7, 8]))
    """
    check_compat(compat)
    for name, value in values.items():
        buffer = _write(request.inputs.add(), name, value, compat)
        if compat is None:
            request.raw_input_contents.append(buffer)


def write_outputs(response: ModelInferResponse, values: Values, *, compat: Compat = None) -> None:
    """Adds outputs to a response, as write_inputs() does."""
    check_compat(compat)
    for name, value in values.items():
        buffer = _write(response.outputs.add(), name, value, compat)
        if compat is None:
            response.raw_output_contents.append(buffer)


def _write(tensor: InferTensor, name: str, value: Tensor | Array, compat: Compat) -> bytes:
    """Writes name, datatype and shape; returns the raw buffer, empty if the values are typed."""
    tensor.name = name
    if buffers.is_text(value):
        buffer = _write_strings(tensor, buffers.flat_strings(name, np.asarray(value)), compat)
    else:
        buffer = _write_numbers(tensor, name, value, compat)
    tensor.shape.extend(value.shape)
    buffers.check_sendable(name, len(buffer))
    return buffer


def _write_strings(tensor: InferTensor, items: list[bytes], compat: Compat) -> bytes:
    tensor.datatype = BYTES
    if compat is None:
        return join_strings(items)
    tensor.contents.bytes_contents.extend(items)
    return b""


def _write_numbers(tensor: InferTensor, name: str, value: Tensor | Array, compat: Compat) -> bytes:
    element, bits = buffers.flat_bits(name, value)
    if element.kserve is None:
        raise DtypeError(
            f"{name} has element type {element.name}, which KServe does not have; convert it, "
            "for example to float32."
        )
    tensor.datatype = element.kserve
    if compat is None:
        return bits.tobytes()
    buffers.append_numbers(tensor.contents, _contents_of(name, tensor.datatype), bits)
    return b""


def _contents_of(name: str, datatype: str) -> str:
    """Returns the field of typed contents for a datatype."""
    field = dtypes.of_kserve(datatype).contents
    if field is None:
        raise DtypeError(f"{name} is {datatype}, which has no typed contents; send it raw.")
    return field


def _read(tensors: Iterable[InferTensor], raw: Sequence[bytes]) -> dict[str, Tensor | Array]:
    found: dict[str, Tensor | Array] = {}
    listed = list(tensors)
    if raw and len(raw) != len(listed):
        raise InputError(
            f"{len(raw)} raw buffers came for {len(listed)} tensors; send one for each, in order."
        )
    for place, tensor in enumerate(listed):
        if tensor.name in found:
            raise InputError(f"tensor {tensor.name!r} came twice; send each name once.")
        if raw and tensor.HasField("contents"):
            raise InputError(f"{tensor.name} has typed contents beside raw buffers; send one form.")
        found[tensor.name] = _read_one(tensor, raw[place] if raw else None)
    return found


def _read_one(tensor: InferTensor, raw: bytes | None) -> Tensor | Array:
    if tensor.datatype == BYTES:
        return _read_strings(tensor, raw)
    name, element = tensor.name, dtypes.of_kserve(tensor.datatype)
    shape, count = buffers.checked_shape(name, tensor.shape, element.width)
    if raw is not None:
        buffers.check_length(name, shape, count * element.width, len(raw))
        bits = np.frombuffer(raw, dtype=element.bits)
    else:
        field = _contents_of(name, tensor.datatype)
        _check_count(name, shape, count, len(getattr(tensor.contents, field)))
        wide = {"int_contents": "<i4", "uint_contents": "<u4", "bool_contents": "?"}
        values = buffers.read_numbers(tensor.contents, field, wide.get(field, element.bits), count)
        bits = values.astype(element.bits, copy=False)
    return buffers.as_torch(
        element, buffers.as_bools(bits) if element.name == "bool" else bits, shape
    )


def _read_strings(tensor: InferTensor, raw: bytes | None) -> Array:
    shape, count = buffers.checked_shape(tensor.name, tensor.shape, 8)
    contents = tensor.contents.bytes_contents
    items = list(contents) if raw is None else split_strings(tensor.name, raw)
    _check_count(tensor.name, shape, count, len(items))
    return buffers.as_strings(items, shape)


def _check_count(name: str, shape: tuple[int, ...], expected: int, found: int) -> None:
    if found != expected:
        raise InputError(
            f"{name} of shape {shape} has {found} values; it must have {expected}: send them all, "
            "as raw buffers or as typed contents."
        )
