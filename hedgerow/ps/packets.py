"""How a message lies in a packet of the local socket, and in memory that both sides share.

A head and at most one buffer follow each other, as in the frame of a small message. Before others
stands how long each buffer is, and where they begin if they lie in a shared block.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import FrameError
from .frames import MAX_FRAMES, Buffer

PACKET_BYTES = 2**17
"""Of one packet; what is longer lies in shared memory."""
_LINE_BYTES = 64  # buffers in shared memory begin on a line of the cache
PRELUDE = b"HRLP"
"""The first bytes of what stands before a head."""
_BUFFERS = MAX_FRAMES - 1
_PRELUDE = struct.Struct(f"<4sIQQ{_BUFFERS}Q")  # magic, buffers, block, start of the first, lengths


@dataclass(slots=True)
class Packet:
    """A packet as it arrived: its head, and the buffers in it or where they lie in a block."""

    head: memoryview
    buffers: list[memoryview]
    block: int = 0
    spans: Sequence[slice] = ()


def spans_of(lengths: Sequence[int], start: int = 0) -> list[slice]:
    """Where buffers of these lengths lie in a block.

    >>> spans_of([8, 100])
    [slice(0, 8, None), slice(64, 164, None)]
    """
    spans = []
    for length in lengths:
        spans.append(slice(start, start + length))
        start = -(-(start + length) // _LINE_BYTES) * _LINE_BYTES
    return spans


def end_of(spans: Sequence[slice]) -> int:
    """Where the next buffer would begin.

    >>> end_of(spans_of([8, 100]))
    192
    """
    return -(-spans[-1].stop // _LINE_BYTES) * _LINE_BYTES if spans else 0


def packet_of(head: Buffer, buffers: Sequence[Buffer]) -> list[Buffer]:
    """The pieces of a packet with everything in it."""
    if len(buffers) <= 1:
        return [head, *buffers]
    lengths = list[int]()
    for buffer in buffers:
        lengths.append(memoryview(buffer).nbytes)
    return [_prelude(lengths), head, *buffers]


def shared_packet(head: Buffer, block: int, spans: Sequence[slice]) -> list[Buffer]:
    """The pieces of a packet whose buffers lie in a block."""
    start = spans[0].start if spans else 0
    return [_prelude([span.stop - span.start for span in spans], block, start), head]


def _prelude(lengths: Sequence[int], block: int = 0, start: int = 0) -> bytes:
    padding = [0] * (_BUFFERS - len(lengths))
    return _PRELUDE.pack(PRELUDE, len(lengths), block, start, *lengths, *padding)


def is_plain(packet: memoryview) -> bool:
    """Whether nothing stands before the head."""
    return packet[:4] != PRELUDE


def from_head(packet: memoryview) -> memoryview:
    """A packet without what stands before its head."""
    return packet if is_plain(packet) else packet[_PRELUDE.size :]


def read_packet(packet: memoryview) -> Packet:
    """The message in a packet that is not plain, its lengths proved but for the block's.

    >>> found = read_packet(memoryview(b"".join(packet_of(b"head", [b"a", b"bc"]))))
    >>> bytes(found.head), [bytes(buffer) for buffer in found.buffers]
    (b'head', [b'a', b'bc'])
    """
    if len(packet) < _PRELUDE.size:
        raise FrameError(f"a packet of {len(packet)} bytes, too short for what stands before.")
    _, count, block, start, *lengths = _PRELUDE.unpack_from(packet)
    if count > _BUFFERS:
        raise FrameError(f"a packet of {count} buffers; at most {_BUFFERS} are allowed.")
    lengths, rest = lengths[:count], packet[_PRELUDE.size :]
    if block:
        return Packet(rest, [], block, spans_of(lengths, start))
    at = len(rest) - sum(lengths)
    if at < 0:
        raise FrameError(f"a packet of {len(packet)} bytes with {sum(lengths)} bytes of buffers.")
    found = Packet(rest[:at], [])
    for length in lengths:
        found.buffers.append(rest[at : at + length])
        at += length
    return found
