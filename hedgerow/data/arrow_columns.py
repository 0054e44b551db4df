"""Columns of Arrow tables as batches: the roles of columns, and checks that name the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import ConfigError, DtypeError, InputError, NotFiniteError
from ..core.hashing import field_seed
from ..core.id_batch import IdBatch
from ..core.id_columns import is_text, ragged_of_column
from .source import Batch


def hash_text(strings: Any, field: str) -> NDArray[np.int64]:
    """Returns `id64(value, field)` of each value of an Arrow array.

    The array holds strings or bytes, without nulls.

    >>> import pyarrow as pa
    >>> hash_text(pa.array(["Zürich"]), "city").tolist()
    [795450140219139997]
    """
    import pyarrow as pa

    wide = strings.type in (pa.large_string(), pa.large_binary())
    _, borders, data = strings.buffers()
    out = np.empty(len(strings), np.uint64)
    if len(strings):
        dtype = np.int64 if wide else np.int32
        offsets = np.frombuffer(borders, dtype)[strings.offset : strings.offset + len(strings) + 1]
        offsets = np.ascontiguousarray(offsets, np.int64)
        data_at = data.address if data is not None else 0
        native.hash_strings(
            data_at, offsets.ctypes.data, len(out), field_seed(field), out.ctypes.data
        )
    return out.view(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRoles:
    """The columns that are read, and the role of each.

    Strings become `id64(value, field=column)`. Features that share a table need one field:
    `fields={"history": "item"}` hashes the strings of `history` like those of `item`. `fill` holds
    the values that replace nulls and NaN in dense columns and weights. Labels outside
    `label_bounds` raise an error. `keys` are columns of any type that are not used for training;
    batches have them as `keys`.

    >>> ColumnRoles(features=["user", "item"], label="clicked").names()
    ('user', 'item', 'clicked')
    """

    features: Sequence[str]
    dense: Sequence[str] = ()
    label: str | None = None
    weight: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, float] = field(default_factory=dict)
    label_bounds: tuple[float, float] | None = None
    keys: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("features", "dense", "keys"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(
                    f"Columns.{name} is {getattr(self, name)!r}; give a list of column names."
                )
        names = self.names()
        if not names or len(set(names)) != len(names):
            raise ConfigError(
                f"the columns are {', '.join(names) or 'none'}; give at least one, and each once."
            )
        for name in self.fields:
            if name not in self.features:
                checks.unknown("feature in fields", name, self.features)
        for name, value in self.fill.items():
            if name not in (*self.dense, self.weight):
                known = [*self.dense, *([] if self.weight is None else [self.weight])]
                checks.unknown("dense column or weight in fill", name, known)
            checks.setting("Columns", f"fill[{name!r}]", value)

    def names(self) -> tuple[str, ...]:
        """Returns all columns except the keys."""
        rest = [name for name in (self.label, self.weight) if name is not None]
        return (*self.features, *self.dense, *rest)

    def numbers(self) -> tuple[str, ...]:
        """Returns the columns that hold one number per sample."""
        return self.names()[len(self.features) :]

    def read(self) -> list[str]:
        """Returns the columns to read from a file, with the keys and without repetition."""
        return list(dict.fromkeys((*self.names(), *self.keys)))

    def field_of(self, feature: str) -> str:
        """Returns the field that strings of a feature are hashed with."""
        return self.fields.get(feature, feature)


def check_schema(schema: Any, columns: ColumnRoles, file: str) -> None:
    """Raises unless the file has all columns, with types that can be read."""
    from pyarrow.types import is_null

    for name in columns.read():
        if name not in schema.names:
            checks.unknown(f"column of {file}", name, schema.names)
    for name in columns.features:
        _check_feature(name, schema.field(name).type, file)
    for name in columns.numbers():
        kind = schema.field(name).type
        is_filled = name in columns.fill and is_null(kind)  # a column of nulls only
        if not (_is_number(kind) or is_filled or (name in columns.dense and _is_time(kind))):
            raise DtypeError(
                f"{file}: column {name!r} holds {kind}; dense columns, labels and weights hold "
                f"one number per sample, dense columns also timestamps and dates. Convert it, or "
                f"read it as a feature."
            )


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _is_time(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _seconds(column: Any) -> Any:
    """Returns timestamps and dates as whole seconds since 1970 in UTC, rounded down; nulls stay."""
    import pyarrow as pa
    from pyarrow import compute

    pc: Any = compute  # its functions are created at import, so type checkers do not know them
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s"))
        kind = column.type
    ticks, per_second = column.cast(pa.int64()), pa.scalar(_PER_SECOND[kind.unit], pa.int64())
    whole = pc.divide(ticks, per_second)  # rounds to zero
    below = pc.less(ticks, pc.multiply(whole, per_second))
    return pc.subtract(whole, below.cast(pa.int64()))


def _check_feature(name: str, kind: Any, file: str) -> None:
    import pyarrow as pa

    types, inner = pa.types, kind
    is_ragged = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_ragged:
        inner = kind.value_type
    if types.is_dictionary(inner) and not is_ragged:
        inner = inner.value_type
    if types.is_integer(inner) or is_text(inner) or types.is_null(inner) or _is_time(kind):
        return
    raise DtypeError(
        f"{file}: column {name!r} holds {kind}; a feature holds whole numbers or strings, one or a "
        f"list per sample, or one timestamp or date. Convert it, or read it as a dense column."
    )


def plain_columns(table: Any, columns: ColumnRoles, file: str, first_row: int) -> Any:
    """Returns the needed columns of a table, checked.

    `first_row` is the table's first row in the file.

    Features become lists of int64, and other columns float32, so tables of several files can be
    concatenated.
    """
    import pyarrow as pa

    check_schema(table.schema, columns, file)
    plain = {}
    for name in columns.features:
        column = _decoded(name, table.column(name), file, first_row)
        ids = ragged_of_column(columns.field_of(name), column, hash_text)
        plain[name] = pa.LargeListArray.from_arrays(ids.row_splits.numpy(), ids.values.numpy())
    for name in columns.numbers():
        plain[name] = _plain_numbers(name, table.column(name), columns, file, first_row)
    for name in columns.keys:
        plain[key_column(name)] = table.column(name)
    return pa.table(plain)


def key_column(name: str) -> str:
    """Returns the internal name of a key, which may also be a feature or another column."""
    return f"key:{name}"


def _plain_numbers(name: str, column: Any, columns: ColumnRoles, file: str, first_row: int) -> Any:
    """Returns one number per row as float32, with nulls filled. Raises for invalid values."""
    import pyarrow as pa

    numbers = _seconds(column) if _is_time(column.type) else column
    values = numbers.cast(pa.float32(), safe=False).to_numpy()  # a null is NaN here
    if name in columns.fill:
        values = np.where(np.isnan(values), np.float32(columns.fill[name]), values)
    wrong, rule = ~np.isfinite(values), "it must be a finite number"
    bounds = columns.label_bounds
    if name == columns.label and bounds is not None:
        wrong |= (values < bounds[0]) | (values > bounds[1])
        rule = f"it must lie in {bounds[0]:g}..{bounds[1]:g}, as labels must"
    if name == columns.weight:
        wrong |= values < 0
        rule = "a weight must be finite and not negative"
    if wrong.any():
        at = int(wrong.argmax())
        value, place = column[at].as_py(), f"{file}: column {name!r} is"
        fix = "Correct the row, or leave it out."
        if (value is None or value != value) and name != columns.label:
            fix = (
                f"Give a value that replaces nulls and NaN: fill={{{name!r}: 0.0}}, in a job "
                f"`fill = {{{_toml_key(name)} = 0.0}}` in [data]; or leave the row out."
            )
        is_label = name == columns.label and np.isfinite(values[at])
        error = InputError if is_label else NotFiniteError
        raise error(f"{place} {value!r} in row {first_row + at}; {rule}. {fix}")
    return pa.array(values)


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def with_types_of(first: Any, table: Any, columns: ColumnRoles, file: str) -> Any:
    """Returns a table of `plain_columns` with its keys cast to the types of the first table."""
    import pyarrow as pa

    for name in columns.keys:
        at = table.schema.get_field_index(key_column(name))
        kind, wanted = table.field(at).type, first.schema.field(key_column(name)).type
        if kind == wanted:
            continue
        try:
            if is_text(kind) != is_text(wanted) and not pa.types.is_null(kind):
                raise pa.ArrowInvalid("text and other values are never equal")
            table = table.set_column(at, key_column(name), table.column(at).cast(wanted))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DtypeError(
                f"{file}: the key {name!r} holds {kind}, which is not {wanted} as in the file "
                f"before: {error}. Convert the column of one of them."
            ) from error
    return table


def _decoded(name: str, column: Any, file: str, first_row: int) -> Any:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if _is_time(kind):
        return _seconds(column)
    if pa.types.is_null(kind):  # writers use this type for a column of nulls only
        return column.cast(pa.int64())
    is_fixed = pa.types.is_fixed_size_list(kind)
    if not (is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return column
    if is_fixed or pa.types.is_null(kind.value_type):
        inner = pa.int64() if pa.types.is_null(kind.value_type) else kind.value_type
        column = column.cast(pa.list_(inner))
    if any(chunk.flatten().null_count for chunk in column.chunks):
        at = next(i for i, row in enumerate(column.to_pylist()) if row and None in row)
        raise InputError(
            f"{file}: column {name!r} has a null inside the list of row {first_row + at}; "
            f"remove it from the list."
        )
    return column


def _stacked(table: Any, names: Iterable[str]) -> Tensor:
    parts = [torch.from_numpy(table.column(name).to_numpy().copy()) for name in names]
    return torch.stack(parts, dim=1) if parts else torch.zeros(table.num_rows, 0)


def batch_of(table: Any, columns: ColumnRoles) -> Batch:
    """Returns the batch of a table that `plain_columns` returned."""
    ids = IdBatch.from_arrow(table, columns.features)
    one = [name for name in (columns.label, columns.weight) if name is not None]
    numbers = dict(zip(one, _stacked(table, one).unbind(1), strict=True))
    unlabelled = torch.full((table.num_rows,), float("nan"))
    labels = numbers[columns.label] if columns.label is not None else unlabelled
    weights = numbers[columns.weight].contiguous() if columns.weight is not None else None
    dense = _stacked(table, columns.dense)
    keys = None
    if columns.keys:
        keys = table.select([key_column(name) for name in columns.keys])
        keys = keys.rename_columns(list(columns.keys))
    return Batch(dense, ids, labels.contiguous(), weights, keys)
