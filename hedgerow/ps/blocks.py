"""Blocks of memory that a client makes and shares with a server, both for a request and its answer.

A block belongs to one request at a time. One whose request was sent twice, or given up, is never
used again: a server that is late may still read it or write to it.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from .errors import FrameError

SLOTS = 4  # blocks of one connection
MAX_BLOCK_BYTES = 2**31
_LEAST_BYTES = 2**20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Block:
    """Shared memory with a number that no other block of the connection has."""

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
        """The server has it; the memory stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Blocks:
    """The blocks of a client's connection. Single-owner: whoever has the turn."""

    def __init__(self) -> None:
        self._slots: list[Block | None] = [None] * SLOTS
        self.lent: dict[int, Block] = {}  # by the sequence of the request
        self._made = 0

    def take(self, sequence: int, size: int, *, once: bool) -> Block | None:
        """A block for a request, which is sent `once` so far; None while all are lent.

        Raises `OSError` if there is no memory.

        >>> blocks = Blocks()
        >>> first = blocks.take(1, 100, once=True)
        >>> blocks.give(1, again=True)
        >>> blocks.take(2, 50, once=True) is first
        True
        """
        if size > MAX_BLOCK_BYTES:
            raise OSError(f"a request of {size} bytes; at most {MAX_BLOCK_BYTES} are shared.")
        self.give(sequence, again=False)  # it is sent again
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

    def of(self, sequence: int) -> Block | None:
        """The block of a request under way."""
        return self.lent.get(sequence)

    def give(self, sequence: int, *, again: bool) -> None:
        """The request is done; `again`: it was answered, so nobody touches its block any more."""
        block = self.lent.pop(sequence, None)
        if block is not None and not (again and block.once):
            block.passed()
            self._slots[block.number % SLOTS] = None

    def close(self) -> None:
        """The connection is at its end."""
        for block in filter(None, self._slots):
            block.passed()
        self._slots = [None] * SLOTS
        self.lent.clear()

    def _make(self, slot: int, size: int) -> Block:
        old = self._slots[slot]
        if old is not None:
            old.passed()
        self._made += 1
        size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        made = self._slots[slot] = Block(self._made * SLOTS + slot, size)
        return made


def _first(free: list[int], sizes: dict[int, int]) -> int:
    """An empty slot, or that of the smallest block."""
    return min(free, key=lambda slot: sizes.get(slot, 0))


class Shared:
    """The blocks of a client as its server knows them; they are gone with the connection."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, memoryview]] = {}

    def add(self, number: int, fd: int) -> None:
        """Takes a block that came with a packet, in place of an earlier one."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            size = os.fstat(fd).st_size
            if not seals & fcntl.F_SEAL_SHRINK or not 0 < size <= MAX_BLOCK_BYTES:
                raise FrameError(f"shared memory of {size} bytes with seals {seals}.")
            self._slots[number % SLOTS] = number, memoryview(mmap.mmap(fd, size))
        except OSError as error:
            raise FrameError(f"shared memory that is none: {error.strerror}.") from error

    def of(self, number: int) -> memoryview:
        """The memory of a block."""
        known, view = self._slots.get(number % SLOTS, (0, memoryview(b"")))
        if known != number:
            raise FrameError(f"block {number}, which was never shared.")
        return view
