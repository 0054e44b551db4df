"""Requests of a client that wait for their answers, and the places that answers are written to."""

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
    """The buffers of a message whose head was read."""

    def into(self, room: memoryview) -> int:
        """Copies the next buffer into `room` and returns its length."""
        ...

    def frame(self) -> Buffer:
        """Returns the next buffer without a copy."""
        ...


class AnswerSink(Protocol):
    """The place an answer is written to. `room_bytes` bounds its buffers if they may be large."""

    room_bytes: int

    def take(self, answer: ServerAnswer, frames: int, rest: BufferReader) -> bool:
        """Takes one part and returns whether the answer is complete."""
        ...


class KeptAnswer:
    """An answer of one part, kept with its buffers."""

    def __init__(self, room_bytes: int = 0) -> None:
        self.room_bytes = room_bytes
        self.answer: ServerAnswer | None = None
        self.frames: list[Buffer] = []

    def number(self, at: int = 0) -> int:
        """Returns one number of the answer. Raises if it has not arrived."""
        if self.answer is None:
            raise FrameError("an answer that is not here yet.")
        return self.answer.numbers[at]

    @property
    def incarnation(self) -> int:
        """The incarnation of the server that gave the answer. Raises if it has not arrived."""
        if self.answer is None:
            raise FrameError("an answer that is not here yet.")
        return self.answer.incarnation

    def take(self, answer: ServerAnswer, frames: int, rest: BufferReader) -> bool:
        """Keeps the answer and its buffers."""
        self.answer, self.frames = answer, []
        for _ in range(frames):
            self.frames.append(rest.frame())
        return True


class RowsInto:
    """Writes rows directly into `out`. Parts may arrive in any order, and more than once."""

    def __init__(self, out: Float32[Tensor, "floats"]) -> None:
        self._out = out
        self._bytes = out.numpy().data.cast("B") if out.numel() else memoryview(b"")
        self.room_bytes = len(self._bytes)
        self._there: set[int] = set()
        self._taken = 0

    def take(self, answer: ServerAnswer, frames: int, rest: BufferReader) -> bool:
        """Writes one part and returns whether the answer is complete."""
        if frames != 1:
            raise FrameError(f"a part of rows in {frames} buffers; 1 is expected.")
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
    """How long to wait for a server, and after which time to send a request again.

    A `deadline_s` of None waits without limit.
    """

    deadline_s: float | None = 60.0
    retry_s: float = 1.0


@dataclass(slots=True)
class PendingRequest:
    """A request in flight."""

    verb: Verb
    frames: Sequence[Any]  # the head, a bytearray, and the buffers; empty once done
    sink: AnswerSink
    patience: WaitPolicy
    gap_s: float  # until the next send if no answer arrives or the server is busy
    began_s: float  # creation time, on the monotonic clock
    limit_s: float  # deadline, on the monotonic clock; infinite to wait without limit
    sequence: int = 0
    sent: bool = False
    again_s: float = 0.0
    done: bool = False
    error: Exception | None = None

    @property
    def is_write(self) -> bool:
        """Whether the request must be applied exactly once."""
        return self.verb in WRITES

    @property
    def was_sent(self) -> bool:
        """Whether the request was sent at least once, even over a connection that failed later."""
        return self.again_s > 0


def error_of(frames: Sequence[Buffer], where: str) -> Exception:
    """Returns the error in an answer, as an instance of the class that the server names."""
    told = value_of(frames[0]) if frames else {}
    if not isinstance(told, dict):
        raise FrameError(f"an error of {where} that is not a JSON object.")
    name, message = str(told.get("error")), f"{told.get('message')} [{where}]"
    for module in (core_errors, own_errors):
        kind: Any = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, HedgerowError):
            return kind(message)
    return ServerRefusedError(f"{name}: {message}")


def zeros_into(out: Float32[Tensor, "floats"]) -> None:
    """Fills `out` with zeros."""
    np.asarray(out.numpy())[...] = 0.0
