"""How many elements a message claims, checked before any memory is taken for them."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.errors import InputError

MAX_RANK = 32  # numpy 1 has no more; real tensors have fewer than ten dimensions
# A few bytes may claim a tensor of any size by leaving values out, so what is not in the message is
# bounded; 64 MiB is far above what a recommender sends as one repeated value.
MAX_REPEATED_BYTES = 64 << 20
MAX_MESSAGE_BYTES = (1 << 31) - 1  # protobuf reads and writes nothing larger


def checked_shape(name: str, dims: Iterable[int], width: int) -> tuple[tuple[int, ...], int]:
    """The shape and its number of elements.

    >>> checked_shape("x", [2, 3], 4)
    ((2, 3), 6)
    """
    shape = tuple(dims)
    if len(shape) > MAX_RANK:
        raise InputError(f"{name} has {len(shape)} dimensions; at most {MAX_RANK}: reshape it.")
    count, reach = 1, width  # a loop: this runs for every tensor of every request
    for size in shape:
        if size < 0:
            raise InputError(f"{name} has shape {shape}; a tensor's sizes are 0 or more, never -1.")
        count *= size
        reach *= size or 1
    if reach >= 1 << 63:
        raise InputError(
            f"{name} has shape {shape}, more bytes than addresses; send the shape of the values."
        )
    return shape, count


def check_length(name: str, shape: tuple[int, ...], expected: int, found: int) -> None:
    """The buffer has exactly the bytes of the shape."""
    if found != expected:
        raise InputError(
            f"{name} of shape {shape} has a buffer of {found} bytes; it must be {expected}: "
            "send the whole row-major little-endian buffer."
        )


def check_repeated(name: str, shape: tuple[int, ...], size_bytes: int) -> None:
    """What a message leaves out may be filled in."""
    if size_bytes > MAX_REPEATED_BYTES:
        raise InputError(
            f"{name} of shape {shape} leaves out values of {size_bytes} bytes; at most "
            f"{MAX_REPEATED_BYTES} are filled in: send all values."
        )


def check_sendable(name: str, size_bytes: int) -> None:
    """A buffer fits into a message."""
    if size_bytes > MAX_MESSAGE_BYTES:
        raise InputError(
            f"{name} has {size_bytes} bytes; a message holds at most {MAX_MESSAGE_BYTES}: "
            "send it in parts."
        )
