"""Messages between processes of one machine: packets of a Unix socket, and shared memory.

A packet with a head and at most one buffer has the layout of the first frame of a small message.
Any other packet starts with a prelude: the lengths of the buffers, and their position if they are
in a shared block.

A block belongs to one request at a time. If its request was sent twice or given up, the block is
never reused, because a late server may still read or write it.

A server on a loopback address without keys also listens on a Unix socket, whose name is derived
from the address. The name exists in the network namespace of the machine, and only while the
process runs. The socket keeps packets apart and transfers descriptors of shared memory, so large
rows are not copied through it.
"""

from __future__ import annotations

import fcntl
import ipaddress
import mmap
import os
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import ConfigError
from .errors import FrameError
from .messages import MAX_FRAMES, Buffer

PACKET_BYTES = 2**17
"""The largest packet. Longer messages use shared memory."""
_LINE_BYTES = 64  # buffers in shared memory start on a cache line
PRELUDE = b"HRLP"
"""The first bytes of a prelude."""
_BUFFERS = MAX_FRAMES - 1
_PRELUDE = struct.Struct(f"<4sIQQ{_BUFFERS}Q")  # magic, buffers, block, start of the first, lengths


@dataclass(slots=True)
class Packet:
    """A received packet: its head, and its buffers or their positions in a block."""

    head: memoryview
    buffers: list[memoryview]
    block: int = 0
    spans: Sequence[slice] = ()


def spans_of(lengths: Sequence[int], start: int = 0) -> list[slice]:
    """Returns the positions of buffers of these lengths in a block.

    >>> spans_of([8, 100])
    [slice(0, 8, None), slice(64, 164, None)]
    """
    spans = []
    for length in lengths:
        spans.append(slice(start, start + length))
        start = -(-(start + length) // _LINE_BYTES) * _LINE_BYTES
    return spans


def end_of(spans: Sequence[slice]) -> int:
    """Returns the position of the next buffer.

    >>> end_of(spans_of([8, 100]))
    192
    """
    return -(-spans[-1].stop // _LINE_BYTES) * _LINE_BYTES if spans else 0


def packet_of(head: Buffer, buffers: Sequence[Buffer]) -> list[Buffer]:
    """Returns the pieces of a packet that contains its buffers."""
    if len(buffers) <= 1:
        return [head, *buffers]
    lengths = list[int]()
    for buffer in buffers:
        lengths.append(memoryview(buffer).nbytes)
    return [_prelude(lengths), head, *buffers]


def shared_packet(head: Buffer, block: int, spans: Sequence[slice]) -> list[Buffer]:
    """Returns the pieces of a packet whose buffers are in a block."""
    start = spans[0].start if spans else 0
    return [_prelude([span.stop - span.start for span in spans], block, start), head]


def _prelude(lengths: Sequence[int], block: int = 0, start: int = 0) -> bytes:
    padding = [0] * (_BUFFERS - len(lengths))
    return _PRELUDE.pack(PRELUDE, len(lengths), block, start, *lengths, *padding)


def is_plain(packet: memoryview) -> bool:
    """Whether the packet has no prelude."""
    return packet[:4] != PRELUDE


def from_head(packet: memoryview) -> memoryview:
    """Returns a packet without its prelude."""
    return packet if is_plain(packet) else packet[_PRELUDE.size :]


def read_packet(packet: memoryview) -> Packet:
    """Reads a packet with a prelude and checks its lengths, except the size of a block.

    >>> found = read_packet(memoryview(b"".join(packet_of(b"head", [b"a", b"bc"]))))
    >>> bytes(found.head), [bytes(buffer) for buffer in found.buffers]
    (b'head', [b'a', b'bc'])
    """
    if len(packet) < _PRELUDE.size:
        raise FrameError(f"a packet of {len(packet)} bytes, too short for its prelude.")
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


SLOTS = 4  # blocks of one connection
MAX_BLOCK_BYTES = 2**31
_LEAST_BYTES = 2**20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedBlock:
    """Shared memory with a number that is unique in its connection."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.once = number, True
        self.fd = os.memfd_create("hedgerow-ps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self.view = memoryview(mmap.mmap(self.fd, size))
        except OSError:
            os.close(self.fd)
            raise

    def passed(self) -> None:
        """Closes the descriptor after the server has received it. The memory stays mapped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class ClientBlocks:
    """The blocks of a client's connection. Single-owner: the thread that owns the socket."""

    def __init__(self) -> None:
        self._slots: list[SharedBlock | None] = [None] * SLOTS
        self.lent: dict[int, SharedBlock] = {}  # by sequence of the request
        self._made = 0

    def take(self, sequence: int, size: int, *, once: bool) -> SharedBlock | None:
        """Returns a block for a request, or None if all blocks are in use.

        `once` is true if the request is sent for the first time. Raises `OSError` if there is no
        memory.

        >>> blocks = ClientBlocks()
        >>> first = blocks.take(1, 100, once=True)
        >>> blocks.give(1, again=True)
        >>> blocks.take(2, 50, once=True) is first
        True
        """
        if size > MAX_BLOCK_BYTES:
            raise OSError(f"a request of {size} bytes; at most {MAX_BLOCK_BYTES} are shared.")
        self.give(sequence, again=False)  # the request is sent again
        lent = [block.number % SLOTS for block in self.lent.values()]
        free = [slot for slot in range(SLOTS) if slot not in lent]
        if not free:
            return None
        sizes = {slot: len(block.view) for slot in free if (block := self._slots[slot])}
        fitting = [slot for slot, has in sizes.items() if has >= size]
        slot = min(fitting, key=sizes.__getitem__) if fitting else _first(free, sizes)
        block = self._slots[slot] if fitting else None
        if block is None:
            block = self._make(slot, size)
        block.once = once
        self.lent[sequence] = block
        return block

    def of(self, sequence: int) -> SharedBlock | None:
        """Returns the block of a request in flight."""
        return self.lent.get(sequence)

    def give(self, sequence: int, *, again: bool) -> None:
        """Frees the block of a finished request.

        `again` is true if the request was answered, so that the block can be reused.
        """
        block = self.lent.pop(sequence, None)
        if block is not None and not (again and block.once):
            block.passed()
            self._slots[block.number % SLOTS] = None

    def close(self) -> None:
        """Frees all blocks."""
        for block in filter(None, self._slots):
            block.passed()
        self._slots = [None] * SLOTS
        self.lent.clear()

    def _make(self, slot: int, size: int) -> SharedBlock:
        old = self._slots[slot]
        if old is not None:
            old.passed()
        self._made += 1
        size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        made = self._slots[slot] = SharedBlock(self._made * SLOTS + slot, size)
        return made


def _first(free: list[int], sizes: dict[int, int]) -> int:
    """Returns an empty slot, or the slot of the smallest block."""
    return min(free, key=lambda slot: sizes.get(slot, 0))


class ServerBlocks:
    """The blocks of one client, in the server. They are freed with the connection."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, memoryview]] = {}

    def add(self, number: int, fd: int) -> None:
        """Maps a block that arrived with a packet. It replaces an earlier one in its slot."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            size = os.fstat(fd).st_size
            if not seals & fcntl.F_SEAL_SHRINK or not 0 < size <= MAX_BLOCK_BYTES:
                raise FrameError(f"shared memory of {size} bytes with seals {seals}.")
            self._slots[number % SLOTS] = number, memoryview(mmap.mmap(fd, size))
        except OSError as error:
            raise FrameError(f"shared memory cannot be mapped: {error.strerror}.") from error

    def of(self, number: int) -> memoryview:
        """Returns the memory of a block."""
        known, view = self._slots.get(number % SLOTS, (0, memoryview(b"")))
        if known != number:
            raise FrameError(f"block {number}, which was never shared.")
        return view


_UNIX_BUFFER_BYTES = 2**22
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_WAITING = 128  # clients that are not accepted yet


def unix_name(address: str) -> str | None:
    """Returns the Unix socket name of a server at `address`; None if it cannot have one.

    >>> unix_name("tcp://127.0.0.1:7000")
    'hedgerow-ps-127.0.0.1:7000'
    >>> unix_name("tcp://10.0.0.1:7000") is None
    True
    """
    transport, _, place = address.partition("://")
    host = place.rpartition(":")[0].strip("[]")
    try:
        is_loopback = transport == "tcp" and ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        is_loopback = False
    return f"hedgerow-ps-{place}" if is_loopback and sys.platform == "linux" else None


def listen_unix(address: str) -> socket.socket | None:
    """Returns the listening Unix socket of a server at `address`; None if it cannot have one."""
    name = unix_name(address)
    if name is None:
        return None
    made = _socket()
    try:
        made.bind("\0" + name)
    except OSError as error:  # clients would connect to another process
        made.close()
        raise ConfigError(
            f"cannot listen at {name}, the local socket of {address}: {error.strerror}. Choose a "
            f"free port."
        ) from error
    made.listen(_WAITING)
    return made


def connected_socket(address: str) -> socket.socket | None:
    """Returns a connection to a server of this machine and user; None if there is none.

    >>> connected_socket("tcp://127.0.0.1:1") is None
    True
    """
    name = unix_name(address)
    if name is None:
        return None
    made = _socket()
    try:
        made.connect("\0" + name)
        fits = is_of_this_user(made) and takes_packets(made)
    except OSError:  # no server listens, or its queue is full
        fits = False
    if fits:
        return made
    made.close()
    return None


def is_of_this_user(connected: socket.socket) -> bool:
    """Whether the peer has the same user, and so may access this process's memory anyway."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(told)[1] == os.geteuid()


def takes_packets(connected: socket.socket) -> bool:
    """Enlarges the send buffer for packets. Returns whether the system allows the needed size."""
    connected.setblocking(False)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER_BYTES)
    return connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 2 * PACKET_BYTES


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made
