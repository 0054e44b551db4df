"""Converts messages to bytes and back: a limit on their memory, and clear errors for bad bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import DtypeError, InputError
from ..core.protobuf import BYTES, FIXED32, FIXED64, VARINT
from .buffers import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from .pool import Message


M = TypeVar("M", bound="Message")
# Packages of proto2 files: their parser accepts invalid UTF-8, which fails only when it is read.
_UNCHECKED_TEXT = {"monolith.parameter_sync", "monolith.model_export"}


def to_bytes(message: Message) -> bytes:
    """Returns a message's bytes. Map entries are sorted, so equal messages give equal bytes.

    >>> from hedgerow.wire.messages import agent_service
    >>> to_bytes(agent_service.GetReplicasRequest(task=3, model_name="m")).hex()
    '10031a016d'
    """
    from google.protobuf.message import EncodeError

    try:
        return message.SerializeToString(deterministic=True)
    except EncodeError as error:
        name = message.DESCRIPTOR.full_name
        raise InputError(
            f"this {name} cannot be written: {error}; a message holds at most "
            f"{MAX_MESSAGE_BYTES} bytes: send it in parts."
        ) from error


def from_bytes(kind: type[M], data: bytes | bytearray | memoryview) -> M:
    """Returns the message of type `kind` in some bytes.

    >>> from hedgerow.wire.messages import agent_service
    >>> from_bytes(agent_service.GetReplicasRequest, bytes.fromhex("10031a016d")).model_name
    'm'
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise DtypeError(f"data is a {type(data).__name__}; a message is read from bytes.")
    message = kind()
    try:
        message.ParseFromString(bytes(data))
        if _has_unchecked_text(kind):
            _decode_text(message)
    except (_decode_error(), UnicodeDecodeError) as error:
        name = kind.DESCRIPTOR.full_name
        raise InputError(
            f"these {len(data)} bytes are no {name}: {error}; send a serialized {name}."
        ) from error
    return message


@cache
def _has_unchecked_text(kind: Any) -> bool:
    return kind.DESCRIPTOR.file.package in _UNCHECKED_TEXT


def _decode_error() -> type[Exception]:
    from google.protobuf.message import DecodeError  # cached: an import per message would be slow

    return DecodeError


def _decode_text(message: Message) -> None:
    """Raises UnicodeDecodeError if a text field is not UTF-8: protobuf returns it as bytes."""
    for field, value in message.ListFields():
        if field.message_type:
            for inner in value:
                _decode_text(inner)
        elif field.type == field.TYPE_STRING:
            for text in [value] if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    text.decode()


MOST_PARTS = 100_000  # a raw or packed tensor has few parts; each string or map entry is one
MOST_VARINT_BYTES = 8 << 20  # of packed numbers: one byte can become a number of 8 bytes
_SMALL_BYTES = 128 << 10  # a smaller message cannot take much memory

_VARINTS = frozenset((3, 4, 5, 13, 14, 17, 18))  # descriptors' numbers of int64, uint64, int32, ...


def check_parts(kind: type[Message], data: bytes) -> None:
    """Raises if a message has very many tiny fields or numbers.

    Such a message takes 40 to 100 times its bytes once parsed, and the parser holds the GIL, so
    that one request would block all others. Invalid messages pass: the parser reports them.

    >>> from hedgerow.wire.messages import tf_serving
    >>> check_parts(tf_serving.PredictRequest, bytes.fromhex("1a00") * 200_000)
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: this tensorflow.serving.PredictRequest of 400000 bytes has \
more than 100000 fields; send numbers as raw content or packed, in fewer and larger fields.
    """
    if len(data) <= _SMALL_BYTES:
        return
    waiting: list[tuple[Any, int, int]] = [(kind.DESCRIPTOR, 0, len(data))]
    parts = varint_bytes = 0
    while waiting:
        described, at, end = waiting.pop()
        known = described.fields_by_number
        try:
            while at < end:
                parts += 1
                if parts > MOST_PARTS:
                    raise _refused(
                        kind,
                        data,
                        f"more than {MOST_PARTS} fields; send numbers as raw content or packed, in "
                        "fewer and larger fields.",
                    )
                tag, at = _varint(data, at)
                if tag & 7 == BYTES:
                    size, at = _varint(data, at)
                    field = known.get(tag >> 3)
                    if field is not None and field.message_type is not None:
                        waiting.append((field.message_type, at, min(at + size, end)))
                    elif field is not None and field.type in _VARINTS:
                        varint_bytes += size
                        if varint_bytes > MOST_VARINT_BYTES:
                            raise _refused(
                                kind,
                                data,
                                f"more than {MOST_VARINT_BYTES} bytes of typed whole numbers; send "
                                "them as raw content, which takes an eighth of the memory.",
                            )
                    at += size
                elif tag & 7 == VARINT:
                    _, at = _varint(data, at)
                else:  # a group's tags have no value
                    at += {FIXED64: 8, FIXED32: 4}.get(tag & 7, 0)
        except IndexError:  # truncated: the parser still reads the part before the end
            continue


def _refused(kind: type[Message], data: bytes, why: str) -> InputError:
    return InputError(f"this {kind.DESCRIPTOR.full_name} of {len(data)} bytes has {why}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at a place, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7
