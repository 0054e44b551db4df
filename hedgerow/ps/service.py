"""Executes requests on the tables of a server, and stores the consumers of its change feeds.

A consumer is known by its name and its life, a number that its client draws when it opens the
consumer. Takes are numbered. The server keeps the result of a take until the next take, so a
repeated request gets the same answer, and a late copy takes nothing. A take returns at most as many
keys as its client accepts; the next takes return the remaining keys.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock
from ..core.errors import ConfigError, HedgerowError, InputError, StateError
from ..core.recycle import Recycler
from ..core.shapes import Float32, Int64
from ..tables.changes import TouchedBatch, TouchedKeys, TouchedSettings, rows_present
from ..tables.host import HostTable
from ..tables.local_table import table_stats
from ..tables.multi import parts
from ..tables.multi.host_tables import HostTables
from ..tables.multi.several_tables import MultiConfig
from ..tables.store import Applied, Entries, Missing, TableKeys
from .errors import ConsumerGoneError, FrameError
from .messages import (
    ServerAnswer,
    ServerRequest,
    Status,
    Verb,
    buffer_of,
    difference,
    document_of,
    fingerprint,
    narrowed,
    tensor_over,
    text_of,
    value_of,
    widened,
)

FOLLOWING = (Verb.TOUCHED_OPEN, Verb.TOUCHED_TAKE, Verb.TOUCHED_BACK, Verb.TOUCHED_CLOSE)
MAX_CONSUMERS = 16  # of one table; beyond it, the consumer that was idle longest is closed
MAX_CAPACITY = 2**26  # keys: about a gigabyte
MAX_NAME_BYTES = 256
_PREFIX = "remote "  # keeps these consumers apart from those of the server itself


@dataclass(slots=True)
class _FeedConsumer:
    life: int
    keys: TouchedKeys
    number: int = 0  # of the last take
    given: ServerAnswer | None = None  # the answer to the last take
    rest: Int64[Tensor, "n"] | None = None  # keys that were taken and not sent yet
    lock: threading.Lock = field(default_factory=threading.Lock)


class ChangeConsumers:
    """The consumers of all tables of a server. Owns a lock, and one for each consumer."""

    def __init__(self) -> None:
        self.began_with_rows = False  # whether the server recovered rows when it started
        self._start = secrets.randbits(31)
        self._lock = threading.Lock()
        self._known: dict[str, OrderedDict[str, _FeedConsumer]] = {}  # by table, then by consumer

    def answer(self, table: HostTable, request: ServerRequest) -> ServerAnswer:
        """Executes a request, which may be a repeated one."""
        order = _order(request)
        name, life = _name(order), checks.count("life", order.get("life", 0), least=1)
        if request.verb == Verb.TOUCHED_OPEN:
            self._open(table, name, life, _settings(order))
            return ServerAnswer(request.verb, numbers=(self._start, int(self.began_with_rows), 0))
        if request.verb == Verb.TOUCHED_CLOSE:
            self._close(table, name, life)
        elif request.verb == Verb.TOUCHED_TAKE:
            number = checks.count("number", order.get("number", 0), least=1)
            most = checks.count("most", order.get("most", 0), least=1)
            return self._take(self._find(table, name, life), number, most)
        else:
            self._give_back(self._find(table, name, life), _taken(request, order))
        return ServerAnswer(request.verb)

    def _open(self, table: HostTable, name: str, life: int, settings: TouchedSettings) -> None:
        with self._lock:
            known = self._known.setdefault(table.config.name, OrderedDict())
            old = known.get(name)
            if old is not None and old.life == life:
                return  # a repeated request
            if old is not None:
                known.pop(name).keys.close()
            elif len(known) >= MAX_CONSUMERS:
                known.popitem(last=False)[1].keys.close()
            keys = table.touched(
                _PREFIX + name,
                capacity=settings.capacity,
                all_changes=settings.all_changes,
                overflow=settings.overflow,
            )
            known[name] = _FeedConsumer(life, keys)

    def _close(self, table: HostTable, name: str, life: int) -> None:
        with self._lock:
            known = self._known.get(table.config.name, OrderedDict())
            if name in known and known[name].life == life:
                known.pop(name).keys.close()

    def _find(self, table: HostTable, name: str, life: int) -> _FeedConsumer:
        with self._lock:
            known = self._known.get(table.config.name, OrderedDict())
            found = known.get(name)
            if found is None or found.life != life:
                raise ConsumerGoneError(
                    f"consumer {name!r} of table {table.config.name!r} is not open here: the "
                    f"server was restarted, or dropped it for newer ones; open it again and send "
                    f"every row."
                )
            known.move_to_end(name)
            return found

    def _take(self, follower: _FeedConsumer, number: int, most: int) -> ServerAnswer:
        with follower.lock:
            if number == follower.number and follower.given is not None:
                return follower.given
            if number != follower.number + 1:
                raise InputError(
                    f"take {number} after take {follower.number}; takes are counted one by one."
                )
            whole, forgotten = False, 0
            if follower.rest is None:
                taken = follower.keys.take()
                follower.rest = taken.ids
                whole, forgotten = taken.whole_table, taken.forgotten
            part, rest = follower.rest[:most], follower.rest[most:]
            numbers = (int(whole), forgotten, int(len(rest) > 0))
            follower.given = ServerAnswer(
                Verb.TOUCHED_TAKE, numbers=numbers, frames=[buffer_of(part)]
            )
            follower.rest = rest if len(rest) else None
            follower.number = number
            return follower.given

    def _give_back(self, follower: _FeedConsumer, taken: TouchedBatch) -> None:
        with follower.lock:
            follower.keys.give_back(taken)


def _order(request: ServerRequest) -> dict[str, Any]:
    if not request.frames:
        raise FrameError(f"{request.verb.name.lower()} without a consumer.")
    order = value_of(request.frames[0])
    if not isinstance(order, dict):
        raise FrameError(f"{request.verb.name.lower()} with a {type(order).__name__}, not a dict.")
    return order


def _name(order: dict[str, Any]) -> str:
    name = order.get("consumer")
    if not isinstance(name, str) or not name or len(name.encode()) > MAX_NAME_BYTES:
        raise InputError(
            f"consumer is {str(name)[:64]!r}; it must be a non-empty str of at most "
            f"{MAX_NAME_BYTES} bytes."
        )
    return name


def _settings(order: dict[str, Any]) -> TouchedSettings:
    if checks.count("capacity", order.get("capacity", 0), least=1) > MAX_CAPACITY:
        raise InputError(f"capacity is {order['capacity']}; a server keeps up to {MAX_CAPACITY}.")
    return TouchedSettings(
        order["capacity"], order.get("all_changes", False), order.get("overflow", "whole_table")
    )


def _taken(request: ServerRequest, order: dict[str, Any]) -> TouchedBatch:
    if len(request.frames) != 2:
        raise FrameError(f"keys given back in {len(request.frames)} buffers; 2 are expected.")
    count = memoryview(request.frames[1]).nbytes // 8
    ids = tensor_over(request.frames[1], torch.int64, count, "ids")
    whole = checks.flag("whole_table", order.get("whole_table", False))
    return TouchedBatch(ids, whole_table=whole, forgotten=0)


# Rows in one part of an answer: large enough for a low overhead, and small enough that the next
# part is read while this one is sent.
PART_BYTES = 2**22
SLICE_BYTES = 2**24  # rows with state in one answer to a scan
MISSING: tuple[Missing, ...] = ("zeros", "initializer", "training")


class TableService:
    """Executes verbs on the tables of one shard.

    The first client defines the tables, unless they came from a file. Writes must run one at a
    time; reads may run in any thread at any time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._store: HostTables | None = None
        self._outputs = Recycler()
        self._consumers = ChangeConsumers()
        self._reads: dict[Verb, Callable[[HostTables, ServerRequest], Iterator[ServerAnswer]]] = {
            Verb.LOOKUP: self._lookup,
            Verb.CONTAINS: self._contains,
            Verb.ENTRIES: self._entries,
            Verb.SCAN: self._scan,
            Verb.SIZES: self._sizes,
            Verb.MAX_TS: self._max_ts,
            Verb.READ_ROWS: self._read_rows,
            Verb.SCAN_IDS: self._scan_ids,
            Verb.STATS: self._stats,
            **dict.fromkeys(FOLLOWING, self._follow),
        }
        self._writes: dict[Verb, Callable[[HostTables, ServerRequest], ServerAnswer]] = {
            Verb.APPLY_GRADIENTS: self._apply_gradients,
            Verb.ASSIGN: self._assign,
            Verb.ASSIGN_ADD: self._assign_add,
            Verb.REINITIALIZE: self._reinitialize,
            Verb.ERASE: self._erase,
        }

    def note_start(self) -> None:
        """Records whether the server has rows now, for consumers of changes.

        Called before any client.
        """
        tables = () if self._store is None else self._store.tables
        self._consumers.began_with_rows = any(table.size() for table in tables)

    @property
    def is_open(self) -> bool:
        """Whether the tables exist."""
        return self._store is not None

    @property
    def store(self) -> HostTables:
        """The tables."""
        if self._store is None:
            raise StateError(
                "this server has no tables yet; connect a client with configs, or start the "
                "server with --tables."
            )
        return self._store

    def open(self, config: MultiConfig) -> None:
        """Creates the tables, or raises if the existing tables are different."""
        if self._store is None:
            named = dict(zip(config.names, config.configs, strict=True))
            self._store = HostTables(named, clock=self._clock)
            return
        found = difference(self._store.config, config)
        if found:
            raise ConfigError(
                f"the tables of this server are different: {found}. Give every client the same "
                f"tables, or restart the servers."
            )

    def describe(self) -> dict[str, object]:
        """Returns the names, dims and configurations of the tables, and their fingerprint."""
        config = self.store.config
        return {
            "names": list(config.names),
            "dims": list(config.dims),
            "fingerprint": fingerprint(config),
            "configs": document_of(config),
        }

    def read(self, request: ServerRequest) -> Iterator[ServerAnswer]:
        """Yields the parts of the answer. An error is yielded as an answer."""
        try:
            yield from self._reads[request.verb](self.store, request)
        except HedgerowError as error:
            yield failure(request.verb, error)

    def lookup_at(
        self, ids_at: int, splits: tuple[int, ...], missing: int, step: int | None, rows_at: int
    ) -> None:
        """Looks up the ids at one address and writes their rows to another.

        The caller checks the sizes.
        """
        self.store.lookup_at(ids_at, splits, MISSING[missing], step, rows_at)

    def write(self, request: ServerRequest) -> ServerAnswer:
        """Changes rows. An error is returned as an answer."""
        try:
            return self._writes[request.verb](self.store, request)
        except HedgerowError as error:
            return failure(request.verb, error)

    def floats_of(self, request: ServerRequest) -> int:
        """Returns the number of values in the rows of a request's keys."""
        return parts.float_offsets(request.splits, self.store.dims)[-1]

    # ---- reads

    def _lookup(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        keys, options = _keys(store, request), request.options
        missing, wire = MISSING[options.missing], options.wire
        total = parts.float_offsets(keys.splits, store.dims)[-1]
        if 4 * total <= PART_BYTES:
            rows = self._rows_for(request, 0, total)
            store.lookup(keys, missing=missing, step=options.step, out=rows)
            yield ServerAnswer(Verb.LOOKUP, wire=wire, frames=[buffer_of(narrowed(rows, wire))])
            return
        cuts = _cuts(keys.splits[-1], total)
        offset = 0
        for part, (start, stop) in enumerate(cuts):
            own = TableKeys(keys.ids[start:stop], _within(keys.splits, start, stop))
            floats = parts.float_offsets(own.splits, store.dims)[-1]
            out = self._rows_for(request, offset, floats)
            store.lookup(own, missing=missing, step=options.step, out=out)
            frames = [buffer_of(narrowed(out, wire))]
            yield ServerAnswer(
                Verb.LOOKUP, wire=wire, part=part, parts=len(cuts), offset=offset, frames=frames
            )
            offset += floats

    def _rows_for(self, request: ServerRequest, at: int, floats: int) -> Float32[Tensor, "floats"]:
        """Returns memory for rows: the client's shared memory if it fits, else a buffer."""
        room = request.room
        if room is None or request.options.wire or at + floats > len(room):
            return self._outputs.take(floats)[0]
        return room[at : at + floats]

    def _contains(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        found = store.contains(_keys(store, request))
        yield ServerAnswer(Verb.CONTAINS, frames=[buffer_of(found)])

    def _entries(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        table = store.table(request.options.table)
        if len(request.splits) != 2:
            raise FrameError("entries of several tables in one request; ask table by table.")
        ids = tensor_over(request.frames[0], torch.int64, request.splits[-1], "ids")
        yield ServerAnswer(Verb.ENTRIES, frames=_whole_rows(store, request, table.entries(ids)))

    def _scan(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        table, options = store.table(request.options.table), request.options
        most = max(1, SLICE_BYTES // (4 * (table.layout.dim + table.layout.state_floats) + 16))
        found, cursor, done = table.scan_slice(options.cursor, min(options.rows or most, most))
        frames = _whole_rows(store, request, found)
        yield ServerAnswer(
            Verb.SCAN, offset=cursor, numbers=(int(done), len(found), 0), frames=frames
        )

    def _scan_ids(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        options = request.options
        most = SLICE_BYTES // 128  # the scan reads rows with state
        found, cursor, done = store.table(options.table).scan_slice(
            options.cursor, min(options.rows or most, most)
        )
        frames = [buffer_of(found.ids.contiguous())]
        yield ServerAnswer(
            Verb.SCAN_IDS, offset=cursor, numbers=(int(done), len(found), 0), frames=frames
        )

    def _read_rows(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        if len(request.splits) != 2:
            raise FrameError("rows of several tables in one request; ask table by table.")
        ids = tensor_over(request.frames[0], torch.int64, request.splits[-1], "ids")
        table = store.table(request.options.table)
        rows, present = rows_present(table, ids, request.options.step)
        yield ServerAnswer(Verb.READ_ROWS, frames=[buffer_of(present), buffer_of(rows.view(-1))])

    def _follow(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        yield self._consumers.answer(store.table(request.options.table), request)

    def _sizes(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        sizes = torch.tensor([table.size() for table in store.tables])
        yield ServerAnswer(Verb.SIZES, frames=[buffer_of(sizes)])

    def _stats(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        told = [table_stats(table) for table in store.tables]
        yield ServerAnswer(Verb.STATS, frames=[text_of(told)])

    def _max_ts(self, store: HostTables, request: ServerRequest) -> Iterator[ServerAnswer]:
        yield ServerAnswer(Verb.MAX_TS, numbers=(store.max_ts(), 0, 0))

    # ---- writes

    def _apply_gradients(self, store: HostTables, request: ServerRequest) -> ServerAnswer:
        keys, options = _keys(store, request), request.options
        grads = self._rows(request, "gradients")
        counts = None
        if options.has_counts:
            counts = tensor_over(_frame(request, 2), torch.int64, len(keys.ids), "counts")
        done = store.apply_gradients(
            keys,
            grads,
            rates=request.rates or None,
            step=options.step,
            ts=options.ts,
            counts=counts,
            per_occurrence=options.per_occurrence,
        )
        return _applied(request.verb, done)

    def _assign(self, store: HostTables, request: ServerRequest) -> ServerAnswer:
        keys = _keys(store, request)
        done = store.assign(keys, self._rows(request, "rows"), ts=request.options.ts)
        return _applied(request.verb, done)

    def _assign_add(self, store: HostTables, request: ServerRequest) -> ServerAnswer:
        keys = _keys(store, request)
        done = store.assign_add(keys, self._rows(request, "rows"), ts=request.options.ts)
        return _applied(request.verb, done)

    def _reinitialize(self, store: HostTables, request: ServerRequest) -> ServerAnswer:
        return ServerAnswer(
            request.verb, frames=[buffer_of(store.reinitialize(_keys(store, request)))]
        )

    def _erase(self, store: HostTables, request: ServerRequest) -> ServerAnswer:
        return ServerAnswer(request.verb, frames=[buffer_of(store.erase(_keys(store, request)))])

    def _rows(self, request: ServerRequest, what: str) -> Float32[Tensor, "floats"]:
        return widened(_frame(request, 1), request.options.wire, self.floats_of(request), what)


def failure(verb: Verb, error: Exception, status: Status = Status.FAILED) -> ServerAnswer:
    """Returns an error as an answer. The client raises the error class of the same name."""
    text = text_of({"error": type(error).__name__, "message": str(error)})
    return ServerAnswer(verb, status=status, frames=[text])


def _frame(request: ServerRequest, at: int) -> object:
    if len(request.frames) <= at:
        raise FrameError(f"{request.verb.name.lower()} without its buffer {at + 1}.")
    return request.frames[at]


def _keys(store: HostTables, request: ServerRequest) -> TableKeys:
    if len(request.splits) != len(store.names) + 1:
        raise InputError(
            f"keys of {len(request.splits) - 1} tables for a server of {len(store.names)}."
        )
    ids = tensor_over(_frame(request, 0), torch.int64, request.splits[-1], "ids")
    return TableKeys(ids, request.splits)


def _cuts(ids: int, floats: int) -> list[tuple[int, int]]:
    """Splits keys into ranges, so that the rows of each range are about one part of an answer."""
    step = max(1, -(-ids // -(-4 * floats // PART_BYTES)))
    return [(at, min(at + step, ids)) for at in range(0, ids, step)]


def _within(splits: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
    return tuple(min(max(at, start), stop) - start for at in splits)


def _applied(verb: Verb, done: Applied) -> ServerAnswer:
    inserted, refused, dropped = done.counts.tolist()
    return ServerAnswer(verb, numbers=(inserted, refused, dropped))


def _whole_rows(store: HostTables, request: ServerRequest, found: Entries) -> list[object]:
    layout = store.table(request.options.table).layout
    raw = layout.join(found.states, len(found))
    first = found.ids if request.verb == Verb.SCAN else found.found
    return [buffer_of(part.contiguous()) for part in (first, found.rows, raw, found.ts)]
