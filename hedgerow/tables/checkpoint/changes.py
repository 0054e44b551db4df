"""Keys that changed since the checkpoint before, taken for one save; they go back if it fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ...core.errors import CheckpointError, DtypeError, InputError
from ...core.shapes import Int64
from ..own_rows import Consumer, OwnRows
from ..touched import Touched


class Changes:
    """One consumer of all changes of some tables. Single-owner."""

    def __init__(self, tables: Mapping[str, object], consumer: str) -> None:
        self._consumer = consumer
        self._sources: dict[str, Consumer] = {}
        self._opened: list[Consumer] = []
        self._taken: dict[str, Touched] = {}
        self._since: dict[str, str | None] = {}
        for name, table in tables.items():
            if not isinstance(table, OwnRows):
                raise DtypeError(
                    f"table {name!r} is a {type(table).__name__}; only a HostTable or a "
                    f"DeviceTable knows its changed keys. Pass them yourself, as changed=."
                )
            self._sources[name] = self._source(table)

    def _source(self, table: OwnRows) -> Consumer:
        known = table.consumer(self._consumer)
        if known is None:
            self._opened.append(table.touched(self._consumer, all_changes=True))
            return self._opened[-1]
        if not known.settings.all_changes:
            raise InputError(
                f"consumer {self._consumer!r} of table {table.config.name!r} does not see all "
                f"changes; open it with all_changes=True, or choose another name."
            )
        return known

    def take(self) -> None:
        """Takes the keys of all tables off their consumers; no other save may do so meanwhile."""
        for name, source in self._sources.items():
            if not source.delivering.acquire(blocking=False):
                raise CheckpointError(
                    f"another save takes the changed keys of table {name!r} for consumer "
                    f"{self._consumer!r}; wait for it, or give this one a consumer of its own."
                )
            self._since[name] = source.since
            self._taken[name] = source.take()

    def since(self, checksum: str, folder: Path) -> dict[str, Int64[Tensor, "n"]]:
        """What was taken, if that is all that changed since the checkpoint with this checksum."""
        for name in self._sources:
            if self._since[name] != checksum:
                raise CheckpointError(
                    f"consumer {self._consumer!r} has not collected the changed keys of table "
                    f"{name!r} since the last save to {folder}; save a new base with "
                    f"save_tables(..., consumer={self._consumer!r}) first."
                )
            if self._taken[name].whole_table:
                raise CheckpointError(
                    f"more keys of table {name!r} changed than consumer {self._consumer!r} "
                    f"keeps, or all rows were replaced; save a new base with "
                    f"save_tables(..., consumer={self._consumer!r})."
                )
        return {name: taken.ids.cpu() for name, taken in self._taken.items()}

    def settle(self, checksum: str) -> None:
        """The keys were saved: what changes from now on belongs behind this checkpoint."""
        for source in self._sources.values():
            source.since = checksum
        self._opened.clear()
        self._release()

    def give_back(self) -> None:
        """The keys were not saved. A consumer that this save opened is closed."""
        for name, taken in self._taken.items():
            self._sources[name].give_back(taken)
        self._release()
        while self._opened:
            self._opened.pop().close()

    def _release(self) -> None:
        for name in self._taken:
            self._sources[name].delivering.release()
        self._taken.clear()
