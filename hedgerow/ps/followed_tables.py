"""The tables of a shard for consumers of its change feed, in this process or on a server."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import NotSupportedError, StateError
from ..core.shapes import Bool, Float32, Int64
from ..tables.changes import DEFAULT_CAPACITY, Overflow, TouchedBatch, TouchedSettings
from ..tables.host import HostTable
from ..tables.store import Lookup, TableKeys
from .errors import ConsumerGoneError, FrameError, RolledBackError
from .messages import Buffer, Options, ServerRequest, Verb, buffer_of, tensor_over, text_of
from .pending_requests import KeptAnswer, PendingRequest, WaitPolicy
from .remote_shard import RemoteShard
from .shard import Fp16Shard, LocalShard, Shard, ShardView

_READ_FLOATS = 2**20  # of one answer
_TAKE_IDS = 2**17  # of one answer
_SPARE_BYTES = 1024  # room between the buffers of an answer
_CLOSING = WaitPolicy(2.0, 0.5)


class _LargeAnswer(KeptAnswer):
    """An answer of one part that may have so many bytes."""

    def __init__(self, room_bytes: int) -> None:
        super().__init__()
        self.room_bytes = room_bytes + _SPARE_BYTES


class RemoteTable:
    """Table `k` of a shard, whose connection belongs to those who follow it.

    Word that the server was rolled back reaches each connection once: a trainer would miss it if a
    publisher heard it in his place.
    """

    def __init__(self, shard: RemoteShard, k: int) -> None:
        self._shard, self.k = shard, k
        self.name, self.dim = shard.names[k], shard.dims[k]

    def __repr__(self) -> str:
        return f"RemoteTable({self.name!r} of {self._shard!r})"

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> RemoteTouched:
        """The keys that changed since `consumer` last took them; collected from now on."""
        settings = TouchedSettings(capacity, all_changes, overflow)
        return RemoteTouched(self._shard, self.k, consumer, settings)

    def lookup(self, keys: Int64[Tensor, "n"]) -> Lookup:
        """Rows as they are now; zeros where there is none."""
        rows, _ = self.read(keys)
        return Lookup(TableKeys.of_one(keys), rows.view(-1), (self.dim,))

    def read(
        self, ids: Int64[Tensor, "n"], *, step: int | None = None
    ) -> tuple[Float32[Tensor, "n dim"], Bool[Tensor, "n"]]:
        """Rows as they are now, and which of them are there."""
        checks.tensor("ids", ids, torch.int64, (None,))
        options = Options(table=self.k, step=None if step is None else checks.count("step", step))
        asked = []
        for part in ids.contiguous().split(max(1, _READ_FLOATS // self.dim)):
            kept = _LargeAnswer(len(part) * (4 * self.dim + 1))
            request = ServerRequest(Verb.READ_ROWS, options=options, splits=(0, len(part)))
            asked.append((len(part), kept, self._shard.start(request, [buffer_of(part)], kept)))
        found = [self._rows(n, kept, pending) for n, kept, pending in asked]
        return torch.cat([rows for rows, _ in found]), torch.cat([marks for _, marks in found])

    def _rows(self, n: int, kept: KeptAnswer, pending: PendingRequest) -> tuple[Tensor, Tensor]:
        self._shard.connection.wait(pending)
        if len(kept.frames) != 2:
            raise FrameError(f"rows in {len(kept.frames)} buffers; marks and rows are two.")
        marks = tensor_over(kept.frames[0], torch.bool, n, "marks")
        rows = tensor_over(kept.frames[1], torch.float32, n * self.dim, "rows")
        return rows.view(n, self.dim), marks

    def all_ids(self) -> Iterator[Int64[Tensor, "n"]]:
        """The ids of all rows, in slices; one that stays meanwhile is given exactly once.

        A server that is restarted meanwhile is an error: its rows lie elsewhere, or are gone.
        """
        cursor, done, met = 0, False, 0
        while not done:
            kept = _LargeAnswer(8 * _TAKE_IDS)
            options = Options(table=self.k, rows=_TAKE_IDS, cursor=cursor)
            request = ServerRequest(Verb.SCAN_IDS, options=options)
            self._shard.connection.wait(self._shard.start(request, [], kept))
            if kept.answer is None or len(kept.frames) != 1:
                raise FrameError(f"a scan of ids without ids [{self._shard.connection.where}].")
            met = met or kept.answer.incarnation
            if kept.answer.incarnation != met:
                raise StateError(
                    f"{self._shard.connection.where} was restarted while its ids were read; begin "
                    f"anew."
                )
            cursor, done, n = kept.answer.offset, bool(kept.number(0)), kept.number(1)
            if n:
                yield tensor_over(kept.frames[0], torch.int64, n, "ids")


class RemoteTouched:
    """One consumer's touched keys of a table on a server; owns a lock.

    A take that was not answered is asked for again by the next one and gives the same keys. When
    the server has forgotten the consumer, for example in a restart, the next take opens it again
    and says that the whole table may have changed; `life` is another number then. With
    `overflow="forget"` nothing is said, as Monolith does not.
    """

    def __init__(
        self, shard: RemoteShard, k: int, consumer: str, settings: TouchedSettings
    ) -> None:
        self.name, self.settings = consumer, settings
        self._shard, self._k = shard, k
        self._lock = threading.Lock()
        self._number = self._life = self._start = 0
        self._began_empty = False
        self._taken: list[Tensor] = []  # parts that arrived of a take that goes on
        self._whole, self._forgotten = False, 0
        self._open()

    @property
    def life(self) -> int:
        """Another number after keys may have been lost."""
        return self._life

    @property
    def began_empty(self) -> bool:
        """Whether the server was restarted since it was first asked, and had no rows then."""
        return self._began_empty

    def take(self) -> TouchedBatch:
        """The keys touched since the last take that arrived."""
        with self._lock:
            try:
                while self._part():
                    continue
            except (ConsumerGoneError, RolledBackError):
                self._open()
                self._taken, self._whole = [], self.settings.overflow == "whole_table"
            ids = torch.cat([torch.empty(0, dtype=torch.int64), *self._taken])
            taken = TouchedBatch(ids[:0] if self._whole else ids, self._whole, self._forgotten)
            self._taken, self._whole, self._forgotten = [], False, 0
            return taken

    def _part(self) -> bool:
        """Takes the next part; whether there are more. What has arrived stays, come what may."""
        order = {"number": self._number + 1, "most": _TAKE_IDS}
        kept = self._ask(Verb.TOUCHED_TAKE, order)
        if len(kept.frames) != 1 or kept.answer is None:
            raise FrameError(f"touched keys in {len(kept.frames)} buffers; there is one.")
        count = memoryview(kept.frames[0]).nbytes // 8
        ids = tensor_over(kept.frames[0], torch.int64, count, "ids")
        self._number += 1
        self._taken.append(ids.clone())
        self._whole = self._whole or bool(kept.number(0))
        self._forgotten += kept.number(1)
        return bool(kept.number(2))

    def give_back(self, taken: TouchedBatch | Int64[Tensor, "n"]) -> None:
        """Puts keys back for the next take."""
        whole = isinstance(taken, TouchedBatch) and taken.whole_table
        ids = taken.ids if isinstance(taken, TouchedBatch) else taken
        checks.tensor("ids", ids, torch.int64, (None,))
        with self._lock:
            self._ask(Verb.TOUCHED_BACK, {"whole_table": whole}, [buffer_of(ids.contiguous())])

    def close(self) -> None:
        """Collects no more; a second call does nothing. A server that is away is soon given up:
        it forgets those who do not come."""
        with self._lock:
            self._ask(Verb.TOUCHED_CLOSE, {}, patience=_CLOSING)

    def _open(self) -> None:
        # The number is drawn here, so that a request that comes twice opens one consumer.
        life = secrets.randbits(62) | 1
        kept = self._ask(
            Verb.TOUCHED_OPEN,
            {
                "life": life,
                "capacity": self.settings.capacity,
                "all_changes": self.settings.all_changes,
                "overflow": self.settings.overflow,
            },
        )
        if self._life and kept.number(0) != self._start:
            self._began_empty = not kept.number(1)
        self._life, self._number, self._start = life, 0, kept.number(0)

    def _ask(
        self,
        verb: Verb,
        order: Mapping[str, object],
        more: Sequence[Buffer] = (),
        patience: WaitPolicy | None = None,
    ) -> KeptAnswer:
        kept = _LargeAnswer(8 * _TAKE_IDS if verb == Verb.TOUCHED_TAKE else 0)
        frames = [text_of({"consumer": self.name, "life": self._life, **order}), *more]
        request = ServerRequest(verb, options=Options(table=self._k))
        connection = self._shard.connection
        if patience is None:
            connection.wait(self._shard.start(request, frames, kept))
        else:
            connection.wait(connection.start(request, frames, kept, patience))
        return kept


# Who follows several servers asks them one after the other: one that is away must not hold up the
# rest, and what was not answered is asked for again.
_PATIENCE = WaitPolicy(5.0, 1.0)


def followed_tables(shard: Shard) -> dict[str, HostTable | RemoteTable]:
    """Every table of a shard by name; a server is asked over a connection of its own.

    That connection ends with the last of its tables.

    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> store = HostTables({"item": TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))})
    >>> followed_tables(LocalShard(store))["item"] is store.table(0)
    True
    """
    if isinstance(shard, Fp16Shard):
        return followed_tables(shard.shard)
    if isinstance(shard, ShardView):
        every = followed_tables(shard.shard)
        return {name: every[name] for name in shard.names}
    if isinstance(shard, LocalShard):
        return dict(zip(shard.names, shard.store.tables, strict=True))
    if isinstance(shard, RemoteShard):
        own = _again(shard)
        return {name: RemoteTable(own, k) for k, name in enumerate(own.names)}
    raise NotSupportedError(f"changes of a {type(shard).__name__} cannot be followed.")


def _again(shard: RemoteShard) -> RemoteShard:
    """The same tables over another connection, on which a server that is away is an error."""
    connection = shard.connection
    configs = dict(zip(shard.config.names, shard.config.configs, strict=True))
    made = RemoteShard(connection.address, configs, name=connection.name, keys=connection.keys)
    made.connection.patience = _PATIENCE
    return made
