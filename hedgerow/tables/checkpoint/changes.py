"""Keys that changed since the checkpoint before, taken for one save; they go back if it fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ...core.errors import CheckpointError, DtypeError
from ...core.shapes import Int64
from ..host import HostTable
from ..touched import Touched, TouchedKeys


class Changes:
    """One consumer of all changes of some tables. Single-owner."""

    def __init__(self, tables: Mapping[str, object], consumer: str) -> None:
        self._consumer = consumer
        self._sources: dict[str, TouchedKeys] = {}
        self._taken: dict[str, Touched] = {}
        for name, table in tables.items():
            if not isinstance(table, HostTable):
                raise DtypeError(
                    f"table {name!r} is a {type(table).__name__}; only a HostTable knows its "
                    f"changed keys. Pass them yourself, as changed=."
                )
            self._sources[name] = table.touched(consumer, all_changes=True)

    def take(self) -> None:
        """Takes the keys of all tables off their consumers."""
        for name, source in self._sources.items():
            self._taken[name] = source.take()

    def since(self, checksum: str, folder: Path) -> dict[str, Int64[Tensor, "n"]]:
        """What was taken, if that is all that changed since the checkpoint with this checksum."""
        for name, source in self._sources.items():
            if source.since != checksum:
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
        return {name: taken.ids for name, taken in self._taken.items()}

    def settle(self, checksum: str) -> None:
        """The keys were saved: what changes from now on belongs behind this checkpoint."""
        for source in self._sources.values():
            source.since = checksum

    def give_back(self) -> None:
        """The keys were not saved."""
        for name, taken in self._taken.items():
            self._sources[name].give_back(taken)
        self._taken.clear()
