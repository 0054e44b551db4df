"""The log of a server: accepted writes, on the disk before they are answered.

A log is a row of files, the segments. A record holds the requests of one group, so that what one
flush covers is there as a whole or not at all. A record that was cut off by a crash can only be the
last one, and nobody was told that it was accepted: it is dropped. Any other damage is an error.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.clock import Clock, SystemClock
from ..tables.checkpoint.files import sync_folder
from .errors import LogError
from .frames import Buffer

_RECORD = struct.Struct("<4sIQI")  # magic, checksum of the next two, bytes of the body, checksum
_SIZES = struct.Struct("<QI")
_BODY = struct.Struct("<qI")  # time, requests
_MAGIC = b"HRLG"
_NAME = re.compile(r"log-(\d{12})\Z")
_AT_ONCE = 64  # buffers in one call to the system


@dataclass(frozen=True, slots=True)
class Record:
    """The requests of one group as frames, and the time they were accepted at."""

    now_s: int
    requests: list[list[memoryview]]


class LogClock:
    """The time of the group that is being applied: the same when the log is replayed.

    >>> clock = LogClock()
    >>> clock.set(77)
    >>> clock.now_s()
    77
    """

    def __init__(self) -> None:
        self._now_s = SystemClock().now_s()

    def set(self, now_s: int) -> None:
        """Moves it."""
        self._now_s = now_s

    def now_s(self) -> int:
        """The time of the group."""
        return self._now_s


class Log:
    """Appends to the newest segment. Single-owner: whoever applies the writes.

    One flush to the disk covers a group of requests, and comes before any of their answers.
    """

    def __init__(
        self, folder: Path, number: int, *, clock: LogClock, time: Clock | None = None
    ) -> None:
        self._folder, self.number = folder, number
        self._clock, self._time = clock, time or SystemClock()
        self._broken = ""
        self._fd = -1
        self.file_bytes = 0
        self._open()

    def _open(self) -> None:
        path = segment_path(self._folder, self.number)
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self.file_bytes = os.fstat(self._fd).st_size
            sync_folder(self._folder)
        except OSError as error:
            raise LogError(f"the log {path} cannot be written: {error.strerror}.") from error

    def append(self, requests: Sequence[Sequence[Buffer]]) -> None:
        """Makes them last, or raises: then none of them was accepted."""
        if self._broken:
            raise LogError(self._broken)
        now_s = self._time.now_s()
        buffers = _record(now_s, requests)
        try:
            written = self._write(buffers)
            os.fdatasync(self._fd)
        except OSError as error:
            self._undo(error)
            raise LogError(
                f"the log {self._path} cannot be written: {error.strerror}. The write was not "
                f"accepted; make room on the disk and try again."
            ) from error
        self.file_bytes += written
        self._clock.set(now_s)

    @property
    def _path(self) -> Path:
        return segment_path(self._folder, self.number)

    def _write(self, buffers: list[memoryview]) -> int:
        total = 0
        while buffers:
            done = os.writev(self._fd, buffers[:_AT_ONCE])
            total += done
            while buffers and done >= buffers[0].nbytes:
                done -= buffers.pop(0).nbytes
            if done:
                buffers[0] = buffers[0][done:]
        return total

    def _undo(self, error: OSError) -> None:
        """Takes a half-written record back; a log that cannot even do that takes nothing more."""
        try:
            os.ftruncate(self._fd, self.file_bytes)
            os.fdatasync(self._fd)
        except OSError as second:
            self._broken = (
                f"the log {self._path} is unusable ({error.strerror}, then {second.strerror}); no "
                f"write is accepted any more. Restart the server once the disk is well."
            )

    def rotate(self) -> int:
        """Goes on in a new segment; its number. What was accepted so far is in older ones."""
        old, self.number = self._fd, self.number + 1
        try:
            self._open()
        except LogError:
            self._fd, self.number = old, self.number - 1
            self.file_bytes = os.fstat(old).st_size
            raise
        os.close(old)
        return self.number

    def remove_before(self, number: int) -> None:
        """Removes segments whose writes are in a checkpoint."""
        for old in segments(self._folder):
            if old < number:
                segment_path(self._folder, old).unlink()
        sync_folder(self._folder)

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"log-{number:012d}"


def segments(folder: Path) -> list[int]:
    """The numbers of the segments that are there, in order."""
    found = (_NAME.match(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in found if match)


def has_records(folder: Path) -> bool:
    """Whether anything was accepted; segments without a record tell nothing."""
    return any(segment_path(folder, number).stat().st_size for number in segments(folder))


def _record(now_s: int, requests: Sequence[Sequence[Buffer]]) -> list[memoryview]:
    views = [[memoryview(frame).cast("B") for frame in frames] for frames in requests]
    heads = [struct.pack(f"<H{len(v)}Q", len(v), *(one.nbytes for one in v)) for v in views]
    body = [memoryview(_BODY.pack(now_s, len(requests)))]
    for head, frames in zip(heads, views, strict=True):
        body += [memoryview(head), *(frame for frame in frames if frame.nbytes)]
    checksum, total = 0, 0
    for part in body:
        checksum = zlib.crc32(part, checksum)
        total += part.nbytes
    sizes = _SIZES.pack(total, checksum)
    return [memoryview(_MAGIC + zlib.crc32(sizes).to_bytes(4, "little") + sizes), *body]


def replay(folder: Path, first: int) -> Iterator[Record]:
    """All records from segment `first` on; cuts off a last one that was not finished."""
    numbers = [number for number in segments(folder) if number >= first]
    if numbers and numbers != list(range(first, first + len(numbers))):
        raise LogError(
            f"{folder} has log segments {numbers}; {first} and all after it are needed. One was "
            f"removed or renamed: bring it back."
        )
    for number in numbers:
        yield from _read_segment(segment_path(folder, number), is_last=number == numbers[-1])


def _read_segment(path: Path, *, is_last: bool) -> Iterator[Record]:
    data, at = _mapped(path), 0
    while at < len(data):
        record, stop, why = _read_record(data, at)
        if record is None:
            if not is_last or _another_after(data, stop):
                raise LogError(
                    f"the log {path} is damaged at byte {at} of {len(data)}: {why}. Accepted "
                    f"writes come after it; bring the file back from a copy, or start from a "
                    f"checkpoint without it."
                )
            _cut(path, at, len(data))
            return
        yield record
        at = stop


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise LogError(f"the log {path} cannot be read: {error.strerror}.") from error


def _read_record(data: memoryview, at: int) -> tuple[Record | None, int, str]:
    """The record, if it is whole; where it ends, or where others may come; what is wrong."""
    if len(data) - at < _RECORD.size:
        return None, len(data), "the record is cut off"
    magic, head_checksum, body_bytes, checksum = _RECORD.unpack_from(data, at)
    if magic != _MAGIC or zlib.crc32(data[at + 8 : at + _RECORD.size]) != head_checksum:
        return None, at + 1, "this is no record"
    start = at + _RECORD.size
    body = data[start : start + body_bytes]
    if len(body) != body_bytes:
        return None, len(data), "the record is cut off"
    if zlib.crc32(body) != checksum:
        return None, start + body_bytes, "its checksum does not fit"
    return _requests(body), start + body_bytes, ""


def _requests(body: memoryview) -> Record:
    now_s, count = _BODY.unpack_from(body)
    at, requests = _BODY.size, []
    for _ in range(count):
        (frames,) = struct.unpack_from("<H", body, at)
        sizes = struct.unpack_from(f"<{frames}Q", body, at + 2)
        at += 2 + 8 * frames
        request = []
        for size in sizes:
            request.append(body[at : at + size])
            at += size
        requests.append(request)
    return Record(now_s, requests)


def _another_after(data: memoryview, at: int) -> bool:
    """Whether a whole record comes later: then this one was not the last that was written."""
    text = bytes(data)
    while (at := text.find(_MAGIC, at)) >= 0:
        if _read_record(data, at)[0] is not None:
            return True
        at += 1
    return False


def _cut(path: Path, at: int, length: int) -> None:
    logging.getLogger("hedgerow").warning(
        "%s: the last record was not finished when the server stopped; %d bytes were cut off",
        path,
        length - at,
    )
    with path.open("r+b") as file:
        file.truncate(at)
        os.fsync(file.fileno())
