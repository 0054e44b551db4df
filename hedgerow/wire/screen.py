"""What a message's bytes would be as objects, counted before a parser makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..core.protobuf import BYTES, FIXED32, FIXED64, VARINT

if TYPE_CHECKING:
    from .pool import Message

MOST_PARTS = 100_000  # a raw or packed tensor is few, each string and each entry of a map is one
MOST_VARINT_BYTES = 8 << 20  # packed numbers of 1 to 10 bytes each: all of 8 once they are read
_SMALL_BYTES = 128 << 10  # what is shorter cannot hold enough to harm

_VARINTS = frozenset((3, 4, 5, 13, 14, 17, 18))  # descriptors' numbers of int64, uint64, int32, ...


def check_parts(kind: type[Message], data: bytes) -> None:
    """Raises for a message of very many tiny fields or numbers: parsed, it takes 40 to 100 times
    its bytes.

    A parser holds Python's lock meanwhile, so one such request would stop all others. Bytes that
    are no message pass: the parser says what is wrong with them.

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
                else:  # a group's borders have nothing behind their tags
                    at += {FIXED64: 8, FIXED32: 4}.get(tag & 7, 0)
        except IndexError:  # cut off, and yet the parser reads all that stands before
            continue


def _refused(kind: type[Message], data: bytes, why: str) -> InputError:
    return InputError(f"this {kind.DESCRIPTOR.full_name} of {len(data)} bytes has {why}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7
