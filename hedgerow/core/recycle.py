"""Memory of large results, used again once nobody holds the result that was in it."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_LEAST_BYTES = 1 << 20  # below this the allocator of the C library keeps memory by itself
_KEEP_BYTES = 128 << 20


@dataclass(eq=False, slots=True)
class _Block:
    """Memory that is compared as a thing: tensors compare their values, one by one."""

    memory: Tensor


class Recycler:
    """New float32 tensors, in memory of earlier ones where that is free.

    The system gives large memory page by page, cleared, on first touch: that takes longer than
    filling it. Memory comes back when the last tensor that shares it is gone, and at most 128 MiB
    of it waits here for the next. No lock: a tensor may die in any thread, within a `take`, too.

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
        """A tensor of `floats` values, none of them set, and whether its memory was used before.

        It is in host memory, whatever torch's default device is.
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
        """Gives back what waits."""
        self._free.clear()

    def kept_bytes(self) -> int:
        """Bytes that wait for the next result."""
        return sum(4 * len(block.memory) for block in tuple(self._free))

    def _fitting(self, floats: int) -> _Block | None:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took the last
                return None
            if floats <= len(block.memory) <= 2 * floats:
                return block
            self._free.append(block)
        return None


def give_freed_memory_back() -> None:
    """What the C library keeps of freed memory goes back to the system, where it can do that.

    It keeps up to twice the largest block that was freed: of large results up to 64 MiB.

    >>> give_freed_memory_back()
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _give_back(free: deque[_Block], block: _Block) -> None:
    free.append(block)
    kept = 0
    for older in reversed(tuple(free)):  # the newest stay
        kept += 4 * len(older.memory)
        if kept > _KEEP_BYTES:
            try:
                free.remove(older)
            except ValueError:  # taken, or thrown away, by another thread
                continue
