"""Text files in the format of the Criteo data: a label, 13 numbers and 26 strings per line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..core.errors import FileDamagedError, InputError
from .arrow_columns import ColumnRoles
from .table_stream import TableStream, listed

NUMBERS = tuple(f"I{i}" for i in range(1, 14))
STRINGS = tuple(f"C{i}" for i in range(1, 27))
_ALL = ("label", *NUMBERS, *STRINGS)
_BLOCK_BYTES = 2**20


@dataclass(slots=True)
class _WrongRow:
    """Records the first line that does not have all fields."""

    line: int = 0
    fields: int = 0

    def __call__(self, row: Any) -> str:
        if not self.line:
            self.line, self.fields = row.number, row.actual_columns
        return "error"


@dataclass(frozen=True, slots=True)
class _CriteoPart:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def rows(self) -> None:
        return None

    def tables(self, first_row: int) -> Iterator[Any]:
        row = 0
        for block in self._blocks():
            if row + block.num_rows > first_row:
                skip = max(0, first_row - row)
                yield _typed(block.slice(skip), self.name, row + skip)
            row += block.num_rows

    def _blocks(self) -> Iterator[Any]:
        """Yields tables of text. Errors of the reader name the file and the line."""
        import pyarrow as pa
        from pyarrow import csv

        wrong = _WrongRow()
        parse = csv.ParseOptions(
            delimiter="\t",
            quote_char=False,
            ignore_empty_lines=False,
            invalid_row_handler=wrong,
        )
        read = csv.ReadOptions(column_names=list(_ALL), block_size=_BLOCK_BYTES, use_threads=False)
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(_ALL, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
        )
        try:
            with csv.open_csv(self.path, read, parse, convert) as reader:
                for block in reader:
                    yield pa.Table.from_batches([block])
        except (pa.ArrowInvalid, OSError) as error:
            if wrong.line:
                raise InputError(
                    f"{self.path}, line {wrong.line}: {wrong.fields} fields; there must be "
                    f"{len(_ALL)}, separated by tabs: label, 13 numbers, 26 strings."
                ) from error
            if "Empty CSV file" in str(error):
                raise InputError(f"{self.path} holds no rows; leave it out.") from error
            raise FileDamagedError(
                f"{self.path} cannot be read: {error}. Copy it from its source again."
            ) from error


def _typed(block: Any, name: str, first_row: int) -> Any:
    """Returns a block with numbers in place of text.

    Missing numbers become 0; strings are unchanged.
    """
    import pyarrow as pa

    columns = {"label": _whole_numbers(block, "label", name, first_row)}
    missing = np.flatnonzero(block.column("label").is_null())
    if len(missing):
        _refuse(name, first_row + int(missing[0]), "label", "empty")
    for column in NUMBERS:
        numbers = _whole_numbers(block, column, name, first_row)
        columns[column] = np.log1p(np.maximum(numbers, 0)).astype(np.float32)
    return pa.table(columns | {column: block.column(column) for column in STRINGS})


def _whole_numbers(block: Any, column: str, name: str, first_row: int) -> np.ndarray:
    import pyarrow as pa

    text = block.column(column)
    try:
        return text.cast(pa.string()).cast(pa.int64()).fill_null(0).to_numpy()
    except pa.ArrowInvalid:
        for row, value in enumerate(text.to_pylist()):
            if value is not None and not _is_whole(value):
                _refuse(name, first_row + row, column, repr(value.decode(errors="replace")))
        raise


def _is_whole(value: bytes) -> bool:
    return value.removeprefix(b"-").isdigit() and -(2**63) <= int(value) < 2**63


def _refuse(name: str, row: int, column: str, value: str) -> NoReturn:
    raise InputError(
        f"{name}, line {row + 1}: {column} is {value}; it must be a whole number"
        f"{'' if column == 'label' else ' or empty'}."
    )


def criteo(
    files: str | Path | Sequence[str | Path],
    batch_size: int,
    *,
    window_rows: int = 0,
    seed: int = 0,
) -> TableStream:
    """Returns batches of text files (also .gz) of lines `label I1 .. I13 C1 .. C26`, tab separated.

    A string x of C7 becomes `id64(x, "C7")`; an empty string gives a sample without ids. A number x
    becomes log(1 + max(x, 0)), and a missing one 0.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "day.txt"
    >>> _ = path.write_text("\\t".join(["1", "5", *[""] * 12, "68fd1e64", *[""] * 25]) + "\\n")
    >>> (batch,) = criteo(path, batch_size=2)
    >>> batch.dense.shape, batch.labels.tolist(), batch.ids.feature("C1").lengths().tolist()
    (torch.Size([1, 13]), [1.0], [1])
    """
    columns = ColumnRoles(features=STRINGS, dense=NUMBERS, label="label", label_bounds=(0, 1))
    parts = [_CriteoPart(path) for path in listed(files)]
    return TableStream(parts, columns, batch_size, window_rows=window_rows, seed=seed)
