"""Small lookups, most of what a server is asked, in as few steps as Python allows.

Every request can go the long way (frames, desk, service), and what is not plain does. A small
lookup spends most of its time there on objects between socket and rows; here are none.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np

from ..core.errors import HedgerowError
from .desk import SMALL_IDS, Desk
from .frames import ANSWER, MAGIC, REQUEST, SMALL_BYTES, STEP, VERSION, Status, Verb
from .service import MISSING

FIRST_FRAME_BYTES = 2**21
"""Of the frame with the head, whatever is in it: a longer one is none of ours."""
_LINE_BYTES = 64  # rows that begin on a line of the cache are written faster
_LOOKUP, _DONE = int(Verb.LOOKUP), int(Status.DONE)


class ShortWay:
    """The memory that requests are read into and answers are written to. Single-owner: the loop."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.room, self._request_at = _memory(FIRST_FRAME_BYTES, 0)
        self._answer, self._rows_at = _memory(ANSWER.size + SMALL_BYTES, ANSWER.size)

    def answer(self, length: int) -> memoryview | None:
        """The answer to the request in `room`, good until the next; None: go the long way."""
        if length < REQUEST.size:
            return None
        found = REQUEST.unpack_from(self.room)
        magic, version, verb, flags, wire, missing, tables, rates, _, client, sequence = found[:11]
        if verb != _LOOKUP or magic != MAGIC or version != VERSION or wire or rates:
            return None
        if flags & ~STEP or missing >= len(MISSING) or not self._desk.is_free(client, found[12]):
            return None
        step = found[15] if flags else None
        size = self._look_up(length, tables, missing, step)
        if not size:
            return None
        ANSWER.pack_into(
            self._answer,
            0,
            MAGIC,
            VERSION,
            _LOOKUP,
            _DONE,
            0,
            1,
            0,
            sequence,
            self._desk.incarnation,
            0,
            1,
            0,
            0,
            0,
            0,
        )
        self._desk.count(_LOOKUP)
        return self._answer[:size]

    def _look_up(self, length: int, tables: int, missing: int, step: int | None) -> int:
        """Writes the rows; bytes of the answer, 0 if it is not for this way."""
        service = self._desk.service
        dims = service.store.dims
        ids_from = REQUEST.size + 8 * (tables + 1)
        if tables != len(dims) or length < ids_from:
            return 0
        splits = _splits_of(tables).unpack_from(self.room, REQUEST.size)
        ids, floats, last = splits[-1], 0, 0
        for dim, stop in zip(dims, splits[1:], strict=True):
            if stop < last:
                return 0
            floats, last = floats + dim * (stop - last), stop
        if splits[0] or length != ids_from + 8 * ids or ids > SMALL_IDS:
            return 0
        if 4 * floats > SMALL_BYTES or not ids:
            return 0
        ids_at = self._request_at + ids_from
        try:
            service.lookup_at(ids_at, splits, missing, step, self._rows_at)
        except HedgerowError:  # it is told on the long way
            return 0
        return ANSWER.size + 4 * floats


@lru_cache(maxsize=16)
def _splits_of(tables: int) -> struct.Struct:
    return struct.Struct(f"<{tables + 1}q")


def _memory(size: int, before: int) -> tuple[memoryview, int]:
    """So many bytes, and the address of those behind `before`, which begin on a line."""
    whole = np.empty(size + 2 * _LINE_BYTES, dtype=np.uint8)
    start = -(whole.ctypes.data + before) % _LINE_BYTES
    return whole[start : start + size].data, whole.ctypes.data + start + before
