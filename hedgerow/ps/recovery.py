"""The write log of a server, and how a server recovers its tables after a stop or a crash.

A log is a sequence of files, called segments. A record holds the requests of one group, so one
flush stores the whole group or nothing. A crash can cut off only the last record. Its writes were
not acknowledged, so it is dropped. Any other damage is an error.

`rows` is a checkpoint of this server alone, with its client records. With a log, the segments after
the checkpoint are in the same folder. The file `clean` exists while no write after the checkpoint
is lost.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..core.clock import Clock, SystemClock
from ..core.errors import (
    CheckpointError,
    CheckpointMissingError,
    ConfigError,
    HedgerowError,
    SaveError,
)
from ..routing.router import Router
from ..tables.checkpoint.chain import newest
from ..tables.checkpoint.files import make_folder, sole_writer, sync_folder
from ..tables.checkpoint.load import LoadJob, load_tables
from ..tables.checkpoint.manifest import MANIFEST, CheckpointManifest
from ..tables.checkpoint.manifest_reader import read_manifest
from .clients import BLOB, Clients, blob_name, unpack
from .errors import LogError
from .messages import Buffer, Verb, config_of, read_request
from .request_scheduler import open_tables
from .service import TableService

_RECORD = struct.Struct("<4sIQI")  # magic, checksum of the next two, bytes of the body, checksum
_SIZES = struct.Struct("<QI")
_BODY = struct.Struct("<qI")  # time, requests
_MAGIC = b"HRLG"
_NAME = re.compile(r"log-(\d{12})\Z")
_AT_ONCE = 64  # buffers per system call


@dataclass(frozen=True, slots=True)
class LogRecord:
    """The requests of one group as frames, and the time of their acceptance."""

    now_s: int
    requests: list[list[memoryview]]


class LogClock:
    """The time of the current group of writes. A replay of the log sets the same times.

    >>> clock = LogClock()
    >>> clock.set(77)
    >>> clock.now_s()
    77
    """

    def __init__(self) -> None:
        self._now_s = SystemClock().now_s()

    def set(self, now_s: int) -> None:
        """Sets the time."""
        self._now_s = now_s

    def now_s(self) -> int:
        """Returns the time of the current group."""
        return self._now_s


class Log:
    """Appends to the newest segment. Single-owner: the thread that applies the writes.

    One flush to disk covers a group of requests. It completes before any of them is answered.
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
        """Stores the requests durably. If it raises, none of them is accepted."""
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
        """Removes a partly written record. If that fails too, the log accepts no more writes."""
        try:
            os.ftruncate(self._fd, self.file_bytes)
            os.fdatasync(self._fd)
        except OSError as second:
            self._broken = (
                f"the log {self._path} is unusable ({error.strerror}, then {second.strerror}); no "
                f"write is accepted any more. Repair the disk, then restart the server."
            )

    def rotate(self) -> int:
        """Starts a new segment and returns its number. All earlier writes are in older segments."""
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
        """Removes the segments before `number`, whose writes are in a checkpoint."""
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
    """Returns the path of a segment."""
    return folder / f"log-{number:012d}"


def segments(folder: Path) -> list[int]:
    """Returns the numbers of the existing segments, in order."""
    found = (_NAME.match(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in found if match)


def has_records(folder: Path) -> bool:
    """Whether any segment has a record."""
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


def replay(folder: Path, first: int) -> Iterator[LogRecord]:
    """Yields all records from segment `first` on. Cuts off an unfinished last record."""
    numbers = [number for number in segments(folder) if number >= first]
    if numbers and numbers != list(range(first, first + len(numbers))):
        raise LogError(
            f"{folder} has log segments {numbers}; {first} and all after it are needed. One was "
            f"removed or renamed: restore it."
        )
    for number in numbers:
        yield from _read_segment(segment_path(folder, number), is_last=number == numbers[-1])


def _read_segment(path: Path, *, is_last: bool) -> Iterator[LogRecord]:
    data, at = _mapped(path), 0
    while at < len(data):
        record, stop, why = _read_record(data, at)
        if record is None:
            if not is_last or _another_after(data, stop):
                raise LogError(
                    f"the log {path} is damaged at byte {at} of {len(data)}: {why}. Accepted "
                    f"writes come after it; restore the file from a copy, or start from a "
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


def _read_record(data: memoryview, at: int) -> tuple[LogRecord | None, int, str]:
    """Returns a record or None, the offset after it, and what is wrong with it."""
    if len(data) - at < _RECORD.size:
        return None, len(data), "the record is cut off"
    magic, head_checksum, body_bytes, checksum = _RECORD.unpack_from(data, at)
    if magic != _MAGIC or zlib.crc32(data[at + 8 : at + _RECORD.size]) != head_checksum:
        return None, at + 1, "this is not a record"
    start = at + _RECORD.size
    body = data[start : start + body_bytes]
    if len(body) != body_bytes:
        return None, len(data), "the record is cut off"
    if zlib.crc32(body) != checksum:
        return None, start + body_bytes, "its checksum does not fit"
    return _requests(body), start + body_bytes, ""


def _requests(body: memoryview) -> LogRecord:
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
    return LogRecord(now_s, requests)


def _another_after(data: memoryview, at: int) -> bool:
    """Whether a whole record follows; then the damaged one was not the last."""
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


CLEAN, ROWS = "clean", "rows"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state that a server starts from: the step of its rows, its incarnation and its log.

    An `incarnation` of 0 means that the server draws a new one.
    """

    step: int = 0
    incarnation: int = 0
    log: Log | None = None


def own_folder(root: Path, shard: int, shards: int) -> Path:
    """Returns the folder of one server inside the shared folder."""
    return root / f"server-{shard:05d}-of-{shards:05d}"


@contextmanager
def sole_server(folder: Path) -> Iterator[None]:
    """Locks the folder of a server. A second server would truncate the log of the first."""
    with ExitStack() as held:
        try:
            held.enter_context(sole_writer(folder))
        except SaveError as error:
            raise ConfigError(
                f"{folder} is in use by a running server; stop it first, or use another folder."
            ) from error
        yield


class Recovery:
    """Restores the state of a server. Runs once, before the first client."""

    def __init__(
        self, root: Path, shard: int, shards: int, service: TableService, clients: Clients
    ) -> None:
        self._root, self._shard, self._shards = root, shard, shards
        self._folder = own_folder(root, shard, shards)
        self._service, self._clients = service, clients
        self._segment = 1

    def from_checkpoint(self) -> Recovered:
        """Loads the newest checkpoint: the server's own, or a later one of all servers."""
        make_folder(self._folder)
        if segments(self._folder):
            raise ConfigError(
                f"{self._folder} holds a log, whose writes would be lost; start the server with "
                f"--durability log, or with another folder."
            )
        incarnation = self._take_clean()
        step, together = self._own_step(), self._newest_of_all()
        if together is not None and (step is None or together[1] > step):
            self._load_shared(together[0])
            return Recovered(together[1])
        if step is None:
            return Recovered()
        self._load_own()
        return Recovered(step, incarnation)

    def from_log(self, clock: LogClock) -> Recovered:
        """Loads the server's own checkpoint, if any, and replays every accepted write after it."""
        make_folder(self._folder)
        self._take_clean()
        step, together = self._own_step(), self._newest_of_all()
        if step is not None:
            self._load_own()
        elif not has_records(self._folder) and together is not None:
            self._load_shared(together[0])
            step = together[1]
        applied = step or 0
        for record in replay(self._folder, self._segment):
            clock.set(record.now_s)
            for frames in record.requests:
                applied = max(applied, self._apply(frames))
        number = max([self._segment, *segments(self._folder)])
        log = Log(self._folder, number, clock=clock)
        log.remove_before(self._segment)
        return Recovered(applied, log=log)

    def _apply(self, frames: list[memoryview]) -> int:
        request = read_request(frames)
        if request.verb == Verb.OPEN:
            try:
                open_tables(self._service, request)
            except HedgerowError as error:  # the client got this error at the time
                logging.getLogger("hedgerow").info("tables that were refused: %s", error)
        else:
            self._clients.finish(request.origin, self._service.write(request))
        return request.options.step or 0

    def _take_clean(self) -> int:
        """Returns the incarnation that was shut down cleanly, or 0. Removes the file `clean`."""
        path = self._folder / CLEAN
        try:
            incarnation = int(path.read_text())
        except (OSError, ValueError):
            return 0
        path.unlink()
        sync_folder(self._folder)
        return incarnation

    def _own_step(self) -> int | None:
        rows = self._folder / ROWS
        return read_manifest(rows).step if (rows / MANIFEST).exists() else None

    def _newest_of_all(self) -> tuple[Path, int] | None:
        try:
            path = newest(self._root)
        except CheckpointMissingError:
            return None
        return path, read_manifest(path).step

    def _load_own(self) -> None:
        rows = self._folder / ROWS
        self._open(read_manifest(rows), rows)
        loaded = load_tables(rows, self._service.store.tables)
        if BLOB not in loaded.blobs:
            raise CheckpointError(
                f"{rows} has no client records, so it was not written by a server. "
                f"Move it away, and load it through a client."
            )
        self._remember(loaded.blobs[BLOB])

    def _load_shared(self, path: Path) -> None:
        manifest = read_manifest(path)
        self._open(manifest, path)
        rules = {name: manifest.router_of(name) for name in self._service.store.names}
        routers = {name: spread(name, rule, self._shards) for name, rule in rules.items()}
        job = LoadJob(path, self._service.store.tables, router=routers, shard=self._shard)
        job.bring()
        blobs = job.finish().blobs
        mine = blobs.get(blob_name(self._shard, self._shards))
        if mine is not None and manifest.routing.shards == self._shards:
            self._remember(mine)
        logging.getLogger("hedgerow").info("rows of %s, step %d", path, manifest.step)

    def _open(self, manifest: CheckpointManifest, path: Path) -> None:
        if self._service.is_open:
            return
        configs = [table.config for table in manifest.tables.values()]
        if any(config is None for config in configs):
            raise CheckpointError(f"{path} has no table configurations; use --tables.")
        self._service.open(config_of(configs))

    def _remember(self, data: bytes) -> None:
        found = unpack(data)
        for number, client in found.clients:
            self._clients.put(number, client)
        self._segment = max(found.segment, 1)
        if found.segment and found.segment not in segments(self._folder):
            raise LogError(
                f"{self._folder} lacks log segment {found.segment}, which follows its checkpoint; "
                f"restore it."
            )


def spread(name: str, rule: Router | None, shards: int) -> Router:
    """Returns the same routing rule for `shards` servers."""
    if rule is None or (rule.bounds is not None and rule.shards != shards):
        raise CheckpointError(
            f"table {name!r} was saved with ranges that cannot be split for {shards} servers; "
            f"load it through a client, with reroute."
        )
    if rule.shards == shards:
        return rule
    return Router(rule.dist_type, shards, rows=rule.rows, rank0_empty=rule.rank0_empty)
