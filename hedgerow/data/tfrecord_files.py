"""TFRecord files of tf.Example as batches."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DtypeError, FileDamagedError, InputError
from ..core.protobuf import WireError
from .arrow_columns import ColumnRoles
from .table_stream import TableStream, listed
from .tfrecord_format import Values, decode_example, payloads

_READ_RECORDS = 2048  # records per table


@dataclass(frozen=True, slots=True)
class _TfrecordPart:
    path: Path
    columns: ColumnRoles

    @property
    def name(self) -> str:
        return str(self.path)

    def rows(self) -> None:
        return None

    def tables(self, first_row: int) -> Iterator[Any]:
        examples: list[dict[str, Values]] = []
        row = first_row
        seen: set[str] = set()
        for example in self._examples(first_row):
            examples.append(example)
            seen.update(example)
            if len(examples) == _READ_RECORDS:
                yield self._table(examples, row)
                row, examples = row + len(examples), []
        if examples:
            yield self._table(examples, row)
        absent = [name for name in self.columns.features if name not in seen]
        if absent and seen and first_row == 0:
            raise InputError(
                f"{self.path}: no record has a feature {absent[0]!r}; the records have "
                f"{', '.join(sorted(seen))}."
            )

    def _examples(self, first_row: int) -> Iterator[dict[str, Values]]:
        opened = gzip.open if self.path.suffix == ".gz" else open
        try:
            with opened(self.path, "rb") as file:
                for row, (at, payload) in enumerate(payloads(file, self.name)):
                    if row < first_row:
                        continue
                    try:
                        yield decode_example(payload)
                    except WireError as error:
                        raise FileDamagedError(
                            f"{self.path}: record {row} (at byte {at}) is no tf.Example: {error}."
                        ) from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileDamagedError(
                f"{self.path} is no complete gzip file: {error}. Copy it from its source again."
            ) from error

    def _table(self, examples: list[dict[str, Values]], first_row: int) -> Any:
        import pyarrow as pa

        columns = {}
        for name in self.columns.features:
            rows = [example.get(name, []) for example in examples]
            columns[name] = self._lists(name, rows, first_row)
        for name in self.columns.numbers():
            columns[name] = self._numbers(name, examples, first_row)
        for name in self.columns.keys:
            if name not in columns:
                columns[name] = self._keys(name, examples, first_row)
        return pa.table(columns)

    def _keys(self, name: str, examples: list[dict[str, Values]], first_row: int) -> Any:
        import pyarrow as pa

        found = []
        for row, example in enumerate(examples):
            values = example.get(name, [])
            if len(values) != 1:
                raise InputError(
                    f"{self.path}, record {first_row + row}: feature {name!r} has {len(values)} "
                    f"values; a key has one in every record."
                )
            (value,) = values.tolist() if isinstance(values, np.ndarray) else values
            found.append(value)
        return pa.array(found)

    def _lists(self, name: str, rows: list[Values], first_row: int) -> Any:
        import pyarrow as pa

        kind: type | None = None
        for row, values in enumerate(rows):
            if not len(values):
                continue
            if isinstance(values, np.ndarray):
                raise DtypeError(
                    f"{self.path}, record {first_row + row}: feature {name!r} holds floats; ids "
                    f"are int64 or bytes. Read it as a dense column."
                )
            if kind is not None and type(values[0]) is not kind:
                raise DtypeError(
                    f"{self.path}, record {first_row + row}: feature {name!r} holds "
                    f"{type(values[0]).__name__}, and {kind.__name__} before; write one kind."
                )
            kind = type(values[0])
        inner = pa.binary() if kind is bytes else pa.int64()
        return pa.array([list(values) for values in rows], pa.list_(inner))

    def _numbers(self, name: str, examples: list[dict[str, Values]], first_row: int) -> Any:
        found = np.empty(len(examples), np.float32)
        for row, example in enumerate(examples):
            values = example.get(name)
            if (values is None or not len(values)) and name in self.columns.fill:
                found[row] = self.columns.fill[name]
                continue
            if values is None:
                raise InputError(
                    f"{self.path}, record {first_row + row}: no feature {name!r}; the record has "
                    f"{', '.join(sorted(example)) or 'none'}. Labels, weights and dense columns "
                    f"are needed in every record, unless fill={{{name!r}: ...}} gives a value "
                    f"for missing weights and dense columns."
                )
            if len(values) != 1 or isinstance(values[0], bytes):
                what = "bytes" if len(values) == 1 else f"{len(values)} values"
                raise DtypeError(
                    f"{self.path}, record {first_row + row}: feature {name!r} holds {what}; "
                    f"labels, weights and dense columns hold one number."
                )
            found[row] = values[0]
        return found


def tfrecord(
    files: str | Path | Sequence[str | Path],
    batch_size: int,
    *,
    features: Sequence[str],
    dense: Sequence[str] = (),
    label: str | None = None,
    weight: str | None = None,
    fields: Mapping[str, str] | None = None,
    fill: Mapping[str, float] | None = None,
    label_bounds: tuple[float, float] | None = None,
    keys: Sequence[str] = (),
    window_rows: int = 0,
    seed: int = 0,
) -> TableStream:
    """Returns batches of TFRecord files (also .gz) of tf.Example. It does not need TensorFlow.

    A feature is an int64 or bytes list of any length, and may be absent if it is empty. Bytes are
    hashed with the feature's name, or with `fields[feature]`. Other columns hold one number per
    record; `fill[feature]` replaces a missing dense value or weight. Labels outside `label_bounds`
    raise an error. `keys`, with one value per record, are in `batch.keys`.

    >>> import tempfile, pathlib
    >>> from hedgerow.data.tfrecord_format import encode_example
    >>> from hedgerow.data.tfrecord_format import frame
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "clicks.tfrecord"
    >>> _ = path.write_bytes(frame(encode_example({"user": [7], "click": [1.0]})))
    >>> (batch,) = tfrecord(path, 2, features=["user"], label="click")
    >>> batch.ids.values.tolist(), batch.labels.tolist()
    ([7], [1.0])
    """
    columns = ColumnRoles(
        features=features if isinstance(features, str) else tuple(features),
        dense=tuple(dense),
        label=label,
        weight=weight,
        fields=dict(fields or {}),
        fill=dict(fill or {}),
        label_bounds=label_bounds,
        keys=keys if isinstance(keys, str) else tuple(keys),
    )
    parts = [_TfrecordPart(path, columns) for path in listed(files)]
    return TableStream(parts, columns, batch_size, window_rows=window_rows, seed=seed)
