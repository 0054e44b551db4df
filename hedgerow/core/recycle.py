"""Reuse of the memory of large tensors after the last reference to them is gone."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_LEAST_BYTES = 1 << 20  # the C library's allocator keeps smaller blocks itself
_KEEP_BYTES = 128 << 20


@dataclass(eq=False, slots=True)
class _Block:
    """A block of memory that compares by identity. Tensors compare by value."""

    memory: Tensor


class Recycler:
    """Allocates float32 tensors, reusing the memory of freed ones.

    The system clears large allocations page by page on first touch, which takes longer than filling
    them. A block is returned when the last tensor that shares it is freed. At most 128 MiB of
    returned blocks are kept. There is no lock, because a tensor may be freed in any thread, even
    during `take`.

    >>> recycler = Recycler()
    >>> first, used = recycler.take(1 << 20)
    >>> used
    False
    >>> del first
    >>> second, used = recycler.take(1 << 20)
    >>> used, second.shape
    (True, torch.Size([1048576]))
    """

    def __init__(self) -> None:
        self._free: deque[_Block] = deque()

    def take(self, floats: int) -> tuple[Tensor, bool]:
        """Returns an uninitialized tensor of `floats` values, and whether its memory is reused.

        The tensor is in host memory, whatever torch's default device is.
        """
        if 4 * floats < _LEAST_BYTES:
            return torch.empty(floats, dtype=torch.float32, device="cpu"), False
        block = self._fitting(floats)
        used = block is not None
        if block is None:
            block = _Block(torch.empty(floats, dtype=torch.float32, device="cpu"))
        loan = (ctypes.c_float * floats).from_address(block.memory.data_ptr())
        weakref.finalize(loan, _give_back, self._free, block).atexit = False
        return torch.from_numpy(np.ctypeslib.as_array(loan)), used

    def clear(self) -> None:
        """Frees the blocks that are kept for reuse."""
        self._free.clear()

    def kept_bytes(self) -> int:
        """Returns the bytes of the blocks that are kept for reuse."""
        return sum(4 * len(block.memory) for block in tuple(self._free))

    def _fitting(self, floats: int) -> _Block | None:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took the last block
                return None
            if floats <= len(block.memory) <= 2 * floats:
                return block
            self._free.append(block)
        return None


def give_freed_memory_back() -> None:
    """Asks the C library to return freed memory to the system, if it supports that.

    The library may keep up to twice the largest freed block, at most 64 MiB.

    >>> give_freed_memory_back()
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _give_back(free: deque[_Block], block: _Block) -> None:
    free.append(block)
    kept = 0
    for older in reversed(tuple(free)):  # the newest blocks are kept
        kept += 4 * len(older.memory)
        if kept > _KEEP_BYTES:
            try:
                free.remove(older)
            except ValueError:  # another thread took or removed it
                continue
