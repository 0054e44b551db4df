"""Change feeds: which rows of a table changed since a consumer last took them."""

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

DEFAULT_CAPACITY = 2_097_152  # keys; Monolith has 64 MiB of 32 bytes each


@dataclass(frozen=True, slots=True, eq=False)
class TouchedBatch:
    """The result of a take: distinct ids in arbitrary order, or the whole table.

    With `whole_table`, any row may have changed and `ids` is empty: send every row. `forgotten` is
    the number of keys that a consumer with `overflow="forget"` dropped since the take before.

    >>> TouchedBatch(torch.tensor([7]), whole_table=False, forgotten=0).ids.tolist()
    [7]
    """

    ids: Int64[Tensor, "n"]
    whole_table: bool
    forgotten: int

    def __len__(self) -> int:
        return len(self.ids)


class TouchedSource(Protocol):
    """A source of changed keys.

    A publisher takes keys, and gives them back if it could not send them.
    """

    def take(self) -> TouchedBatch:
        """Returns and forgets the keys changed since the last take."""
        ...

    def give_back(self, taken: TouchedBatch | Int64[Tensor, "n"]) -> None:
        """Gives keys back; the next take returns them."""
        ...


@dataclass(frozen=True, slots=True)
class TouchedSettings:
    """How a consumer collects keys; see `HostTable.touched`.

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
                "all_changes=True with overflow='forget', which loses keys; use "
                "overflow='whole_table'."
            )


class TouchedKeys:
    """The touched keys of one consumer of one table, from `HostTable.touched`. Thread-safe.

    A key that is touched during a take is in this take or in the next one. Collecting takes about
    16 bytes per key, for up to `capacity` keys, and goes on until `close`.

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
        self.since: str | None = None  # a value of the consumer: what it delivered last
        self.delivering = threading.Lock()  # held from taking keys until they are delivered
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
        """Returns and forgets the keys touched since the last take."""
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
            if len(parts) == 1:  # nearly always: nothing was touched meanwhile
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
        """Gives back keys that could not be delivered; the next take returns them."""
        self._check_open()
        ids = taken.ids if isinstance(taken, TouchedBatch) else taken
        checks.tensor("ids", ids, torch.int64, (None,))
        if isinstance(taken, TouchedBatch) and taken.whole_table:
            if self.settings.overflow == "forget":
                raise InputError(
                    "a whole table given back to a consumer with overflow='forget', which cannot "
                    "record that; give ids back instead."
                )
            self._table.touch_all(self._consumer)
        self._table.touch(self._consumer, ids.data_ptr(), len(ids))

    def size(self) -> int:
        """Returns the number of keys to be taken; 0 after an overflow."""
        self._check_open()
        return self._table.touched_use(self._consumer)[0]

    def overflows(self) -> int:
        """Returns how often more keys than the capacity were touched since the opening."""
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
                f"table.touched({self.name!r}): it then collects changes from that point on."
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
        """Returns the change feed of `consumer`: the keys changed since it last took them."""
        ...

    def lookup(self, keys: Int64[Tensor, "n"]) -> Lookup:
        """Returns the present rows; an absent key gives zeros."""
        ...


@runtime_checkable
class SyncClient(Protocol):
    """A consumer of touched keys, which a table takes as `sync_client`."""

    def attach(self, name: str, table: ChangeSource) -> None:
        """Follows a table; receivers know it by `name`."""
        ...

    def attach_multi(self, name: str, tables: Mapping[str, ChangeSource]) -> None:
        """Follows several tables; receivers know all of them by one `name`, in this order."""
        ...


def checked_client(client: object) -> SyncClient:
    """Returns the client, or raises an error that says what it lacks.

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
    """A table on a server whose rows can be sent elsewhere: the changed ones, or all."""

    @property
    def dim(self) -> int:
        """The number of columns."""
        ...

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> RemoteTouchedSource:
        """Returns the change feed of `consumer`: the keys changed since it last took them."""
        ...

    def read(
        self, ids: Int64[Tensor, "n"], *, step: int | None = None
    ) -> tuple[Float32[Tensor, "n dim"], Bool[Tensor, "n"]]:
        """Returns the present rows, and which keys have one."""
        ...

    def all_ids(self) -> Iterator[Int64[Tensor, "n"]]:
        """Yields the ids of all rows, in slices."""
        ...


class RemoteTouchedSource(TouchedSource, Protocol):
    """Touched keys that another process collects; a restart of that process may lose them."""

    @property
    def life(self) -> int:
        """A number that changes when keys may have been lost; every row may then have changed."""
        ...

    @property
    def began_empty(self) -> bool:
        """Whether the rows were lost meanwhile: the server was restarted and had no rows then."""
        ...

    def close(self) -> None:
        """Stops collecting."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RowShard:
    """One shard of a model's rows whose changes are followed: tables and routers by name.

    The tables are those of this process, or of the server that is this shard.
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
    """Returns ids and rows of tables, as a model sees them in eval; None if an id has no row.

    Each table's ids and rows follow the two byte strings of its entry in `fronts`. The result is
    one `bytes` object into which every row is written once, ready to be pushed.
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
    """Returns rows as a model sees them in eval, and which keys have a row.

    An absent key reads as zeros, so only rows whose first value is 0 are searched for a second
    time. A row that is inserted or removed between the two searches is touched, so a consumer of
    the change feed reads it again.
    """
    room = torch.empty(len(ids), table.layout.dim, dtype=torch.float32)
    table.lookup(ids, step=step, out=room)
    present = room[:, 0] != 0
    maybe = (~present).nonzero().view(-1)
    if len(maybe):
        present[maybe] = table.contains(ids[maybe])
    return room, present
