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

_READ_FLOATS = 2**20  # most values in one answer
_TAKE_IDS = 2**17  # most ids in one answer
_SPARE_BYTES = 1024  # for the alignment of the buffers of an answer
_CLOSING = WaitPolicy(2.0, 0.5)


class _LargeAnswer(KeptAnswer):
    """An answer of one part with at most `room_bytes`."""

    def __init__(self, room_bytes: int) -> None:
        super().__init__()
        self.room_bytes = room_bytes + _SPARE_BYTES


class RemoteTable:
    """Table `k` of a shard, read by consumers of its changes over their own connection.

    A server reports a rollback to each connection once. On a shared connection a publisher could
    get the report that the trainer needs.
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
        """Returns the keys that changed since `consumer` last took them, collected from now on."""
        settings = TouchedSettings(capacity, all_changes, overflow)
        return RemoteTouched(self._shard, self.k, consumer, settings)

    def lookup(self, keys: Int64[Tensor, "n"]) -> Lookup:
        """Returns the current rows, with zeros for absent rows."""
        rows, _ = self.read(keys)
        return Lookup(TableKeys.of_one(keys), rows.view(-1), (self.dim,))

    def read(
        self, ids: Int64[Tensor, "n"], *, step: int | None = None
    ) -> tuple[Float32[Tensor, "n dim"], Bool[Tensor, "n"]]:
        """Returns the current rows, and whether each key has one."""
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
            raise FrameError(f"rows in {len(kept.frames)} buffers; 2 are expected.")
        marks = tensor_over(kept.frames[0], torch.bool, n, "marks")
        rows = tensor_over(kept.frames[1], torch.float32, n * self.dim, "rows")
        return rows.view(n, self.dim), marks

    def all_ids(self) -> Iterator[Int64[Tensor, "n"]]:
        """Yields the ids of all rows, in slices.

        A row that exists throughout is yielded exactly once.

        Raises `StateError` if the server is restarted in between, because its rows may have moved.
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
                    f"{self._shard.connection.where} was restarted while its ids were read; start "
                    f"again."
                )
            cursor, done, n = kept.answer.offset, bool(kept.number(0)), kept.number(1)
            if n:
                yield tensor_over(kept.frames[0], torch.int64, n, "ids")


class RemoteTouched:
    """The touched keys of one consumer of a table on a server. Owns a lock.

    The next take repeats a take that was not answered, and returns the same keys. If the server has
    lost the consumer, for example in a restart, the next take opens it again and reports that the
    whole table may have changed; `life` then changes. With `overflow="forget"` it reports nothing,
    as in Monolith.
    """

    def __init__(
        self, shard: RemoteShard, k: int, consumer: str, settings: TouchedSettings
    ) -> None:
        self.name, self.settings = consumer, settings
        self._shard, self._k = shard, k
        self._lock = threading.Lock()
        self._number = self._life = self._start = 0
        self._began_empty = False
        self._taken: list[Tensor] = []  # the received parts of an unfinished take
        self._whole, self._forgotten = False, 0
        self._open()

    @property
    def life(self) -> int:
        """A number that changes when keys may have been lost."""
        return self._life

    @property
    def began_empty(self) -> bool:
        """Whether the server was restarted since the first connection, and then had no rows."""
        return self._began_empty

    def take(self) -> TouchedBatch:
        """Returns the keys touched since the last take that arrived."""
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
        """Takes the next part and returns whether more follow. Received parts survive an error."""
        order = {"number": self._number + 1, "most": _TAKE_IDS}
        kept = self._ask(Verb.TOUCHED_TAKE, order)
        if len(kept.frames) != 1 or kept.answer is None:
            raise FrameError(f"touched keys in {len(kept.frames)} buffers; 1 is expected.")
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
        """Stops collecting keys; a second call has no effect.

        An unreachable server is given up after a short wait. It drops idle consumers itself.
        """
        with self._lock:
            self._ask(Verb.TOUCHED_CLOSE, {}, patience=_CLOSING)

    def _open(self) -> None:
        # The client draws the number, so that a repeated request opens one consumer.
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


# A consumer polls its servers one after another, so an unreachable server must not block it for
# long. A request without an answer is repeated later.
_PATIENCE = WaitPolicy(5.0, 1.0)


def followed_tables(shard: Shard) -> dict[str, HostTable | RemoteTable]:
    """Returns every table of a shard by name. Tables on a server get a connection of their own.

    The connection closes when the last of its tables is deleted.

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
    """Returns the same tables over a new connection with a short deadline."""
    connection = shard.connection
    configs = dict(zip(shard.config.names, shard.config.configs, strict=True))
    made = RemoteShard(connection.address, configs, name=connection.name, keys=connection.keys)
    made.connection.patience = _PATIENCE
    return made
