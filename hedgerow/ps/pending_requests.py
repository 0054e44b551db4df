"""Requests of a client that wait for their answers, and where an answer is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ..core import errors as core_errors
from ..core.errors import HedgerowError
from ..core.shapes import Float32
from . import errors as own_errors
from .errors import FrameError, ServerRefusedError
from .messages import WRITES, Buffer, ServerAnswer, Verb, value_of, widened


class BufferReader(Protocol):
    """The rest of a message whose head was read."""

    def into(self, room: memoryview) -> int:
        """The next buffer, copied once; its length."""
        ...

    def frame(self) -> Buffer:
        """The next buffer as it is."""
        ...


class AnswerSink(Protocol):
    """Where an answer goes. `room_bytes`: its buffers at most, if they may be large."""

    room_bytes: int

    def take(self, answer: ServerAnswer, frames: int, rest: BufferReader) -> bool:
        """Takes one part; whether the answer is whole now."""
        ...


class KeptAnswer:
    """An answer of one part, kept with its buffers."""

    def __init__(self, room_bytes: int = 0) -> None:
        self.room_bytes = room_bytes
        self.answer: ServerAnswer | None = None
        self.frames: list[Buffer] = []

    def number(self, at: int = 0) -> int:
        """One of the numbers of the answer, which is here."""
        if self.answer is None:
            raise FrameError("an answer that is not here yet.")
        return self.answer.numbers[at]

    @property
    def incarnation(self) -> int:
        """The life of the server that gave the answer, which is here."""
        if self.answer is None:
            raise FrameError("an answer that is not here yet.")
        return self.answer.incarnation

    def take(self, answer: ServerAnswer, frames: int, rest: BufferReader) -> bool:
        """Keeps it."""
        self.answer, self.frames = answer, []
        for _ in range(frames):
            self.frames.append(rest.frame())
        return True


class RowsInto:
    """Rows that go straight into their place; parts may come in any order, and twice."""

    def __init__(self, out: Float32[Tensor, "floats"]) -> None:
        self._out = out
        self._bytes = out.numpy().data.cast("B") if out.numel() else memoryview(b"")
        self.room_bytes = len(self._bytes)
        self._there: set[int] = set()
        self._taken = 0

    def take(self, answer: ServerAnswer, frames: int, rest: BufferReader) -> bool:
        """Puts one part into its place."""
        if frames != 1:
            raise FrameError(f"a part of rows in {frames} buffers; it has one.")
        if answer.wire:
            taken = self._take_narrow(answer, rest)
        else:
            taken = rest.into(self._bytes[4 * answer.offset :])
        if answer.part not in self._there:
            self._there.add(answer.part)
            self._taken += taken
        if len(self._there) < answer.parts:
            return False
        if self._taken != len(self._bytes):
            raise FrameError(f"{self._taken} bytes of rows; {len(self._bytes)} were asked for.")
        return True

    def _take_narrow(self, answer: ServerAnswer, rest: BufferReader) -> int:
        frame = rest.frame()
        count = memoryview(frame).nbytes // 2
        if answer.offset + count > self._out.numel():
            raise FrameError(f"rows up to {answer.offset + count}, beyond {self._out.numel()}.")
        part = self._out[answer.offset : answer.offset + count]
        part.copy_(widened(frame, answer.wire, count, "rows"))
        return 4 * count


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """How long to wait for a server. None waits for ever; `retry_s` is until it is asked again."""

    deadline_s: float | None = 60.0
    retry_s: float = 1.0


@dataclass(slots=True)
class PendingRequest:
    """One request under way."""

    verb: Verb
    frames: Sequence[Any]  # the head, a bytearray, and the buffers; none once it is done
    sink: AnswerSink
    patience: WaitPolicy
    gap_s: float  # until it is sent again if nobody answers, or if the server is busy
    began_s: float  # when it was made, on the monotonic clock
    limit_s: float  # when to give up, on the monotonic clock; infinite to wait for ever
    sequence: int = 0
    sent: bool = False
    again_s: float = 0.0
    done: bool = False
    error: Exception | None = None

    @property
    def is_write(self) -> bool:
        """Whether it must happen once."""
        return self.verb in WRITES

    @property
    def was_sent(self) -> bool:
        """Whether it left once, though perhaps on a line that broke."""
        return self.again_s > 0


def error_of(frames: Sequence[Buffer], where: str) -> Exception:
    """The error that an answer tells of, by the name it has on the server."""
    told = value_of(frames[0]) if frames else {}
    if not isinstance(told, dict):
        raise FrameError(f"an error of {where} that is no object.")
    name, message = str(told.get("error")), f"{told.get('message')} [{where}]"
    for module in (core_errors, own_errors):
        kind: Any = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, HedgerowError):
            return kind(message)
    return ServerRefusedError(f"{name}: {message}")


def zeros_into(out: Float32[Tensor, "floats"]) -> None:
    """Zeros where rows did not come."""
    np.asarray(out.numpy())[...] = 0.0
