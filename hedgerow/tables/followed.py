"""Between tables and those who are told of changed rows: what each must offer the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from ..core.errors import DtypeError
from ..core.shapes import Int64
from .store import Lookup
from .touched import DEFAULT_CAPACITY, Overflow, TouchedSource


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
