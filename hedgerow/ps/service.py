"""What a server does with a request on its tables. No sockets, no threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..core.clock import Clock
from ..core.errors import ConfigError, HedgerowError, InputError, StateError
from ..core.recycle import Recycler
from ..core.shapes import Float32
from ..tables.followed import rows_present
from ..tables.multi import parts
from ..tables.multi.host_tables import HostTables
from ..tables.multi.multi_config import MultiConfig
from ..tables.stats import table_stats
from ..tables.store import Applied, Entries, Missing, TableKeys
from .buffers import buffer_of, narrowed, tensor_over, text_of, widened
from .configs import difference, document_of, fingerprint
from .errors import FrameError
from .followers import FOLLOWING, Followers
from .frames import Answer, Request, Status, Verb

PART_BYTES = 2**22  # of rows in one part of an answer: large enough to be cheap, small enough that
# the next part is looked up while this one travels
SLICE_BYTES = 2**24  # of whole rows in one answer to a scan
MISSING: tuple[Missing, ...] = ("zeros", "initializer", "training")


class Service:
    """The verbs on the tables of one shard, which the first client brings if no file did.

    Writes must come one after the other; reads may come from any thread at any time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._store: HostTables | None = None
        self._outputs = Recycler()
        self._followers = Followers()
        self._reads: dict[Verb, Callable[[HostTables, Request], Iterator[Answer]]] = {
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
        self._writes: dict[Verb, Callable[[HostTables, Request], Answer]] = {
            Verb.APPLY_GRADIENTS: self._apply_gradients,
            Verb.ASSIGN: self._assign,
            Verb.ASSIGN_ADD: self._assign_add,
            Verb.REINITIALIZE: self._reinitialize,
            Verb.ERASE: self._erase,
        }

    def note_start(self) -> None:
        """Whoever follows the tables is told whether they have rows now, before any client."""
        tables = () if self._store is None else self._store.tables
        self._followers.began_with_rows = any(table.size() for table in tables)

    @property
    def is_open(self) -> bool:
        """Whether the tables are there."""
        return self._store is not None

    @property
    def store(self) -> HostTables:
        """The tables."""
        if self._store is None:
            raise StateError(
                "this server has no tables yet; a client gives them with its configs, or the "
                "server is started with --tables."
            )
        return self._store

    def open(self, config: MultiConfig) -> None:
        """Makes the tables, or proves that they are those that are there."""
        if self._store is None:
            named = dict(zip(config.names, config.configs, strict=True))
            self._store = HostTables(named, clock=self._clock)
            return
        found = difference(self._store.config, config)
        if found:
            raise ConfigError(
                f"the tables of this server are other ones: {found}. Give every client the same "
                f"tables, or start the servers anew."
            )

    def describe(self) -> dict[str, object]:
        """Names, dims and configs of the tables, and what tells them from others."""
        config = self.store.config
        return {
            "names": list(config.names),
            "dims": list(config.dims),
            "fingerprint": fingerprint(config),
            "configs": document_of(config),
        }

    def read(self, request: Request) -> Iterator[Answer]:
        """The parts of the answer, one after the other; an error becomes an answer, too."""
        try:
            yield from self._reads[request.verb](self.store, request)
        except HedgerowError as error:
            yield failure(request.verb, error)

    def lookup_at(
        self, ids_at: int, splits: tuple[int, ...], missing: int, step: int | None, rows_at: int
    ) -> None:
        """The rows of a small lookup, of ids at an address into room for them, both measured."""
        self.store.lookup_at(ids_at, splits, MISSING[missing], step, rows_at)

    def write(self, request: Request) -> Answer:
        """Changes rows."""
        try:
            return self._writes[request.verb](self.store, request)
        except HedgerowError as error:
            return failure(request.verb, error)

    def floats_of(self, request: Request) -> int:
        """Values in the rows of a request's keys."""
        return parts.float_offsets(request.splits, self.store.dims)[-1]

    # ---- reads

    def _lookup(self, store: HostTables, request: Request) -> Iterator[Answer]:
        keys, options = _keys(store, request), request.options
        missing, wire = MISSING[options.missing], options.wire
        total = parts.float_offsets(keys.splits, store.dims)[-1]
        if 4 * total <= PART_BYTES:
            rows = self._rows_for(request, 0, total)
            store.lookup(keys, missing=missing, step=options.step, out=rows)
            yield Answer(Verb.LOOKUP, wire=wire, frames=[buffer_of(narrowed(rows, wire))])
            return
        cuts = _cuts(keys.splits[-1], total)
        offset = 0
        for part, (start, stop) in enumerate(cuts):
            own = TableKeys(keys.ids[start:stop], _within(keys.splits, start, stop))
            floats = parts.float_offsets(own.splits, store.dims)[-1]
            out = self._rows_for(request, offset, floats)
            store.lookup(own, missing=missing, step=options.step, out=out)
            frames = [buffer_of(narrowed(out, wire))]
            yield Answer(
                Verb.LOOKUP, wire=wire, part=part, parts=len(cuts), offset=offset, frames=frames
            )
            offset += floats

    def _rows_for(self, request: Request, at: int, floats: int) -> Float32[Tensor, "floats"]:
        """The client's own memory, if it shares some and rows travel as they are."""
        room = request.room
        if room is None or request.options.wire or at + floats > len(room):
            return self._outputs.take(floats)[0]
        return room[at : at + floats]

    def _contains(self, store: HostTables, request: Request) -> Iterator[Answer]:
        found = store.contains(_keys(store, request))
        yield Answer(Verb.CONTAINS, frames=[buffer_of(found)])

    def _entries(self, store: HostTables, request: Request) -> Iterator[Answer]:
        table = store.table(request.options.table)
        if len(request.splits) != 2:
            raise FrameError("entries of several tables in one request; ask table by table.")
        ids = tensor_over(request.frames[0], torch.int64, request.splits[-1], "ids")
        yield Answer(Verb.ENTRIES, frames=_whole_rows(store, request, table.entries(ids)))

    def _scan(self, store: HostTables, request: Request) -> Iterator[Answer]:
        table, options = store.table(request.options.table), request.options
        most = max(1, SLICE_BYTES // (4 * (table.layout.dim + table.layout.state_floats) + 16))
        found, cursor, done = table.scan_slice(options.cursor, min(options.rows or most, most))
        frames = _whole_rows(store, request, found)
        yield Answer(Verb.SCAN, offset=cursor, numbers=(int(done), len(found), 0), frames=frames)

    def _scan_ids(self, store: HostTables, request: Request) -> Iterator[Answer]:
        options = request.options
        most = SLICE_BYTES // 128  # whole rows are read for them
        found, cursor, done = store.table(options.table).scan_slice(
            options.cursor, min(options.rows or most, most)
        )
        frames = [buffer_of(found.ids.contiguous())]
        yield Answer(
            Verb.SCAN_IDS, offset=cursor, numbers=(int(done), len(found), 0), frames=frames
        )

    def _read_rows(self, store: HostTables, request: Request) -> Iterator[Answer]:
        if len(request.splits) != 2:
            raise FrameError("rows of several tables in one request; ask table by table.")
        ids = tensor_over(request.frames[0], torch.int64, request.splits[-1], "ids")
        table = store.table(request.options.table)
        rows, present = rows_present(table, ids, request.options.step)
        yield Answer(Verb.READ_ROWS, frames=[buffer_of(present), buffer_of(rows.view(-1))])

    def _follow(self, store: HostTables, request: Request) -> Iterator[Answer]:
        yield self._followers.answer(store.table(request.options.table), request)

    def _sizes(self, store: HostTables, request: Request) -> Iterator[Answer]:
        sizes = torch.tensor([table.size() for table in store.tables])
        yield Answer(Verb.SIZES, frames=[buffer_of(sizes)])

    def _stats(self, store: HostTables, request: Request) -> Iterator[Answer]:
        told = [table_stats(table) for table in store.tables]
        yield Answer(Verb.STATS, frames=[text_of(told)])

    def _max_ts(self, store: HostTables, request: Request) -> Iterator[Answer]:
        yield Answer(Verb.MAX_TS, numbers=(store.max_ts(), 0, 0))

    # ---- writes

    def _apply_gradients(self, store: HostTables, request: Request) -> Answer:
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

    def _assign(self, store: HostTables, request: Request) -> Answer:
        keys = _keys(store, request)
        done = store.assign(keys, self._rows(request, "rows"), ts=request.options.ts)
        return _applied(request.verb, done)

    def _assign_add(self, store: HostTables, request: Request) -> Answer:
        keys = _keys(store, request)
        done = store.assign_add(keys, self._rows(request, "rows"), ts=request.options.ts)
        return _applied(request.verb, done)

    def _reinitialize(self, store: HostTables, request: Request) -> Answer:
        return Answer(request.verb, frames=[buffer_of(store.reinitialize(_keys(store, request)))])

    def _erase(self, store: HostTables, request: Request) -> Answer:
        return Answer(request.verb, frames=[buffer_of(store.erase(_keys(store, request)))])

    def _rows(self, request: Request, what: str) -> Float32[Tensor, "floats"]:
        return widened(_frame(request, 1), request.options.wire, self.floats_of(request), what)


def failure(verb: Verb, error: Exception, status: Status = Status.FAILED) -> Answer:
    """An error as an answer; the client raises it again by its name."""
    text = text_of({"error": type(error).__name__, "message": str(error)})
    return Answer(verb, status=status, frames=[text])


def _frame(request: Request, at: int) -> object:
    if len(request.frames) <= at:
        raise FrameError(f"{request.verb.name.lower()} without its buffer {at + 1}.")
    return request.frames[at]


def _keys(store: HostTables, request: Request) -> TableKeys:
    if len(request.splits) != len(store.names) + 1:
        raise InputError(
            f"keys of {len(request.splits) - 1} tables for a server of {len(store.names)}."
        )
    ids = tensor_over(_frame(request, 0), torch.int64, request.splits[-1], "ids")
    return TableKeys(ids, request.splits)


def _cuts(ids: int, floats: int) -> list[tuple[int, int]]:
    """Runs of keys whose rows make a part of an answer."""
    step = max(1, -(-ids // -(-4 * floats // PART_BYTES)))
    return [(at, min(at + step, ids)) for at in range(0, ids, step)]


def _within(splits: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
    return tuple(min(max(at, start), stop) - start for at in splits)


def _applied(verb: Verb, done: Applied) -> Answer:
    inserted, refused, dropped = done.counts.tolist()
    return Answer(verb, numbers=(inserted, refused, dropped))


def _whole_rows(store: HostTables, request: Request, found: Entries) -> list[object]:
    layout = store.table(request.options.table).layout
    raw = layout.join(found.states, len(found))
    first = found.ids if request.verb == Verb.SCAN else found.found
    return [buffer_of(part.contiguous()) for part in (first, found.rows, raw, found.ts)]
