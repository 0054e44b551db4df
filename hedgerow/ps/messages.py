"""The messages between a client and a server: heads, tensors as buffers, table configurations.

A message is a head of fixed layout, followed by raw buffers of ids, rows or gradients, one frame
each. All numbers are little endian. A reader checks every length before it allocates memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError, InputError
from ..core.shapes import Float32
from ..tables.config import Segment, TableConfig
from ..tables.multi.several_tables import MultiConfig
from ..tables.optimizers import Rate, RateSchedule, rate_at
from .errors import FrameError

MAGIC, VERSION = b"HRPS", 1
MAX_FRAME_BYTES = 2**30  # of one buffer: 16 million rows of 16 columns
MAX_TEXT_BYTES = 2**24  # of one JSON buffer
MAX_TABLES = 2**16 - 1
MAX_FRAMES = 5  # the head and four buffers
SMALL_BYTES = 2**16  # a single buffer up to this travels in the frame of the head

# The dataclasses of a message are not frozen: constructing a frozen one takes twice as long.
# magic, version, verb, flags, wire, missing, tables, rates, table, client, sequence, acked,
# incarnation, deadline in ms, rows, step, ts, cursor
REQUEST = struct.Struct("<4sHBBBBHHHQQQQIIqqQ")
# magic, version, verb, status, wire, frames, reserved, sequence, incarnation, part, parts, offset,
# three numbers
ANSWER = struct.Struct("<4sHBBBBHQQIIQqqq")
ORIGIN, ORIGIN_AT = struct.Struct("<QQQQI"), 16  # the fields client to deadline of REQUEST
STEP, _PER_OCCURRENCE, _COUNTS = 1, 2, 4

Buffer = Any
"""Any object with the buffer protocol: bytes, a memoryview, a frame, an array."""


class Verb(IntEnum):
    """The operations of a server."""

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


# Reads that can take long whatever their number of ids. The server's loop never runs them itself.
LONG_READS = frozenset((Verb.SCAN, Verb.SCAN_IDS, Verb.TOUCHED_TAKE, Verb.TOUCHED_BACK))
CONTROL = frozenset((Verb.DESCRIBE, Verb.HEALTH, Verb.COUNTERS))
WRITES = frozenset(verb for verb in Verb if Verb.APPLY_GRADIENTS <= verb <= Verb.ERASE)
"""The verbs that change rows."""
_VERBS = {int(verb): verb for verb in Verb}


class Status(IntEnum):
    """The outcome of a request."""

    DONE = 0
    FAILED = 1
    BUSY = 2
    ROLLED_BACK = 3


_STATUSES = {int(status): status for status in Status}


@dataclass(slots=True, unsafe_hash=True)  # never modified, so it can be a default argument
class RequestOrigin:
    """The client of a request, its sequence number and its deadline.

    `acked`: the client has the answers to all its writes with a smaller sequence number.
    `incarnation`: the server process that the client knows.
    """

    client: int = 0
    sequence: int = 0
    acked: int = 0
    incarnation: int = 0
    deadline_ms: int = 0


NOBODY = RequestOrigin()


@dataclass(slots=True, unsafe_hash=True)  # never modified, so it can be a default argument
class Options:
    """The numeric arguments of a verb."""

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
class ServerRequest:
    """A request. `frames` are its buffers; the ids come first if the verb takes keys."""

    verb: Verb
    origin: RequestOrigin = NOBODY
    options: Options = NO_OPTIONS
    splits: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    frames: Sequence[Buffer] = ()
    room: Any = None  # where a lookup may write its rows; it is not part of the message

    @property
    def is_write(self) -> bool:
        """Whether the request changes rows and must be applied exactly once."""
        return self.verb in WRITES

    def head(self) -> bytes:
        """Returns the first frame of the message."""
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
    """Returns the frames of a message.

    A single small buffer is appended to the head, because the copy is faster than a second frame.

    >>> [len(frame) for frame in message(b"head", [bytes(8)])]
    [12]
    """
    if len(buffers) == 1 and _bytes(buffers[0]) <= SMALL_BYTES:
        return [b"".join((head, buffers[0]))]
    return [head, *buffers]


def read_request(frames: Sequence[Buffer]) -> ServerRequest:
    """Returns the request in `frames` after checking the lengths of its head and ids.

    The lengths of its rows are not checked here.

    >>> sent = ServerRequest(Verb.LOOKUP, splits=(0, 1), frames=[bytes(8)])
    >>> read_request([sent.head(), *sent.frames]) == sent
    True
    >>> read_request(message(sent.head(), sent.frames)) == sent
    True
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise FrameError(f"a request of {len(frames)} frames; 1 to {MAX_FRAMES} are allowed.")
    head = memoryview(frames[0])
    if len(head) < REQUEST.size or head[:4] != MAGIC:
        raise FrameError(
            f"a head of {len(head)} bytes is not that of a request; is the sender a client?"
        )
    (_, version, verb, flags, wire, missing, tables, rates, table, *rest) = REQUEST.unpack_from(
        head
    )
    if version != VERSION:
        raise FrameError(f"a request of version {version}; this server speaks {VERSION}.")
    if verb not in _VERBS:
        raise FrameError(f"unknown verb {verb}; this server is older than its client.")
    if wire > 2 or missing > 2 or flags > STEP | _PER_OCCURRENCE | _COUNTS:
        raise FrameError(f"a request with wire {wire}, missing {missing} and flags {flags}.")
    client, sequence, acked, incarnation, deadline_ms, rows, step, ts, cursor = rest
    size = REQUEST.size + (8 * (tables + 1 + rates) if tables else 0)
    if len(frames) == 1 and len(head) > size:
        frames = [head[:size], head[size:]]
        head = frames[0]
    splits, given = _splits(head, tables, rates)
    if splits and splits[-1] == 0 and len(frames) == 1:
        frames = [head, b""]  # an empty buffer of ids is not sent
    if splits and (len(frames) < 2 or _bytes(frames[1]) != 8 * splits[-1]):
        found = _bytes(frames[1]) if len(frames) > 1 else 0
        raise FrameError(f"{found} bytes of ids where the head says {splits[-1]} ids.")
    return ServerRequest(
        _VERBS[verb],
        RequestOrigin(client, sequence, acked, incarnation, deadline_ms),
        Options(
            wire,
            missing,
            step if flags & STEP else None,
            ts,
            bool(flags & _PER_OCCURRENCE),
            bool(flags & _COUNTS),
            table,
            rows,
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
class ServerAnswer:
    """An answer, or one part of it. `frames` start at value `offset` of the whole answer."""

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
        """Returns the first frame of the answer to request `sequence`."""
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
    """Returns the buffer that follows the head in the same frame; it may be empty."""
    return memoryview(head)[ANSWER.size :]


def read_answer(head: Buffer) -> tuple[ServerAnswer, int]:
    """Returns an answer without its buffers, and the number of buffers that follow.

    >>> read_answer(ServerAnswer(Verb.SIZES, frames=[b""]).head(7, 1))[0].sequence
    7
    """
    view = memoryview(head)
    if len(view) < ANSWER.size or view[:4] != MAGIC:
        raise FrameError(f"a head of {len(view)} bytes is not that of an answer.")
    found = ANSWER.unpack_from(view)
    _, version, verb, status, wire, frames, _, sequence, incarnation, *rest = found
    if version != VERSION:
        raise FrameError(f"an answer of version {version}; this client speaks {VERSION}.")
    if verb not in _VERBS or status not in _STATUSES or wire > 2:
        raise FrameError(f"an answer with verb {verb}, status {status}, wire {wire}.")
    part, parts, offset, a, b, c = rest
    return (
        ServerAnswer(
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


WIRES: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)
_NUMPY = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(np.int16),  # numpy has no bfloat16; the bits are sent
    torch.int64: np.dtype(np.int64),
    torch.int8: np.dtype(np.int8),
    torch.bool: np.dtype(np.bool_),
}


def wire_code(dtype: torch.dtype) -> int:
    """Returns the number of a wire format.

    >>> wire_code(torch.bfloat16)
    2
    """
    if dtype not in WIRES:
        raise InputError(f"wire is {dtype}; it must be one of {', '.join(map(str, WIRES))}.")
    return WIRES.index(dtype)


def tensor_over(frame: Buffer, dtype: torch.dtype, count: int, what: str) -> Tensor:
    """Returns the buffer as a tensor of `count` values; copies it only if it is not aligned.

    >>> tensor_over(bytearray(16), torch.int64, 2, "ids").tolist()
    [0, 0]
    """
    kind = _NUMPY[dtype]
    view = memoryview(frame)
    if view.nbytes != count * kind.itemsize:
        raise FrameError(f"{view.nbytes} bytes of {what}; {count} values have another length.")
    array = np.frombuffer(view, kind)
    if not array.flags.behaved:  # aligned and writable, as torch requires
        array = array.copy()
    found = torch.from_numpy(array)
    return found.view(torch.bfloat16) if dtype == torch.bfloat16 else found


def buffer_of(tensor: Tensor) -> Buffer:
    """Returns the memory of a contiguous tensor, without a copy.

    The tensor must not change while the buffer is in use.
    """
    plain = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return plain.numpy().data.cast("B") if tensor.numel() else b""


def address_of(buffer: Buffer) -> int:
    """Returns the memory address of a buffer."""
    return np.frombuffer(buffer, np.uint8).ctypes.data


def narrowed(rows: Float32[Tensor, "floats"], wire: int) -> Tensor:
    """Converts rows to the wire format."""
    return rows.to(WIRES[wire]) if wire else rows


def widened(frame: Buffer, wire: int, count: int, what: str) -> Float32[Tensor, "floats"]:
    """Returns rows of the wire format as float32. Rows sent as float32 are not copied."""
    found = tensor_over(frame, WIRES[wire], count, what)
    return found.float() if wire else found


def float_bytes(wire: int) -> int:
    """Returns the bytes of one value in the wire format."""
    return WIRES[wire].itemsize


def check_room(floats: int, wire: int) -> None:
    """Raises `InputError` if rows do not fit into one request. Answers have no such limit."""
    if floats * float_bytes(wire) > MAX_FRAME_BYTES:
        raise InputError(
            f"{floats} values in one request; at most {MAX_FRAME_BYTES // float_bytes(wire)} of "
            f"{WIRES[wire]} ({MAX_FRAME_BYTES} bytes). Split the batch."
        )


def text_of(value: object) -> bytes:
    """Returns a value as JSON bytes."""
    return json.dumps(value, separators=(",", ":")).encode()


def value_of(frame: Buffer) -> Any:
    """Returns the value of a JSON buffer."""
    view = memoryview(frame)
    if view.nbytes > MAX_TEXT_BYTES:
        raise FrameError(f"{view.nbytes} bytes of text; at most {MAX_TEXT_BYTES}.")
    try:
        return json.loads(bytes(view))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a text that is not JSON: {error}.") from error


def document_of(config: MultiConfig) -> list[dict[str, Any]]:
    """Returns the table configurations as a value for JSON.

    A learning rate that is a function is replaced by 0, because updates carry their own rates.
    """
    return [_sendable(table).to_dict() for table in config.configs]


def _sendable(config: TableConfig) -> TableConfig:
    segments = tuple(_without_function(segment) for segment in config.segments)
    return dataclasses.replace(config, segments=segments)


def _without_function(segment: Segment) -> Segment:
    rate = getattr(segment.optimizer, "lr", None)
    if segment.optimizer is None or not callable(rate) or isinstance(rate, RateSchedule):
        return segment
    fixed = dataclasses.replace(segment.optimizer, lr=0.0)  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(segment, optimizer=fixed)


def config_of(document: object) -> MultiConfig:
    """Reads the result of `document_of`."""
    if not isinstance(document, list) or not document:
        raise ConfigError("the tables of a server are a list of TableConfig.to_dict().")
    tables = [TableConfig.from_dict(entry) for entry in document]
    named = {table.name: table for table in tables}
    if len(named) != len(tables):
        raise ConfigError(f"a table name repeats in {[table.name for table in tables]}.")
    return MultiConfig.of(named)


def fingerprint(config: MultiConfig) -> str:
    """Returns a hash that is equal for equal tables, in every process."""
    return hashlib.sha256(config.text.encode()).hexdigest()[:16]


def difference(ours: MultiConfig, theirs: MultiConfig) -> str:
    """Describes the first difference between two configurations; empty if there is none.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> def one(lr):
    ...     return MultiConfig.of({"item": TableConfig("any", (Segment(1, Zeros(), Sgd(lr=lr)),))})
    >>> difference(one(1.0), one(2.0))
    "table 'item': segments[0].optimizer.lr is 1.0 on the server and 2.0 here"
    """
    if ours.names != theirs.names:
        return f"the server has tables {list(ours.names)}, and the client {list(theirs.names)}"
    for name, mine, other in zip(ours.names, ours.configs, theirs.configs, strict=True):
        pair = (dataclasses.replace(one, slot_key=None).to_dict() for one in (mine, other))
        found = _difference("", *pair)
        if found and ours.text != theirs.text:
            return f"table {name!r}: {found}"
    return ""


def _difference(at: str, mine: object, other: object) -> str:
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        for name in sorted({*mine, *other}):
            where = f"{at}.{name}" if at else str(name)
            found = _difference(where, mine.get(name), other.get(name))
            if found:
                return found
        return ""
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        pairs = enumerate(zip(mine, other, strict=True))
        return next((d for i, (a, b) in pairs if (d := _difference(f"{at}[{i}]", a, b))), "")
    return "" if mine == other else f"{at} is {mine!r} on the server and {other!r} here"


def rates_now(
    config: MultiConfig, rates: Sequence[Rate] | None, step: int | None
) -> tuple[float, ...]:
    """Returns one learning rate per segment at `step`: the given one, or that of the optimizer."""
    given = config.rates_of(rates)
    now: list[float] = []
    for table, sources in zip(config.configs, given, strict=True):
        own = [s.optimizer.rate() if s.optimizer else 0.0 for s in table.segments]
        for source in own if sources is None else sources:
            if callable(source) and step is None:
                raise ConfigError(
                    f"the learning rate of table {table.name!r} follows the step; pass step=."
                )
            now.append(rate_at(source, step or 0))
    return tuple(now)
