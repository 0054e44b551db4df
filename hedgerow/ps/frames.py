"""How a request and an answer lie in the frames of a message.

A message is a head of fixed layout and then raw buffers, one frame each: ids, rows, gradients. All
numbers are little endian. Whoever reads a message checks every length before it takes memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any

from .errors import FrameError

MAGIC, VERSION = b"HRPS", 1
MAX_FRAME_BYTES = 2**30  # of one buffer: 16 million rows of 16 columns
MAX_TEXT_BYTES = 2**24  # of what travels as JSON
MAX_TABLES = 2**16 - 1
MAX_FRAMES = 5  # the head and four buffers
SMALL_BYTES = 2**16  # a single buffer up to this travels in the frame of the head

# These are made for every request, so they are plain: a frozen one takes twice as long to make.
# magic, version, verb, flags, wire, missing, tables, rates, table, client, sequence, acked,
# incarnation, deadline in ms, room, step, ts, cursor
REQUEST = struct.Struct("<4sHBBBBHHHQQQQIIqqQ")
# magic, version, verb, status, wire, frames, reserved, sequence, incarnation, part, parts, offset,
# three numbers
ANSWER = struct.Struct("<4sHBBBBHQQIIQqqq")
ORIGIN, ORIGIN_AT = struct.Struct("<QQQQI"), 16  # client to deadline, inside a request's head
STEP, _PER_OCCURRENCE, _COUNTS = 1, 2, 4

Buffer = Any
"""What the buffer protocol takes: bytes, a memoryview, a frame, an array."""


class Verb(IntEnum):
    """What a server can be asked for."""

    OPEN = 1
    DESCRIBE = 2
    HEALTH = 3
    COUNTERS = 4
    LOOKUP = 10
    CONTAINS = 11
    ENTRIES = 12
    SCAN = 13
    SIZES = 14
    MAX_TS = 15
    READ_ROWS = 16
    SCAN_IDS = 17
    STATS = 18
    APPLY_GRADIENTS = 20
    ASSIGN = 21
    ASSIGN_ADD = 22
    REINITIALIZE = 23
    ERASE = 24
    CHECKPOINT = 30
    SAVE = 31
    LOAD = 32
    TOUCHED_OPEN = 40
    TOUCHED_TAKE = 41
    TOUCHED_BACK = 42
    TOUCHED_CLOSE = 43


# Reads that may take long, however few ids they name: never done by the loop itself.
LONG_READS = frozenset((Verb.SCAN, Verb.SCAN_IDS, Verb.TOUCHED_TAKE, Verb.TOUCHED_BACK))
CONTROL = frozenset((Verb.DESCRIBE, Verb.HEALTH, Verb.COUNTERS))
WRITES = frozenset(verb for verb in Verb if Verb.APPLY_GRADIENTS <= verb <= Verb.ERASE)
"""The verbs that change rows."""
_VERBS = {int(verb): verb for verb in Verb}


class Status(IntEnum):
    """How a request went."""

    DONE = 0
    FAILED = 1
    BUSY = 2
    ROLLED_BACK = 3


_STATUSES = {int(status): status for status in Status}


@dataclass(slots=True, unsafe_hash=True)  # never changed: it may be a default
class Origin:
    """Who asks, and how often before. `acked`: answers to all writes below it have arrived."""

    client: int = 0
    sequence: int = 0
    acked: int = 0
    incarnation: int = 0
    deadline_ms: int = 0


NOBODY = Origin()


@dataclass(slots=True, unsafe_hash=True)  # never changed: it may be a default
class Options:
    """The arguments of a verb that are plain numbers."""

    wire: int = 0
    missing: int = 0
    step: int | None = None
    ts: int = 0
    per_occurrence: bool = False
    has_counts: bool = False
    table: int = 0
    rows: int = 0
    cursor: int = 0


NO_OPTIONS = Options()


@dataclass(slots=True)
class Request:
    """One request: `frames` are its buffers, ids first where the verb takes keys."""

    verb: Verb
    origin: Origin = NOBODY
    options: Options = NO_OPTIONS
    splits: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    frames: Sequence[Buffer] = ()
    room: Any = None  # a tensor that the rows of a lookup may go into; it does not travel

    @property
    def is_write(self) -> bool:
        """Whether it changes rows and so must happen once."""
        return self.verb in WRITES

    def head(self) -> bytes:
        """The first frame."""
        origin, options = self.origin, self.options
        flags = (
            (options.step is not None) * STEP
            + options.per_occurrence * _PER_OCCURRENCE
            + options.has_counts * _COUNTS
        )
        fixed = REQUEST.pack(
            MAGIC,
            VERSION,
            self.verb,
            flags,
            options.wire,
            options.missing,
            max(len(self.splits) - 1, 0),
            len(self.rates),
            options.table,
            origin.client,
            origin.sequence,
            origin.acked,
            origin.incarnation,
            origin.deadline_ms,
            options.rows,
            options.step or 0,
            options.ts,
            options.cursor,
        )
        if not self.splits:
            return fixed
        return fixed + struct.pack(
            f"<{len(self.splits)}q{len(self.rates)}d", *self.splits, *self.rates
        )


def message(head: Buffer, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """The frames of a message. One small buffer is copied behind its head: a frame takes longer.

    >>> [len(frame) for frame in message(b"head", [bytes(8)])]
    [12]
    """
    if len(buffers) == 1 and _bytes(buffers[0]) <= SMALL_BYTES:
        return [b"".join((head, buffers[0]))]
    return [head, *buffers]


def read_request(frames: Sequence[Buffer]) -> Request:
    """The request of a message, its lengths proved; of ids, not yet of rows.

    >>> sent = Request(Verb.LOOKUP, splits=(0, 1), frames=[bytes(8)])
    >>> read_request([sent.head(), *sent.frames]) == sent
    True
    >>> read_request(message(sent.head(), sent.frames)) == sent
    True
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise FrameError(f"a request of {len(frames)} frames; 1 to {MAX_FRAMES} are allowed.")
    head = memoryview(frames[0])
    if len(head) < REQUEST.size or head[:4] != MAGIC:
        raise FrameError(f"a head of {len(head)} bytes that is none of ours; is this a client?")
    (_, version, verb, flags, wire, missing, tables, rates, table, *rest) = REQUEST.unpack_from(
        head
    )
    if version != VERSION:
        raise FrameError(f"a request of version {version}; this server speaks {VERSION}.")
    if verb not in _VERBS:
        raise FrameError(f"unknown verb {verb}; this server is older than its client.")
    if wire > 2 or missing > 2 or flags > STEP | _PER_OCCURRENCE | _COUNTS:
        raise FrameError(f"a request with wire {wire}, missing {missing} and flags {flags}.")
    client, sequence, acked, incarnation, deadline_ms, room, step, ts, cursor = rest
    size = REQUEST.size + (8 * (tables + 1 + rates) if tables else 0)
    if len(frames) == 1 and len(head) > size:
        frames = [head[:size], head[size:]]
        head = frames[0]
    splits, given = _splits(head, tables, rates)
    if splits and splits[-1] == 0 and len(frames) == 1:
        frames = [head, b""]  # no ids behind the head are a buffer, too
    if splits and (len(frames) < 2 or _bytes(frames[1]) != 8 * splits[-1]):
        found = _bytes(frames[1]) if len(frames) > 1 else 0
        raise FrameError(f"{found} bytes of ids where the head says {splits[-1]} ids.")
    return Request(
        _VERBS[verb],
        Origin(client, sequence, acked, incarnation, deadline_ms),
        Options(
            wire,
            missing,
            step if flags & STEP else None,
            ts,
            bool(flags & _PER_OCCURRENCE),
            bool(flags & _COUNTS),
            table,
            room,
            cursor,
        ),
        splits,
        given,
        frames[1:],
    )


def _splits(head: memoryview, tables: int, rates: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    if not tables:
        if len(head) != REQUEST.size or rates:
            raise FrameError(f"a head of {len(head)} bytes; without tables it has {REQUEST.size}.")
        return (), ()
    expected = REQUEST.size + 8 * (tables + 1 + rates)
    if len(head) != expected:
        raise FrameError(
            f"a head of {len(head)} bytes; with {tables} tables and {rates} rates it has "
            f"{expected}."
        )
    found = struct.unpack_from(f"<{tables + 1}q{rates}d", head, REQUEST.size)
    splits = found[: tables + 1]
    if splits[0] != 0 or any(stop < start for start, stop in pairwise(splits)):
        raise FrameError(f"splits {splits[:8]} do not rise from 0.")
    if splits[-1] > MAX_FRAME_BYTES // 8:
        raise FrameError(f"{splits[-1]} ids in one request; at most {MAX_FRAME_BYTES // 8}.")
    return splits, found[tables + 1 :]


def _bytes(frame: Buffer) -> int:
    return memoryview(frame).nbytes


@dataclass(slots=True)
class Answer:
    """One answer, or one of its parts: `frames` begin at float `offset` of all."""

    verb: Verb
    sequence: int = 0
    incarnation: int = 0
    status: Status = Status.DONE
    wire: int = 0
    part: int = 0
    parts: int = 1
    offset: int = 0
    numbers: tuple[int, int, int] = (0, 0, 0)
    frames: Sequence[Buffer] = ()

    def head(self, sequence: int, incarnation: int) -> bytes:
        """The first frame, to the request of that number."""
        return ANSWER.pack(
            MAGIC,
            VERSION,
            self.verb,
            self.status,
            self.wire,
            len(self.frames),
            0,
            sequence,
            incarnation,
            self.part,
            self.parts,
            self.offset,
            *self.numbers,
        )


def behind_head(head: Buffer) -> memoryview:
    """The buffer that came in the frame of an answer's head; empty if none did."""
    return memoryview(head)[ANSWER.size :]


def read_answer(head: Buffer) -> tuple[Answer, int]:
    """An answer without its buffers, and how many of them follow.

    >>> read_answer(Answer(Verb.SIZES, frames=[b""]).head(7, 1))[0].sequence
    7
    """
    view = memoryview(head)
    if len(view) < ANSWER.size or view[:4] != MAGIC:
        raise FrameError(f"an answer with a head of {len(view)} bytes that is none of ours.")
    found = ANSWER.unpack_from(view)
    _, version, verb, status, wire, frames, _, sequence, incarnation, *rest = found
    if version != VERSION:
        raise FrameError(f"an answer of version {version}; this client speaks {VERSION}.")
    if verb not in _VERBS or status not in _STATUSES or wire > 2:
        raise FrameError(f"an answer with verb {verb}, status {status}, wire {wire}.")
    part, parts, offset, a, b, c = rest
    return (
        Answer(
            _VERBS[verb],
            sequence,
            incarnation,
            _STATUSES[status],
            wire,
            part,
            parts,
            offset,
            (a, b, c),
        ),
        frames,
    )
