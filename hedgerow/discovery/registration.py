"""One replica of the first generation, as it registers itself."""

from __future__ import annotations

from dataclasses import replace

from ..core.errors import InputError, StateError
from .names import check_server_type
from .paths import Service
from .payloads import ReplicaMeta
from .session import Session

_ENTRY_DIGITS = 11  # as long as the prefix "0" and the ten digits of a node that ZooKeeper numbers


class ReplicaRegistration:
    """The node of one replica; it stands while the session does, and comes back after its loss.

    The kind, the server's number and the replica's number are those of `meta`. An entry without a
    number gets the next free one from ZooKeeper.
    """

    def __init__(
        self,
        session: Session,
        service: Service,
        meta: ReplicaMeta,
        idc: str | None = None,
        cluster: str | None = None,
    ) -> None:
        self._session, self._meta = session, meta
        server_type = check_server_type(meta.server_type)
        if meta.task < 0:
            raise InputError(f"task is {meta.task}; a replica belongs to a server of 0 or above.")
        self._above = service.task(server_type, meta.task, idc, cluster)
        self.path: str | None = None

    def register(self) -> str:
        """Makes the node; its path."""
        entry, number = self._meta.server_type == "entry", self._meta.replica
        if entry and number < 0:
            path = self._session.own.put_numbered(f"{self._above}/0", self._meta.to_bytes())
            self._meta = replace(self._meta, replica=int(path.rpartition("/")[2]))
            self._session.own.put(path, self._meta.to_bytes())
        else:
            name = f"{number:0{_ENTRY_DIGITS}d}" if entry else str(number)
            path = f"{self._above}/{name}"
            self._session.own.put(path, self._meta.to_bytes())
        self.path = path
        return path

    def update(self, *, stat: int | None = None, address: str | None = None) -> None:
        """Tells a new state or a new address."""
        if self.path is None:
            raise StateError("this replica is not registered; call register() first.")
        self._meta = replace(
            self._meta,
            stat=self._meta.stat if stat is None else stat,
            address=self._meta.address if address is None else address,
        )
        self._session.own.put(self.path, self._meta.to_bytes())

    def withdraw(self) -> None:
        """Removes the node; the replica may go on serving who knows it already."""
        if self.path is not None:
            self._session.own.remove(self.path)
            self.path = None
