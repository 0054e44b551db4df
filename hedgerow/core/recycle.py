"""Memory of large results, used again once nobody holds the result that was in it."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor

_LEAST_BYTES = 1 << 20  # below this the allocator of the C library keeps memory by itself
_KEEP_BYTES = 128 << 20


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
        self._free: deque[Tensor] = deque()

    def take(self, floats: int) -> tuple[Tensor, bool]:
        """A tensor of so many values, none of them set, and whether its memory was used before."""
        if 4 * floats < _LEAST_BYTES:
            return torch.empty(floats), False
        memory = self._fitting(floats)
        used = memory is not None
        if memory is None:
            memory = torch.empty(floats)
        loan = (ctypes.c_float * floats).from_address(memory.data_ptr())
        weakref.finalize(loan, _give_back, self._free, memory).atexit = False
        return torch.from_numpy(np.ctypeslib.as_array(loan)), used

    def kept_bytes(self) -> int:
        """Bytes that wait for the next result."""
        return sum(4 * len(memory) for memory in tuple(self._free))

    def _fitting(self, floats: int) -> Tensor | None:
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # another thread took the last
                return None
            if floats <= len(memory) <= 2 * floats:
                return memory
            self._free.append(memory)
        return None


def _give_back(free: deque[Tensor], memory: Tensor) -> None:
    free.append(memory)
    kept = 0
    for older in reversed(tuple(free)):  # the newest stay
        kept += 4 * len(older)
        if kept > _KEEP_BYTES:
            try:
                free.remove(older)
            except ValueError:  # taken, or thrown away, by another thread
                continue
