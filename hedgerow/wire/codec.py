"""Messages to bytes and back: one form for equal messages, and clear errors for broken bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import DtypeError, InputError
from .sizes import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from .pool import Message

M = TypeVar("M", bound="Message")
# Of proto2: their parser takes any bytes as text, and only reading the text would tell.
_UNCHECKED_TEXT = {"monolith.parameter_sync", "monolith.model_export"}


def to_bytes(message: Message) -> bytes:
    """The message's bytes; entries of maps are sorted by key, so equal messages give equal bytes.

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
    """A message of `kind` read from bytes.

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
    from google.protobuf.message import DecodeError  # here: an import a message takes its time

    return DecodeError


def _decode_text(message: Message) -> None:
    """Raises UnicodeDecodeError for a text inside that is none: protobuf hands it out as bytes."""
    for field, value in message.ListFields():
        if field.message_type:
            for inner in value:
                _decode_text(inner)
        elif field.type == field.TYPE_STRING:
            for text in [value] if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    text.decode()
