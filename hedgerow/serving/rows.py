"""The rows of a model as read-only tables: written to bundles, and read by servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.errors import CheckpointError, FileDamagedError, InputError, NotSupportedError
from ..nn.embedding_modules import EmbeddingModule, collections_of
from ..nn.model_tables import routers_of
from ..routing.router import Router
from ..tables.checkpoint.load import load_tables
from ..tables.checkpoint.save import save_tables
from ..tables.compressors import Compressor, FixedR8, Fp16, Fp32
from ..tables.config import Segment, TableConfig
from ..tables.host import HostTable
from ..tables.multi.host_tables import HostTables
from ..tables.store import Entries, all_found

FORMS = ("fp32", "fp16", "int8")
LARGEST_HALF = 65504.0
_LARGEST_FLOAT = 3.3e38  # still a float32 after multiplication by 128 / 127
_SOME_ROWS = 64
_LEAST_RANGE = 1e-30  # the smallest range that FixedR8 accepts


@dataclass(frozen=True, slots=True, eq=False)
class ServedTable:
    """A table of a model, and the config in which it is served."""

    live: HostTable
    config: TableConfig
    router: Router  # with one shard
    step: int

    def rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields ids and rows in slices, as the model sees them in eval."""
        for entries in self.live.scan():
            yield entries.ids, self.shown(entries.ids)

    def shown(self, ids: Tensor) -> Tensor:
        """Returns rows as the model sees them in eval."""
        room = torch.empty(len(ids), self.config.dim, dtype=torch.float32)
        return self.live.lookup(ids, step=self.step, out=room).rows_of(0)


class OneOwner:
    """The rows of a table that one owner holds, in the form for save_tables()."""

    def __init__(self, table: ServedTable, router: Router, owner: int) -> None:
        self.config, self._table = table.config, table
        self._router, self._owner = router, owner

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows in slices."""
        for entries in self._table.live.scan(rows):
            ids = entries.ids[self._router.owners(entries.ids) == self._owner]
            if len(ids):
                states: list[dict[str, Tensor]] = [{} for _ in self.config.segments]
                shown, ts = self._table.shown(ids), torch.zeros_like(ids)
                yield Entries(ids, all_found(len(ids)), shown, states, ts)

    def size(self) -> int:
        """Returns an upper bound of the number of rows: that of all owners."""
        return self._table.live.size()

    def max_ts(self) -> int:
        """Returns 0: serving rows have no time stamps."""
        return 0


def served_tables(model: nn.Module, form: str) -> dict[str, ServedTable]:
    """Returns the tables of a model in the form in which they are served, sorted by name."""
    checks.choice("export", "rows", form, FORMS)
    routers = routers_of(model)
    found: dict[str, ServedTable] = {}
    for one in collections_of(model):
        _refuse_others(one)
        for table in one.tables:
            if table.name in found:
                raise InputError(
                    f"two tables of the model are named {table.name!r}; a bundle needs one of each."
                )
            live = one.table(table.name)
            plain = ServedTable(live, _config(live, {}), routers[table.name], one.updates.step)
            limits = _limits(plain) if form != "fp32" else [0.0] * len(plain.config.segments)
            chosen = {i: _compressor(table.name, form, most) for i, most in enumerate(limits)}
            config = _config(live, chosen)
            found[table.name] = ServedTable(live, config, plain.router, plain.step)
    return dict(sorted(found.items(), key=lambda item: item[0].encode()))


def known_ids(model: nn.Module, tables: Mapping[str, ServedTable]) -> dict[str, Tensor]:
    """Returns some ids of each feature that have rows."""
    found: dict[str, Tensor] = {}
    for one in collections_of(model):
        for table in one.tables:
            some = next((e.ids for e in tables[table.name].live.scan(_SOME_ROWS)), None)
            if some is not None:
                found |= dict.fromkeys(table.features, some)
    return found


def write_rows(
    tables: Mapping[str, ServedTable], folder: Path, owner: int = 0, owners: int = 1
) -> None:
    """Saves the rows of one owner."""
    routers = {name: over(table.router, owners) for name, table in tables.items()}
    parts = [OneOwner(table, routers[name], owner) for name, table in tables.items()]
    save_tables(parts, folder)


def read_rows(folder: Path, configs: Mapping[str, TableConfig]) -> HostTables:
    """Returns the tables with their rows; every byte is checked."""
    store = HostTables(configs)
    try:
        # A bundle has no increments: anyone who can write to the folder could add unlisted ones.
        loaded = load_tables(folder, store.tables, increments=0)
    except CheckpointError as error:
        raise FileDamagedError(f"the rows of the bundle: {error}") from error
    missing = [name for name in configs if name not in loaded.rows]
    if missing:
        raise FileDamagedError(f"{folder} lacks the rows of {', '.join(missing)}.")
    return store


def over(router: Router, owners: int) -> Router:
    """Returns a router with the same rule over `owners` shards."""
    return Router(router.dist_type, owners, rows=router.rows)


def _refuse_others(one: EmbeddingModule) -> None:
    if one.servers is not None or one.ranks.count > 1:
        raise NotSupportedError(
            "export of a model whose rows are on other processes; hr.save it, hr.load it into the "
            "same model in one process, and export that."
        )


def _config(live: HostTable, compressors: Mapping[int, Compressor]) -> TableConfig:
    segments = tuple(
        Segment(segment.dim, compressor=compressors.get(i, Fp32()))
        for i, segment in enumerate(live.config.segments)
    )
    return TableConfig(live.config.name, segments, serving=True)


def _limits(table: ServedTable) -> list[float]:
    """Returns the largest absolute value of each segment; NaN if the segment has a NaN."""
    dims = [segment.dim for segment in table.config.segments]
    most = [0.0] * len(dims)
    for _, rows in table.rows():
        for i, part in enumerate(rows.split(dims, dim=1)):
            most[i] = float(part.abs().max().maximum(torch.tensor(most[i])))  # propagates NaN
    return most


def _compressor(name: str, form: str, most: float) -> Compressor:
    largest = {"fp16": LARGEST_HALF, "int8": _LARGEST_FLOAT, "fp32": math.inf}[form]
    if not most <= largest:  # also true for NaN, which int8 would clip
        raise InputError(
            f"table {name!r} holds {most:g}, more than {form} can; export with rows='fp32'."
        )
    if form == "int8":  # the largest value gets code 127 of 128, so that no value is clipped
        return FixedR8(max(_LEAST_RANGE, most * 128 / 127) if most else 1.0)
    return Fp16() if form == "fp16" else Fp32()


def plain_routing(tables: Mapping[str, ServedTable]) -> dict[str, Any]:
    """Returns the routing rule of each table, for JSON."""
    return {
        name: {"dist_type": table.router.dist_type, "rows": table.router.rows}
        for name, table in tables.items()
    }
