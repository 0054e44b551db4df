"""Messages to bytes and back: one form for equal messages, and clear errors for broken bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..core.errors import DtypeError, InputError

if TYPE_CHECKING:
    from .pool import Message

M = TypeVar("M", bound="Message")


def to_bytes(message: Message) -> bytes:
    """The message's bytes; entries of maps are sorted by key, so equal messages give equal bytes.

    >>> from hedgerow.wire.messages import agent_service
    >>> to_bytes(agent_service.GetReplicasRequest(task=3, model_name="m")).hex()
    '10031a016d'
    """
    return message.SerializeToString(deterministic=True)


def from_bytes(kind: type[M], data: bytes | bytearray | memoryview) -> M:
    """A message of `kind` read from bytes.

    >>> from hedgerow.wire.messages import agent_service
    >>> from_bytes(agent_service.GetReplicasRequest, bytes.fromhex("10031a016d")).model_name
    'm'
    """
    from google.protobuf.message import DecodeError

    if not isinstance(data, bytes | bytearray | memoryview):
        raise DtypeError(f"data is a {type(data).__name__}; a message is read from bytes.")
    message = kind()
    try:
        message.ParseFromString(bytes(data))
    except (DecodeError, UnicodeDecodeError) as error:
        name = kind.DESCRIPTOR.full_name
        raise InputError(
            f"these {len(data)} bytes are no {name}: {error}; send a serialized {name}."
        ) from error
    return message
