"""Change feeds: which rows of a table changed since a consumer last asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import DtypeError, InputError, StateError
from ..core.shapes import Bool, Float32, Int64
from ..routing.router import Router
from .store import Lookup

if TYPE_CHECKING:
    from .host import HostTable


Overflow = Literal["whole_table", "forget"]

DEFAULT_CAPACITY = 2_097_152  # keys: 64 MiB of 32 bytes in Monolith


@dataclass(frozen=True, slots=True, eq=False)
class TouchedBatch:
    """What a take gave: distinct ids in no particular order, or word that any may have changed.

    With `whole_table` there are no ids: send every row. `forgotten` counts keys that a consumer
    with `overflow="forget"` dropped since the take before.

    >>> Touched(torch.tensor([7]), whole_table=False, forgotten=0).ids.tolist()
    [7]
    """

    ids: Int64[Tensor, "n"]
    whole_table: bool
    forgotten: int

    def __len__(self) -> int:
        return len(self.ids)


class TouchedSource(Protocol):
    """Where changed keys come from: what a publisher takes, and gives back if it could not send."""

    def take(self) -> TouchedBatch:
        """The keys changed since the last take."""
        ...

    def give_back(self, taken: TouchedBatch | Int64[Tensor, "n"]) -> None:
        """Puts keys back, for the next take."""
        ...


@dataclass(frozen=True, slots=True)
class TouchedSettings:
    """How a consumer collects: see `HostTable.touched`.

    >>> TouchedSettings().capacity
    2097152
    """

    capacity: int = DEFAULT_CAPACITY
    all_changes: bool = False
    overflow: Overflow = "whole_table"

    def __post_init__(self) -> None:
        checks.count("capacity", self.capacity, least=1)
        checks.flag("all_changes", self.all_changes)
        if self.overflow not in ("whole_table", "forget"):
            raise InputError(
                f"overflow is {self.overflow!r}; it must be 'whole_table' or 'forget'."
            )
        if self.all_changes and self.overflow == "forget":
            raise InputError(
                "all_changes=True with overflow='forget'; Monolith's rule loses keys, and "
                "whoever needs all changes needs them whole: use overflow='whole_table'."
            )


class TouchedKeys:
    """One consumer's touched keys of one table, from `HostTable.touched`; safe from many threads.

    A key touched during a take is in this take or in the next. Collecting costs memory up to
    `capacity` keys (about 16 bytes each) and goes on until `close`.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> table = HostTable(TableConfig("user", (Segment(1, Zeros(), Sgd(lr=0.1)),)))
    >>> changed = table.touched("serving")
    >>> _ = table.apply_gradients(torch.tensor([7, 7, -1]), torch.ones(3, 1))
    >>> sorted(changed.take().ids.tolist())
    [-1, 7]
    >>> len(changed.take())
    0
    """

    def __init__(
        self,
        table: native.Table,
        name: str,
        settings: TouchedSettings,
        forget_name: Callable[[str], object],
    ) -> None:
        self.name = name
        self.settings = settings
        self.since: str | None = None  # the consumer's own mark of what it delivered last
        self.delivering = threading.Lock()  # held by one who has taken keys and not yet delivered
        self._table = table
        self._forget_name = forget_name
        self._closed = False
        self._consumer = table.open_touched(
            settings.capacity, settings.all_changes, settings.overflow == "forget"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.size()} keys"
        return f"TouchedKeys({self.name!r}, {state})"

    def take(self) -> TouchedBatch:
        """The keys touched since the last take; it starts collecting anew."""
        self._check_open()
        parts: list[Tensor] = []
        shard, done, whole, forgotten, least = 0, False, False, 0, 1
        try:
            while not done:
                room = max(least, self.size())
                ids = torch.empty(room, dtype=torch.int64, device="cpu")
                got, shard, done, least, some_lost, dropped = self._table.take_touched(
                    self._consumer, shard, room, ids.data_ptr()
                )
                whole, forgotten = whole or some_lost, forgotten + dropped
                if got:
                    parts.append(ids[:got])
            if len(parts) == 1:  # as nearly always: nothing was touched meanwhile
                taken = parts[0]
            else:
                taken = (
                    torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device="cpu")
                )
        except BaseException:
            if whole:
                self._table.touch_all(self._consumer)
            for part in parts:
                self._table.touch(self._consumer, part.data_ptr(), len(part))
            raise
        return TouchedBatch(taken[:0] if whole else taken, whole, forgotten)

    def give_back(self, taken: TouchedBatch | Int64[Tensor, "n"]) -> None:
        """Puts keys back for the next take: what was taken could not be delivered."""
        self._check_open()
        ids = taken.ids if isinstance(taken, TouchedBatch) else taken
        checks.tensor("ids", ids, torch.int64, (None,))
        if isinstance(taken, TouchedBatch) and taken.whole_table:
            if self.settings.overflow == "forget":
                raise InputError(
                    "a whole table given back to a consumer with overflow='forget', which never "
                    "says so; give its ids back."
                )
            self._table.touch_all(self._consumer)
        self._table.touch(self._consumer, ids.data_ptr(), len(ids))

    def size(self) -> int:
        """Keys that wait to be taken; those of a full consumer do not count."""
        self._check_open()
        return self._table.touched_use(self._consumer)[0]

    def overflows(self) -> int:
        """How often there were more keys than the capacity, since the consumer was opened."""
        self._check_open()
        return self._table.touched_use(self._consumer)[1]

    def close(self) -> None:
        """Stops collecting and frees the name; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._forget_name(self.name)
        self._table.close_touched(self._consumer)

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(
                f"the consumer {self.name!r} of touched keys is closed; open it again with "
                f"table.touched({self.name!r}): it then knows of changes from there on."
            )


class ChangeSource(Protocol):
    """One table whose changes can be followed, in this process or on a server."""

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> TouchedSource:
        """The keys that changed since `consumer` last took them."""
        ...

    def lookup(self, keys: Int64[Tensor, "n"]) -> Lookup:
        """Rows as they are now; zeros where there is none."""
        ...


@runtime_checkable
class SyncClient(Protocol):
    """Who consumes touched keys: what a table takes as `sync_client`."""

    def attach(self, name: str, table: ChangeSource) -> None:
        """Follows a table, which receivers know by `name`."""
        ...

    def attach_multi(self, name: str, tables: Mapping[str, ChangeSource]) -> None:
        """Follows tables that receivers know together by `name`, in this order."""
        ...


def checked_client(client: object) -> SyncClient:
    """The client itself, or an error that says what it lacks.

    >>> checked_client(object())
    Traceback (most recent call last):
    ...
    hedgerow.core.errors.DtypeError: sync_client is a object, which cannot follow tables; ...
    """
    if not isinstance(client, SyncClient):
        raise DtypeError(
            f"sync_client is a {type(client).__name__}, which cannot follow tables; pass one of "
            f"create_parameter_sync_clients, or an object with `attach` and `attach_multi`."
        )
    return client


class RemoteChangeSource(ChangeSource, Protocol):
    """A table on a server whose rows can be sent elsewhere: changed ones, and all of them."""

    @property
    def dim(self) -> int:
        """Columns."""
        ...

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> RemoteTouchedSource:
        """The keys that changed since `consumer` last took them."""
        ...

    def read(
        self, ids: Int64[Tensor, "n"], *, step: int | None = None
    ) -> tuple[Float32[Tensor, "n dim"], Bool[Tensor, "n"]]:
        """Rows as they are now, and which of them are there."""
        ...

    def all_ids(self) -> Iterator[Int64[Tensor, "n"]]:
        """The ids of all rows, in slices."""
        ...


class RemoteTouchedSource(TouchedSource, Protocol):
    """Touched keys that are collected elsewhere, where a restart may forget them."""

    @property
    def life(self) -> int:
        """Another number after keys may have been lost: every row may have changed."""
        ...

    @property
    def began_empty(self) -> bool:
        """Whether the rows were lost meanwhile: a server was restarted, and had none then."""
        ...

    def close(self) -> None:
        """Collects no more."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RowShard:
    """One shard of a model's rows, to be followed: its tables by name, and who owns which key.

    Tables are those of this process, or of the server that is this shard.
    """

    shard: int
    shards: int
    tables: Mapping[str, HostTable | RemoteChangeSource]
    routers: Mapping[str, Router]


def rows_after(
    tables: Sequence[HostTable],
    ids: Sequence[Int64[Tensor, "n"]],
    fronts: Sequence[tuple[bytes, bytes]],
    step: int,
) -> bytes | None:
    """Ids and rows of tables, as a model sees them in eval, behind `fronts`; None if one is absent.

    In one piece of memory, in which every row is written once: what a push sends.
    """
    flat = [one.contiguous() for one in ids]
    return native.rows_after(
        [table.core.reader(step) for table in tables],
        [one.data_ptr() for one in flat],
        [len(one) for one in flat],
        step,
        [first for first, _ in fronts],
        [second for _, second in fronts],
    )


def rows_present(
    table: HostTable, ids: Int64[Tensor, "n"], step: int | None = None
) -> tuple[Float32[Tensor, "n dim"], Bool[Tensor, "n"]]:
    """Rows as a model sees them in eval, and which of them are there.

    An absent row reads as zeros, so that only rows that begin with one are looked for a second
    time. One that comes or goes between the two is touched, so whoever follows the table reads it
    again.
    """
    room = torch.empty(len(ids), table.layout.dim, dtype=torch.float32)
    table.lookup(ids, step=step, out=room)
    present = room[:, 0] != 0
    maybe = (~present).nonzero().view(-1)
    if len(maybe):
        present[maybe] = table.contains(ids[maybe])
    return room, present
