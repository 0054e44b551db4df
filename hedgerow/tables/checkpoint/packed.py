"""All rows of some tables as one tensor of bytes, for a `state_dict`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from ...core.errors import CheckpointError, InputError, StateError
from ...core.shapes import Int8
from ...core.units import format_bytes
from ..eviction import EvictionOrderState
from ..local_table import LocalTable
from .blobs import ALONE, filters_to_restore, orders_to_restore
from .load import RowConverter, replace_rows
from .manifest import TableSchema, row_bytes
from .manifest_reader import plain_json, read_schema
from .save import hold_tables, table_source
from .shard_file import RowsWriter, read_rows

_MAGIC = b"hedgerow rows 1\n"
_SHA_BYTES, _LENGTH_BYTES = 32, 8
_AFTER = len(_MAGIC) + _SHA_BYTES  # the checksum covers all bytes from here on
_START = _AFTER + _LENGTH_BYTES


class _Bytes:
    """Growing memory with the file methods that Arrow writes to. Single-owner."""

    closed = False

    def __init__(self, room_bytes: int) -> None:
        self._bytes = np.empty(_START + room_bytes, np.uint8)
        self.size = _START

    def write(self, data: Any) -> int:
        """Appends bytes."""
        view = np.frombuffer(data, np.uint8)
        end = self.size + len(view)
        if end > len(self._bytes):
            self._bytes.resize(max(end, len(self._bytes) * 5 // 4), refcheck=False)
        self._bytes[self.size : end] = view
        self.size = end
        return len(view)

    def flush(self) -> None:
        """Does nothing: no data is buffered."""

    def sealed(self, head: bytes) -> Int8[Tensor, "bytes"]:
        """Appends the head and returns all bytes behind a checksum; writing then has ended."""
        self.write(head)
        self._bytes.resize(self.size, refcheck=False)  # no view of it is left
        length = len(head).to_bytes(_LENGTH_BYTES, "little")
        self._bytes[_AFTER:_START] = np.frombuffer(length, np.uint8)
        start = _MAGIC + hashlib.sha256(self._bytes[_AFTER:].data).digest()
        self._bytes[:_AFTER] = np.frombuffer(start, np.uint8)
        return torch.from_numpy(self._bytes)


def pack_rows(
    tables: Mapping[str, LocalTable], about: Mapping[str, Any], *, most_bytes: int
) -> Int8[Tensor, "bytes"]:
    """Returns the rows of all tables and the counts of their filters, at one instant.

    Raises before it reads a row if the result would need more than `most_bytes`.

    >>> import hedgerow as hr
    >>> config = hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),))
    >>> table, fresh = hr.HostTable(config), hr.HostTable(config)
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> packed = pack_rows({"item": table}, {}, most_bytes=2**20)
    >>> PackedRows.of(packed).restore({"item": fresh})
    >>> fresh.size()
    2
    """
    payload = _Bytes(_checked_bytes(tables, most_bytes))
    entries: list[dict[str, Any]] = []
    filters: list[dict[str, Any]] = []
    with ExitStack() as held:
        frozen = hold_tables(tables, held, lambda _: None)
        for name, table in tables.items():
            source = table_source(table.config, frozen.tables[name], None)
            start, rows = payload.size, 0
            writer = RowsWriter(payload, source.schema.columns())
            for part in source.rows():
                writer.write(part)
                rows += len(part)
            writer.close()
            schema = source.schema.to_dict()
            entry = {"name": name, "also": list(source.also), "schema": schema, "rows": rows}
            entries.append({**entry, "bytes": payload.size - start})
        for name, data in frozen.blobs.items():
            payload.write(data)
            filters.append({"name": name, "bytes": len(data)})
    head = json.dumps({"about": dict(about), "tables": entries, "filters": filters}).encode()
    return payload.sealed(head)


def _checked_bytes(tables: Mapping[str, LocalTable], most_bytes: int) -> int:
    sizes = {
        name: table.size() * row_bytes(TableSchema.of(table.config).columns())
        for name, table in tables.items()
    }
    counted = [f for f in {id(t.filter): t.filter for t in tables.values()}.values() if f]
    needed = sum(sizes.values()) + sum(
        cell_bytes * cells for one in counted for cell_bytes, cells, _ in one.meta().arrays
    )
    if needed > most_bytes:
        rows = sum(table.size() for table in tables.values())
        raise StateError(
            f"the {rows:,} rows of tables {', '.join(tables)} take {format_bytes(needed)}; a "
            f"state_dict or a copy carries at most {format_bytes(most_bytes)} of them. Use "
            f"hr.save(model, folder) and hr.load(model, folder), which have no limit."
        )
    return needed + needed // 64 + 4096


@dataclass(frozen=True, slots=True, eq=False)
class _PackedTable:
    """The rows of one table."""

    name: str
    also: tuple[str, ...]
    schema: TableSchema
    rows: int
    data: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """The contents of packed rows, read and checked, but not yet in any table."""

    about: Mapping[str, Any]
    parts: tuple[_PackedTable, ...]
    beside: Mapping[str, bytes]  # the states of filters and orders, by name

    @staticmethod
    def of(packed: object, where: str = "the rows") -> PackedRows:
        """Reads packed rows; `where` names them in errors."""
        if not _is_bytes(packed):
            kind = f"{packed.dtype}, {tuple(packed.shape)}" if isinstance(packed, Tensor) else ""
            raise CheckpointError(
                f"{where} of a state dict are a one-dimensional tensor of bytes; this is a "
                f"{type(packed).__name__} {kind}. Do not cast or average them."
            )
        data = packed.detach().cpu().contiguous().numpy()
        if len(data) < _START or data[: len(_MAGIC)].tobytes() != _MAGIC:
            raise CheckpointError(f"{where} of a state dict do not begin as packed rows do.")
        if data[len(_MAGIC) : _AFTER].tobytes() != hashlib.sha256(data[_AFTER:].data).digest():
            raise CheckpointError(
                f"{where} of a state dict are damaged: their checksum differs. Do not average or "
                f"add state dicts."
            )
        end = len(data) - int.from_bytes(data[_AFTER:_START].tobytes(), "little")
        head = plain_json(data[max(_START, end) :].tobytes(), where)
        try:
            return _read(where, head, data[_START : max(_START, end)])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"the head of {where} is damaged: {error!r}.") from error

    def differing(self, tables: Mapping[str, LocalTable]) -> tuple[list[str], list[str]]:
        """Returns the tables without packed rows, and the packed names without a table."""
        found = {name: self._part(name, table) for name, table in tables.items()}
        used = {part.name for part in found.values() if part is not None}
        missing = [name for name, part in found.items() if part is None]
        return missing, [part.name for part in self.parts if part.name not in used]

    def restore(self, tables: Mapping[str, LocalTable], *, strict: bool = True) -> None:
        """Replaces the rows and filters of the tables, either all or none.

        With `strict`, both sides must have the same tables. Otherwise, tables without packed rows
        stay unchanged.
        """
        if strict:
            _check_same(*self.differing(tables))
        pairs: list[tuple[LocalTable, LocalTable]] = []
        orders = orders_to_restore(self.beside)
        for name, table in tables.items():
            part = self._part(name, table)
            if part is not None:
                pairs.append((table, _filled(table, part, orders.get(part.name))))
        filters = filters_to_restore(self.beside, tables, ALONE, ignore_others=False)
        replace_rows(pairs, filters)
        for _, staged in pairs:
            staged.clear()

    def _part(self, name: str, table: LocalTable) -> _PackedTable | None:
        """Returns the rows of a table, saved under its name or under one of its other names."""
        mine = {name, *table.config.also}
        for names in ({name}, mine):
            for part in self.parts:
                if part.name in names or (names == mine and mine & set(part.also)):
                    return part
        return None


def _is_bytes(packed: object) -> TypeGuard[Tensor]:
    if not isinstance(packed, Tensor) or packed.dtype != torch.uint8:
        return False
    return packed.dim() == 1 and packed.layout == torch.strided and not packed.is_meta


def _read(where: str, head: Any, payload: np.ndarray) -> PackedRows:
    parts: list[_PackedTable] = []
    filters: dict[str, bytes] = {}
    at = 0

    def taken(size: Any) -> np.ndarray:
        nonlocal at
        if type(size) is not int or not 0 <= size <= len(payload) - at:
            raise CheckpointError(
                f"{where} have {len(payload) - at} bytes where {size!r} are needed."
            )
        at += size
        return payload[at - size : at]

    for entry in head["tables"]:
        name, rows = str(entry["name"]), entry["rows"]
        if type(rows) is not int or rows < 0:
            raise CheckpointError(f"{where} say that table {name!r} has {rows!r} rows.")
        schema = read_schema(Path(where), f"tables[{name!r}].schema", entry["schema"])
        if rows > len(payload) // row_bytes(schema.columns()):
            raise CheckpointError(f"{where} have too few bytes for {rows} rows of table {name!r}.")
        also = tuple(str(other) for other in entry["also"])
        parts.append(_PackedTable(name, also, schema, rows, taken(entry["bytes"])))
    for entry in head["filters"]:
        filters[str(entry["name"])] = taken(entry["bytes"]).tobytes()
    if at != len(payload):
        raise CheckpointError(f"{where} have {len(payload) - at} bytes too many.")
    if not isinstance(head["about"], dict):
        raise CheckpointError(
            f"{where} are described by {head['about']!r}, which is not an object."
        )
    return PackedRows(head["about"], tuple(parts), filters)


def _check_same(missing: list[str], extra: list[str]) -> None:
    if missing:
        raise CheckpointError(
            f"the state dict has no rows of table {missing[0]!r}; it has "
            f"{', '.join(extra) or 'no other table'}."
        )
    if extra:
        raise CheckpointError(
            f"the state dict has rows of table {extra[0]!r}, which the module does not have."
        )


def _filled(table: LocalTable, part: _PackedTable, order: EvictionOrderState | None) -> LocalTable:
    """Returns an empty table of the same kind, filled with the rows of a part."""
    import pyarrow as pa

    where = f"the rows of table {part.name!r} in a state dict"
    fit = RowConverter(table.config, part.schema, "error")
    staged: LocalTable = table.beside(part.rows)
    if order is not None and fit.keeps_order and staged.order is not None:
        staged.order.restore(order)
    columns = part.schema.columns()
    try:
        for rows in read_rows(pa.py_buffer(part.data), where, columns, part.rows):
            done = staged.restore(fit.entries(rows))
            if done.refused or done.dropped:
                raise CheckpointError(f"{where} hold invalid values.")
    except InputError as error:  # a time below 0, or a value that is not finite
        raise CheckpointError(f"{where}: {error}") from error
    if staged.size() != part.rows and not table.config.skip_zero_embedding:
        raise CheckpointError(f"{where} contain an id twice.")
    return staged
