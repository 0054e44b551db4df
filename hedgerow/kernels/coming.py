"""Whole rows of several tables on their way to a device, in one piece of memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core.shapes import Bool, Float32, Int64
from .toolchain import jit, tl

_TOGETHER = tl.constexpr(16)  # rows: then every part begins where the device reads it in one go


@dataclass(frozen=True, eq=False)
class Coming:
    """Rows with their ids, states and times, and which of them were found, table after table.

    The piece lies on the device, or in host memory that the device reaches by itself. All parts of
    it are whole `words`: where the rows of each table begin, and of the last end; then ids, times,
    rows, states, and what was found.
    """

    words: Int64[Tensor, "words"]
    tables: int
    rows: int
    dim: int
    state_floats: int

    @staticmethod
    def words_of(tables: int, rows: int, dim: int, state_floats: int) -> int:
        """How many so many rows take.

        >>> Coming.words_of(2, 10, 4, 0)
        70
        """
        room = _room(rows)
        return _head(tables) + 2 * room + (dim + state_floats) * room // 2 + room // 8

    @cached_property
    def places(self) -> tuple[int, int, int, int, int]:
        """Where ids, times, rows, states and what was found begin, in words."""
        room, ids = _room(self.rows), _head(self.tables)
        rows = ids + 2 * room
        states = rows + self.dim * room // 2
        return ids, ids + room, rows, states, states + self.state_floats * room // 2

    @property
    def cuts(self) -> Int64[Tensor, "K+1"]:
        """Where the rows of each table begin, and of the last end."""
        return self.words[: self.tables + 1]

    def parts(
        self,
    ) -> tuple[
        Int64[Tensor, "n"],
        Bool[Tensor, "n"],
        Float32[Tensor, "n dim"],
        Float32[Tensor, "n floats"],
        Int64[Tensor, "n"],
    ]:
        """Ids, what was found, rows, states and times, without a copy.

        >>> piece = Coming(torch.zeros(Coming.words_of(2, 3, 1, 1), dtype=torch.int64), 2, 3, 1, 1)
        >>> ids, found, rows, states, times = piece.parts()
        >>> rows[2] = 7.0
        >>> ids.tolist(), found.tolist(), rows.tolist(), states.shape[1]
        ([0, 0, 0], [False, False, False], [[0.0], [0.0], [7.0]], 1)
        """
        n, words = self.rows, self.words
        ids, times, rows, states, found = self.places
        floats = self.words.view(torch.float32)
        return (
            words[ids : ids + n],
            words[found:].view(torch.bool)[:n],
            floats[2 * rows : 2 * rows + n * self.dim].view(n, self.dim),
            floats[2 * states : 2 * states + n * self.state_floats].view(n, self.state_floats),
            words[times : times + n],
        )


def _head(tables: int) -> int:
    return (tables + 2) // 2 * 2


def _room(rows: int) -> int:
    together: int = _TOGETHER.value
    return (rows + together - 1) // together * together


@jit
def parts_of(
    piece: tl.tensor,
    n: tl.tensor,
    K: tl.constexpr,
    DIM: tl.constexpr,
    STATES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """`Coming.parts` of n rows, as pointers."""
    room = (n.to(tl.int64) + _TOGETHER - 1) // _TOGETHER * _TOGETHER
    ids = piece + (K + 2) // 2 * 2
    times = ids + room
    rows = (times + room).to(tl.pointer_type(tl.float32))
    states = rows + DIM * room
    found = (states + STATES * room).to(tl.pointer_type(tl.int8))
    return ids, found, rows, states, times
