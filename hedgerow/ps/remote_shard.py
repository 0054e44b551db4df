"""The tables of one server as a shard: connection, requests in flight, server status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError, HedgerowError, InputError
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Int8, Int64
from ..tables import arguments
from ..tables.config import TableConfig
from ..tables.layout import RowLayout
from ..tables.local_table import TableStats
from ..tables.multi import parts
from ..tables.multi.several_tables import MultiConfig
from ..tables.optimizers import Rate
from ..tables.store import Applied, Entries, Lookup, Missing, TableKeys, as_keys
from .connection import ServerConnection
from .curve import ClientKeys
from .errors import FrameError, RolledBackError, ServerAwayError
from .messages import (
    MAX_FRAME_BYTES,
    MAX_TEXT_BYTES,
    NO_OPTIONS,
    Buffer,
    Options,
    ServerRequest,
    Verb,
    buffer_of,
    check_room,
    config_of,
    document_of,
    narrowed,
    rates_now,
    tensor_over,
    text_of,
    value_of,
    wire_code,
)
from .pending_requests import KeptAnswer, PendingRequest, RowsInto, WaitPolicy, zeros_into
from .service import MISSING, SLICE_BYTES

_SPARE_BYTES = 1024  # for the alignment of buffers in shared memory
A = TypeVar("A")
Away = Literal["fail", "wait", "zeros"]
"""If a server stays unreachable: raise at the deadline, wait without limit, or return zeros."""


@dataclass(slots=True, eq=False)
class InFlightAnswer(Generic[A]):
    """An answer of a server that is in flight. A second `wait` returns the same answer."""

    connection: ServerConnection
    pending: PendingRequest
    made: Callable[[], A]
    instead: Callable[[ServerAwayError], A] | None = None

    def wait(self) -> A:
        """Returns the answer once it has arrived."""
        try:
            self.connection.wait(self.pending)
        except ServerAwayError as error:
            if self.instead is None:
                raise
            return self.instead(error)
        return self.made()


class RemoteShard:
    """A shard on a server. Safe from many threads, which share its one connection.

    `configs` are the tables. The first client defines them, and later clients must pass the same
    ones. Without `configs`, the tables of the server are used. A request waits for `deadline_s`;
    the default of 60 s suits training, and serving clients should set a shorter one. `away` says
    what happens after the deadline. Rows and gradients are sent as `wire` and stored as float32.

    A read may be sent several times. A write that is sent again is applied once. Ids, rows and
    gradients must not change before the answer arrives.
    """

    def __init__(
        self,
        address: str,
        configs: Mapping[str, TableConfig] | None = None,
        *,
        name: str = "",
        keys: ClientKeys | Path | str | None = None,
        deadline_s: float = 60.0,
        retry_s: float = 1.0,
        away: Away = "fail",
        wire: torch.dtype = torch.float32,
        counters: Counters | None = None,
    ) -> None:
        checks.setting("RemoteShard", "deadline_s", deadline_s, above=0)
        checks.setting("RemoteShard", "retry_s", retry_s, above=0)
        checks.choice("RemoteShard", "away", away, ("fail", "wait", "zeros"))
        self._wire, self._away = wire_code(wire), away
        if isinstance(keys, Path | str):
            keys = ClientKeys.read(keys)
        patience = WaitPolicy(None if away == "wait" else deadline_s, retry_s)
        self.connection = ServerConnection(
            address, name=name, keys=keys, patience=patience, counters=counters
        )
        self._outputs = Recycler()
        self._met = -1  # the incarnation of the server that has accepted these tables
        try:
            self.config = self._meet(configs)
        except BaseException:
            self.connection.close()
            raise
        self.names, self.dims = self.config.names, self.config.dims
        self._rates_given: tuple[Rate, ...] | None = None  # the last rates that were checked
        self._rates: tuple[float, ...] = ()
        self._layouts = tuple(RowLayout(config) for config in self.config.configs)

    def __repr__(self) -> str:
        return f"RemoteShard({self.connection.where}, tables {', '.join(self.names)})"

    @property
    def counters(self) -> Counters:
        """Counters of irregular events, such as repeated requests, late answers, busy servers."""
        return self.connection.counters

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()

    # ---- reads

    def start_lookup(
        self,
        keys: TableKeys,
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> InFlightAnswer[Lookup]:
        """Reads the rows of `keys`, into `out` if given."""
        keys = as_keys(keys, len(self.names))
        arguments.missing_rule(missing)
        floats = parts.float_offsets(keys.splits, self.dims)[-1]
        if out is None:
            rows = self._outputs.take(floats)[0]
        else:
            rows = parts.flat_output(out, floats)
            increment_version(rows)  # so that autograd notices if it saved the old values
        at_step = None if step is None else checks.count("step", step)
        options = Options(self._wire, MISSING.index(missing), at_step)
        found = Lookup(keys, rows, self.dims)

        def zeros(error: ServerAwayError) -> Lookup:
            if self._away != "zeros":
                raise error
            self.counters.add("lookups_of_zeros")
            zeros_into(rows)
            return found

        request = ServerRequest(Verb.LOOKUP, options=options, splits=keys.splits)
        pending = self.start(request, [buffer_of(keys.ids)], RowsInto(rows))
        return InFlightAnswer(self.connection, pending, lambda: found, zeros)

    def start_contains(self, keys: TableKeys) -> InFlightAnswer[Bool[Tensor, "n"]]:
        """Reads whether each key has a row."""
        return self._start_marks(Verb.CONTAINS, keys, torch.bool)

    def start_entries(self, k: int, ids: Int64[Tensor, "n"]) -> InFlightAnswer[Entries]:
        """Reads rows of table `k` with their state and time."""
        checks.tensor("ids", ids, torch.int64, (None,))
        layout = self._layouts[arguments.table_number(k, len(self.names))]
        _check_reply(len(ids), layout)
        kept = KeptAnswer(len(ids) * _entry_bytes(layout) + _SPARE_BYTES)
        request = ServerRequest(Verb.ENTRIES, options=Options(table=k), splits=(0, len(ids)))
        pending = self.start(request, [buffer_of(ids)], kept)

        def entries() -> Entries:
            found = tensor_over(kept.frames[0], torch.bool, len(ids), "marks")
            return _entries(layout, ids, found, kept.frames)

        return InFlightAnswer(self.connection, pending, entries)

    def scan(self, k: int, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows of table `k`, in slices of at most about `rows`, one request each."""
        layout = self._layouts[arguments.table_number(k, len(self.names))]
        most = 0 if rows is None else min(checks.count("rows", rows, least=1), 2**32 - 1)
        cursor, done = 0, False
        while not done:
            kept = KeptAnswer(2 * SLICE_BYTES + _entry_bytes(layout) + _SPARE_BYTES)
            options = Options(table=k, rows=most, cursor=cursor)
            self.connection.wait(self.start(ServerRequest(Verb.SCAN, options=options), [], kept))
            if kept.answer is None:
                raise FrameError(f"a scan without an answer [{self.connection.where}].")
            cursor, done, n = kept.answer.offset, bool(kept.number(0)), kept.number(1)
            ids = tensor_over(kept.frames[0], torch.int64, n, "ids")
            if n:
                yield _entries(layout, ids, torch.ones(n, dtype=torch.bool), kept.frames)

    def start_sizes(self) -> InFlightAnswer[tuple[int, ...]]:
        """Reads the number of rows of each table."""
        tables = len(self.names)
        kept = KeptAnswer(8 * tables)
        pending = self.start(ServerRequest(Verb.SIZES), [], kept)

        def sizes() -> tuple[int, ...]:
            return tuple(tensor_over(kept.frames[0], torch.int64, tables, "sizes").tolist())

        return InFlightAnswer(self.connection, pending, sizes)

    def start_stats(self) -> InFlightAnswer[tuple[TableStats, ...]]:
        """Reads rows, bytes, load and counters of each table."""
        kept = KeptAnswer(MAX_TEXT_BYTES)
        pending = self.start(ServerRequest(Verb.STATS), [], kept)
        return InFlightAnswer(self.connection, pending, lambda: tuple(value_of(kept.frames[0])))

    def start_max_ts(self) -> InFlightAnswer[int]:
        """Reads the largest `ts` of any write."""
        kept = KeptAnswer()
        pending = self.start(ServerRequest(Verb.MAX_TS), [], kept)
        return InFlightAnswer(self.connection, pending, kept.number)

    # ---- writes

    def start_apply_gradients(
        self,
        keys: TableKeys,
        grads: Float32[Tensor, "floats"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
    ) -> InFlightAnswer[Applied]:
        """Applies one optimizer step per table and distinct id. The client evaluates the rates."""
        keys = as_keys(keys, len(self.names))
        if counts is not None:
            arguments.occurrences(counts, len(keys.ids))
        options = Options(
            self._wire,
            step=None if step is None else checks.count("step", step),
            ts=checks.count("ts", ts),
            per_occurrence=checks.flag("per_occurrence", per_occurrence),
            has_counts=counts is not None,
        )
        if rates is None or rates is not self._rates_given:
            now = rates_now(self.config, rates, step)
            if type(rates) is tuple and set(map(type, rates)) <= {float}:
                self._rates_given, self._rates = rates, now
        else:
            now = self._rates
        more = [] if counts is None else [buffer_of(counts)]
        return self._start_rows(Verb.APPLY_GRADIENTS, keys, "grads", grads, options, now, more)

    def start_assign(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> InFlightAnswer[Applied]:
        """Sets rows and keeps optimizer state."""
        options = Options(self._wire, ts=checks.count("ts", ts))
        keys = as_keys(keys, len(self.names))
        return self._start_rows(Verb.ASSIGN, keys, "rows", rows, options)

    def start_assign_add(
        self, keys: TableKeys, rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> InFlightAnswer[Applied]:
        """Adds to rows. An absent row starts from its first value."""
        options = Options(self._wire, ts=checks.count("ts", ts))
        return self._start_rows(
            Verb.ASSIGN_ADD, as_keys(keys, len(self.names)), "rows", rows, options
        )

    def start_reinitialize(self, keys: TableKeys) -> InFlightAnswer[Int8[Tensor, "n"]]:
        """Resets rows to their first values. The answer is 1 where a key had a row, else 0."""
        return self._start_marks(Verb.REINITIALIZE, keys, torch.int8)

    def start_erase(self, keys: TableKeys) -> InFlightAnswer[Bool[Tensor, "n"]]:
        """Removes rows. The answer says whether each key had one."""
        return self._start_marks(Verb.ERASE, keys, torch.bool)

    # ---- about the server

    def ask(
        self, verb: Verb, order: Mapping[str, Any] | None = None, *, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """Sends an order and returns the JSON answer: health, counters or a saved step."""
        return self.start_ask(verb, order, deadline_s=deadline_s).wait()

    def start_ask(
        self, verb: Verb, order: Mapping[str, Any] | None = None, *, deadline_s: float | None = None
    ) -> InFlightAnswer[dict[str, Any]]:
        """Starts `ask` without waiting. An order that may take long needs its own deadline."""
        kept = KeptAnswer(MAX_TEXT_BYTES)
        frames = [] if order is None else [text_of(order)]
        patience = self.connection.patience
        if deadline_s is not None:
            patience = WaitPolicy(deadline_s, deadline_s)
        pending = self.connection.start(ServerRequest(verb), frames, kept, patience)
        return InFlightAnswer(self.connection, pending, lambda: dict(value_of(kept.frames[0])))

    def health(self, deadline_s: float | None = None) -> dict[str, Any]:
        """Returns the state of the server, its number of rows and its waiting requests."""
        return self.ask(Verb.HEALTH, deadline_s=deadline_s)

    def server_counters(self) -> dict[str, int]:
        """Returns the counters of the server since its start."""
        return self.ask(Verb.COUNTERS)

    def checkpoint(self, step: int = 0, *, deadline_s: float = 3600.0) -> int:
        """Makes the server save its rows into its own folder, and returns the saved step."""
        return int(self.ask(Verb.CHECKPOINT, {"step": step}, deadline_s=deadline_s)["step"])

    def _meet(self, configs: Mapping[str, TableConfig] | None) -> MultiConfig:
        if configs is not None:
            return self._open(MultiConfig.of(configs))
        return config_of(self.ask(Verb.DESCRIBE)["configs"])

    def _open(self, config: MultiConfig) -> MultiConfig:
        kept = KeptAnswer(MAX_TEXT_BYTES)
        frames = [text_of(document_of(config))]
        self.connection.wait(self.connection.start(ServerRequest(Verb.OPEN), frames, kept))
        self._met = kept.incarnation
        return config

    # ---- helpers

    def start(
        self, request: ServerRequest, frames: Sequence[Buffer], sink: KeptAnswer | RowsInto
    ) -> PendingRequest:
        """Sends a request about the tables.

        Its first frame is the ids, and its answer goes to `sink`.

        A server that was restarted without its tables first receives their configurations again.
        """
        if frames and len(frames[0]) > MAX_FRAME_BYTES:
            raise InputError(
                f"{len(frames[0]) // 8} ids in one request; at most {MAX_FRAME_BYTES // 8}. Split "
                f"it."
            )
        if self._met not in (-1, self.connection.incarnation):
            try:
                self._open(self.config)
            except RolledBackError:
                self._open(self.config)
                raise
            except ServerAwayError:
                if request.verb != Verb.LOOKUP or self._away != "zeros":
                    raise
        return self.connection.start(request, frames, sink)

    def _start_marks(
        self, verb: Verb, keys: TableKeys, dtype: torch.dtype
    ) -> InFlightAnswer[Tensor]:
        keys = as_keys(keys, len(self.names))
        n = len(keys.ids)
        kept = KeptAnswer(n)
        request = ServerRequest(verb, splits=keys.splits)
        pending = self.start(request, [buffer_of(keys.ids)], kept)
        return InFlightAnswer(
            self.connection, pending, lambda: tensor_over(kept.frames[0], dtype, n, "marks")
        )

    def _start_rows(
        self,
        verb: Verb,
        keys: TableKeys,
        what: str,
        rows: Tensor,
        options: Options = NO_OPTIONS,
        rates: tuple[float, ...] = (),
        more: Sequence[Buffer] = (),
    ) -> InFlightAnswer[Applied]:
        floats = parts.float_offsets(keys.splits, self.dims)[-1]
        rows = rows.view(-1) if len(self.dims) == 1 and rows.dim() == 2 else rows
        rows = parts.flat_rows(what, rows, floats)
        if 4 * floats > MAX_FRAME_BYTES:
            check_room(floats, self._wire)
        kept = KeptAnswer()
        request = ServerRequest(verb, options=options, splits=keys.splits, rates=rates)
        sent = narrowed(rows.detach(), self._wire) if self._wire else rows.detach()
        frames = [buffer_of(keys.ids), buffer_of(sent), *more]
        pending = self.start(request, frames, kept)
        return InFlightAnswer(
            self.connection,
            pending,
            lambda: Applied.of(kept.number(0), kept.number(1), kept.number(2)),
        )


def _entry_bytes(layout: RowLayout) -> int:
    """Returns the bytes of one row with its state, id and time."""
    return 4 * (layout.dim + layout.state_floats) + 16


def _check_reply(n: int, layout: RowLayout) -> None:
    row_bytes = 4 * max(layout.dim, layout.state_floats)
    if n * row_bytes > MAX_FRAME_BYTES:
        raise InputError(
            f"whole rows of {n} ids; at most {MAX_FRAME_BYTES // row_bytes} in one request."
        )


def _entries(layout: RowLayout, ids: Tensor, found: Tensor, frames: Sequence[Buffer]) -> Entries:
    n = len(ids)
    rows = tensor_over(frames[1], torch.float32, n * layout.dim, "rows").view(n, layout.dim)
    floats = layout.state_floats
    raw = tensor_over(frames[2], torch.float32, n * floats, "states").view(n, floats)
    ts = tensor_over(frames[3], torch.int64, n, "times")
    return Entries(ids, found, rows, layout.split(raw), ts)


def connect(
    addresses: Sequence[str],
    configs: Mapping[str, TableConfig] | Sequence[Mapping[str, TableConfig]] | None = None,
    *,
    wire: torch.dtype = torch.float32,
    deadline_s: float | None = None,
    keys: ClientKeys | Path | str | None = None,
    away: Away = "fail",
) -> list[RemoteShard]:
    """Returns one shard for each address, in the same order: shard i of n is `addresses[i]`.

    `configs` are the tables of every server, or a list with the tables of each server. Names and
    dims must agree; admission rules may differ. Requests have a deadline of 60 s, or `deadline_s`.
    The first request to a server always has 60 s.
    """
    if isinstance(addresses, str) or not addresses:
        raise ConfigError(f"servers is {addresses!r}; give a list of at least one address.")
    each = configs if isinstance(configs, Sequence) else [configs] * len(addresses)
    if len(each) != len(addresses):
        raise ConfigError(
            f"{len(each)} sets of tables for {len(addresses)} servers; give one for all of them, "
            f"or one for each."
        )
    made: list[RemoteShard] = []
    try:
        for i, (address, own) in enumerate(zip(addresses, each, strict=True)):
            full = address if "://" in address else f"tcp://{address}"
            name = f"{i}/{len(addresses)}"
            made.append(RemoteShard(full, own, name=name, keys=keys, wire=wire, away=away))
    except BaseException:
        for shard in made:
            shard.close()
        raise
    if deadline_s is not None:
        for shard in made:
            shard.connection.patience = WaitPolicy(deadline_s, shard.connection.patience.retry_s)
    return made


_RETRY_S = 1.0


def status_of(
    addresses: Sequence[str], *, keys: Path | None = None, deadline_s: float = 5.0
) -> list[dict[str, Any]]:
    """Returns the health and counters of each server, or its error.

    All servers are asked at once.
    """
    own = None if keys is None else ClientKeys.read(keys)
    patience = WaitPolicy(deadline_s, _RETRY_S)
    asked = []
    try:
        for address in addresses:
            full = address if "://" in address else f"tcp://{address}"
            connection = ServerConnection(full, keys=own, patience=patience)
            verbs = (Verb.HEALTH, Verb.COUNTERS)
            kept = [KeptAnswer() for _ in verbs]
            in_flight = [
                connection.start(ServerRequest(verb), [], sink)
                for verb, sink in zip(verbs, kept, strict=True)
            ]
            asked.append((address, connection, kept, in_flight))
        return [_answer(*one) for one in asked]
    finally:
        for _, connection, _, _ in asked:
            connection.close()


def _answer(
    address: str, connection: ServerConnection, kept: Sequence[KeptAnswer], in_flight: Sequence[Any]
) -> dict[str, Any]:
    try:
        for pending in in_flight:
            connection.wait(pending)
    except HedgerowError as error:
        return {"address": address, "error": str(error)}
    health, counters = (dict(value_of(one.frames[0])) for one in kept)
    return {"address": address, "health": health, "counters": counters}
