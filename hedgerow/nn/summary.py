"""What a model holds, in words and in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..core.errors import DtypeError, InputError
from ..tables.own_rows import OwnRows
from ..tables.stats import TableStats, table_stats
from .collection import collections_of, ranks_of, servers_of

if TYPE_CHECKING:
    from ..tables.host import HostTable

_HELD = ("index_bytes", "row_bytes", "slack_bytes")  # of rows, without outputs kept for reuse


def stats(thing: OwnRows | nn.Module) -> TableStats | dict[str, TableStats]:
    """Rows, bytes, load and counts of a table, or of every table of a model by name.

    Of a distributed model they are those of this rank's shard; of one on servers, of all servers.

    >>> import torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("user", (hr.Segment(4, hr.Zeros(), hr.Sgd()),)))
    >>> _ = table.assign(torch.tensor([1, 2, 3]), torch.ones(3, 4))
    >>> seen = hr.stats(table)
    >>> seen["name"], seen["rows"], seen["inserted"], seen["row_bytes"]
    ('user', 3, 3, 72)
    >>> hr.stats(hr.EmbeddingBags([hr.Table("item", 2)]))["item"]["rows"]
    0
    """
    if isinstance(thing, nn.Module):
        every = [one.table_stats() for one in collections_of(thing)]
        _check_names([name for told in every for name in told])
        return {name: seen for told in every for name, seen in told.items()}
    if isinstance(thing, OwnRows):
        return table_stats(thing)
    raise DtypeError(
        f"stats of a {type(thing).__name__}; pass a HostTable, a DeviceTable or a model."
    )


def summary(model: nn.Module) -> str:
    """One line a table and one for the dense rest.

    Rows and bytes are those of this process; of a model on servers, those of all servers.

    >>> import hedgerow as hr
    >>> print(hr.summary(hr.EmbeddingBags([hr.Table("item", 2)])))
    table  dim  rows  bytes  optimizer  features
    item     2     0      0  Adagrad    item
    0 rows, 0 dense parameters
    """
    lines = [("table", "dim", "rows", "bytes", "optimizer", "features")]
    rows = 0
    for collection in collections_of(model):
        told = collection.table_stats()
        for declared in collection.tables:
            seen = told[declared.name]
            size, held = int(seen["rows"]), sum(int(seen[part]) for part in _HELD)
            config = declared.resolve(None)
            rules = dict.fromkeys(type(s.optimizer).__name__ for s in config.segments)
            rows += size
            lines.append(
                (
                    declared.name,
                    str(declared.dim),
                    str(size),
                    str(held),
                    ", ".join(rules),
                    ", ".join(declared.features),
                )
            )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    left = (True, False, False, False, True, True)
    shown = [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    ]
    dense = sum(p.numel() for p in model.parameters())
    ranks, servers = ranks_of(model), servers_of(model)
    whose = "" if ranks.count == 1 else f" on rank {ranks.rank} of {ranks.count}"
    if servers is not None:
        whose = f" on {servers.count} servers"
    return "\n".join([*shown, f"{rows} rows{whose}, {dense} dense parameters"])


def tables_of(model: nn.Module) -> dict[str, HostTable]:
    """Every table of a model by name; two modules with tables of one name are refused."""
    every = collections_of(model)
    _check_names([name for one in every for name in one.store.names])
    return {name: one.table(name) for one in every for name in one.store.names}


def _check_names(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two tables of the model are named {name!r}; names must differ in a model."
            )
