"""Between tables and those who are told of changed rows: what each must offer the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from .. import native
from ..core.errors import DtypeError
from ..core.shapes import Bool, Float32, Int64
from ..routing.router import Router
from .store import Lookup
from .touched import DEFAULT_CAPACITY, Overflow, TouchedSource

if TYPE_CHECKING:
    from .host import HostTable


class Followed(Protocol):
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

    def attach(self, name: str, table: Followed) -> None:
        """Follows a table, which receivers know by `name`."""
        ...

    def attach_multi(self, name: str, tables: Mapping[str, Followed]) -> None:
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


class FollowedRows(Followed, Protocol):
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
    ) -> FollowedTouched:
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


class FollowedTouched(TouchedSource, Protocol):
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
    tables: Mapping[str, HostTable | FollowedRows]
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
