"""Batches from parts that hold rows: shuffled within a window, resumable at any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..core import checks
from ..core.errors import FileMissingError, InputError
from ..core.files import local_path
from .arrow_columns import ColumnRoles, batch_of, plain_columns, with_types_of
from .source import Batch, BatchSource, check_state


class StreamPart(Protocol):
    """A named set of rows: a file, or a table in memory."""

    @property
    def name(self) -> str:
        """The name in errors and positions."""
        ...

    def rows(self) -> int | None:
        """Returns the number of rows, or None if only reading them would tell."""
        ...

    def tables(self, first_row: int) -> Iterator[Any]:
        """Yields Arrow tables of the rows from `first_row` on, each small enough for memory."""
        ...


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of the next row: epoch, window, start of the window, rows used of the window."""

    epoch: int = 0
    window: int = 0
    file: int = 0
    row: int = 0
    gone: int = 0


class _RowReader:
    """Reads rows across the parts."""

    def __init__(
        self, parts: Sequence[StreamPart], columns: ColumnRoles, file: int, row: int
    ) -> None:
        self._parts, self._columns = parts, columns
        self.file, self.row = file, row  # of the next row
        self._tables: Iterator[Any] | None = None
        self._left: Any = None  # rows that were read and not taken yet
        self._first: Any = None  # an empty table with the types of the first table

    def take(self, rows: int) -> Any:
        """Returns the next rows as one table: fewer at the end, and None after it."""
        import pyarrow as pa

        found, missing = [], rows
        while missing:
            table = self._left if self._left is not None else self._read()
            if table is None:
                break
            piece = table.slice(0, missing)
            found.append(piece)
            missing -= piece.num_rows
            self.row += piece.num_rows
            rest = table.slice(piece.num_rows)
            self._left = rest if rest.num_rows else None
        return pa.concat_tables(found) if found else None

    def _read(self) -> Any:
        while self.file < len(self._parts):
            part = self._parts[self.file]
            if self._tables is None:
                self._tables = part.tables(self.row)
            for table in self._tables:
                if table.num_rows:
                    plain = plain_columns(table, self._columns, part.name, self.row)
                    self._first = plain.slice(0, 0) if self._first is None else self._first
                    return with_types_of(self._first, plain, self._columns, part.name)
            if self.row == 0:
                raise InputError(f"{part.name} holds no rows; leave it out.")
            self.file, self.row, self._tables = self.file + 1, 0, None
        return None


class TableStream(BatchSource):
    """Batches of the rows of all parts. Not thread-safe.

    With `window_rows`, the parts come in a new order in every epoch, and rows are shuffled within
    windows of that size. The order depends only on the seed and the epoch. One iteration is one
    epoch, and continues where the last one stopped. The last batch of an epoch may be smaller.

    >>> import pyarrow as pa
    >>> rows = TablePart("demo", pa.table({"user": [5, 6, 7], "clicked": [1, 0, 1]}))
    >>> columns = ColumnRoles(features=["user"], label="clicked")
    >>> stream = TableStream([rows], columns, batch_size=2)
    >>> [batch.ids.values.tolist() for batch in stream]
    [[5, 6], [7]]
    """

    def __init__(
        self,
        parts: Sequence[StreamPart],
        columns: ColumnRoles,
        batch_size: int,
        *,
        window_rows: int = 0,
        seed: int = 0,
    ) -> None:
        self._parts, self._columns = list(parts), columns
        self._batch_size = checks.count("batch_size", batch_size, least=1)
        self._window_rows = checks.count("window_rows", window_rows)
        self._seed = checks.count("seed", seed)
        self._at = _Position()
        self._number = 0  # the next batch, counted from the start of the epoch or a load

    @property
    def columns(self) -> ColumnRoles:
        """The columns that are read, and the role of each."""
        return self._columns

    @property
    def rows(self) -> int | None:
        """The rows of an epoch, or None if only reading them would tell."""
        counts = [part.rows() for part in self._parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, for `load_state_dict` of a source with equal settings."""
        self._check_position()
        return {**asdict(self._at), **self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a position. The following batches are the same as after `state_dict`."""
        names = tuple(_Position.__dataclass_fields__)
        check_state(state, names, self._settings())
        if state["file"] > len(self._parts):
            raise InputError(
                f"the position is in file {state['file']} of {len(self._parts)}; it is damaged."
            )
        self._at = _Position(**{name: int(state[name]) for name in names})
        self._number = 0

    def _settings(self) -> dict[str, Any]:
        names = [Path(part.name).name for part in self._parts]
        return {"files": names, "seed": self._seed, "window_rows": self._window_rows}

    def _shuffled(self, n: int, *key: int) -> list[int]:
        return np.random.default_rng([self._seed, *key]).permutation(n).tolist()

    def _windows(self, at: _Position) -> Iterator[tuple[_Position, Any]]:
        """Yields every window from a position on, with its start.

        Its rows are in their final order.
        """
        parts = self._parts
        if self._window_rows:
            parts = [parts[i] for i in self._shuffled(len(parts), at.epoch)]
        rows = _RowReader(parts, self._columns, at.file, at.row)
        number = at.window
        while True:
            start = _Position(at.epoch, number, rows.file, rows.row)
            window = rows.take(self._window_rows or self._batch_size)
            if window is None:
                return
            if self._window_rows:
                window = window.take(self._shuffled(window.num_rows, at.epoch, number))
            yield start, window
            number += 1

    def _numbered(self) -> Iterator[tuple[int, Callable[[], Batch]]]:
        import pyarrow as pa

        at, gone, end, pending = self._at, self._at.gone, 0, None
        for start, window in self._windows(at):
            at = start
            while True:
                have = pending.num_rows if pending is not None else 0
                piece = window.slice(gone, self._batch_size - have)
                gone += piece.num_rows
                pending = piece if pending is None else pa.concat_tables([pending, piece])
                if pending.num_rows < self._batch_size:
                    break
                self._at = _Position(at.epoch, at.window, at.file, at.row, gone)
                yield self._next(pending)
                pending = None
            end, gone = gone, 0
            if pending is not None and not pending.num_rows:
                pending = None
        if pending is not None:
            self._at = _Position(at.epoch, at.window, at.file, at.row, end)
            yield self._next(pending)
        self._at, self._number = _Position(at.epoch + 1), 0

    def _next(self, rows: Any) -> tuple[int, Callable[[], Batch]]:
        self._number += 1
        return self._number - 1, partial(batch_of, rows, self._columns)


@dataclass(frozen=True, slots=True)
class TablePart:
    """A table in memory."""

    name: str
    table: Any

    def rows(self) -> int:
        """Returns the number of rows."""
        return self.table.num_rows

    def tables(self, first_row: int) -> Iterator[Any]:
        """Yields the rows from `first_row` on."""
        yield self.table.slice(first_row)


def listed(files: str | Path | Sequence[str | Path]) -> list[Path]:
    """Returns files as paths. Raises if one does not exist."""
    given = [files] if isinstance(files, str | Path) else list(files)
    if not given:
        raise InputError("the list of files is empty; give at least one file.")
    paths = [local_path(file) for file in given]
    for path in paths:
        if not path.is_file():
            raise FileMissingError(f"{path} is no file; check the path.")
    return paths
