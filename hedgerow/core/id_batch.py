"""The ids of a batch: named features, each with any number of ids per sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from . import checks
from .errors import DtypeError, InputError
from .id_columns import KeyedJagged
from .ids import Ragged, check_splits, outside_graphs
from .shapes import Float32, Int64


@dataclass(frozen=True, slots=True)
class Cut:
    """Host copies of sizes of a batch on a device. Reading them from the device would block."""

    borders: tuple[int, ...]  # the first value of each feature, then the end
    is_single: bool  # every sample has exactly one id of every feature


@dataclass(frozen=True, slots=True, eq=False)
class IdBatch:
    """The ids of a batch, ordered by feature, then by sample.

    `offsets` has one entry per (feature, sample), then the end: feature f of sample s holds
    `values[offsets[f * samples + s]:offsets[f * samples + s + 1]]`. `weights`, if given, has one
    number per id. A batch that `to` moves to a device keeps its sizes on the host as `cut`, so that
    reading them does not block. A batch created on a device is read from there once per step.

    >>> batch = IdBatch.from_lists({"user": [[1], [2]], "history": [[5, 6, 7], []]})
    >>> batch.names, batch.samples, batch.feature("history").to_lists()
    (('user', 'history'), 2, [[5, 6, 7], []])
    """

    names: tuple[str, ...]
    values: Int64[Tensor, "n"]
    offsets: Int64[Tensor, "features * samples + 1"]
    weights: Float32[Tensor, "n"] | None = None
    cut: Cut | None = None

    def __post_init__(self) -> None:
        device = self.values.device if isinstance(self.values, Tensor) else None
        checks.tensor("values", self.values, torch.int64, (None,), device)
        checks.tensor("offsets", self.offsets, torch.int64, (None,), device)
        if self.weights is not None:
            checks.tensor("weights", self.weights, torch.float32, (self.values.shape[0],), device)
        if device == checks.CPU and not torch.compiler.is_compiling():  # tracing has no values
            check_splits("offsets", self.offsets, len(self.values))
        if len(set(self.names)) != len(self.names):
            raise InputError(f"feature names repeat: {', '.join(self.names)}.")
        cells = self.offsets.shape[0] - 1  # len() would make the size of a traced tensor constant
        if self.names and cells % len(self.names):
            raise InputError(
                f"offsets has {cells} cells, which {len(self.names)} features do not divide; "
                f"every feature needs one cell per sample."
            )
        if not self.names and cells:
            raise InputError(f"offsets has {cells} cells but there are no feature names.")

    @staticmethod
    @outside_graphs
    def from_lists(
        features: Mapping[str, Iterable[Sequence[int]]],
        weights: Mapping[str, Iterable[Sequence[float]]] | None = None,
    ) -> IdBatch:
        """Builds a batch from one list of id lists per feature. Weights have the same form.

        >>> IdBatch.from_lists({"city": [["Zürich"]]})
        Traceback (most recent call last):
        hedgerow.core.errors.DtypeError: feature 'city' of sample 0 has 'Zürich', a str; ids are \
whole numbers of 64 bits: make one of a string with hr.id64('Zürich', field='city').
        """
        checks.mapping("features", features)
        columns = {name: _ragged_of_lists(name, rows) for name, rows in features.items()}
        if weights is None:
            return IdBatch.from_dict(columns)
        checks.mapping("weights", weights)
        flat = {
            name: _weights_of_lists(name, rows, columns.get(name)) for name, rows in weights.items()
        }
        return IdBatch.from_dict(columns, flat)

    @staticmethod
    def from_dict(
        features: Mapping[str, Ragged | Int64[Tensor, "samples"]],
        weights: Mapping[str, Float32[Tensor, "n"]] | None = None,
    ) -> IdBatch:
        """Builds a batch from one column per feature: a `Ragged`, or a tensor of one id per sample.

        >>> IdBatch.from_dict({"user": torch.tensor([7, 8])}).feature("user").to_lists()
        [[7], [8]]
        """
        checks.mapping("features", features)
        columns = {name: _as_ragged(name, column) for name, column in features.items()}
        if not columns:
            return IdBatch((), torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
        parts = list(columns.values())
        rows = {name: ragged.rows for name, ragged in columns.items()}
        if any(count != parts[0].rows for count in rows.values()):
            raise InputError(f"features differ in their number of samples: {rows}.")
        values = torch.cat([c.values for c in parts])
        start = torch.zeros(1, dtype=torch.int64, device=values.device)
        offsets = torch.cat([start, *(c.lengths() for c in parts)]).cumsum(0)
        return IdBatch(tuple(columns), values, offsets, _joined(columns, weights))

    @staticmethod
    @outside_graphs
    def from_padded(
        features: Mapping[str, Int64[Tensor, "samples length"]], padding: int
    ) -> IdBatch:
        """Builds a batch from matrices padded with `padding`, which cannot be an id.

        >>> batch = IdBatch.from_padded({"history": torch.tensor([[5, 6], [7, 0]])}, padding=0)
        >>> batch.feature("history").to_lists()
        [[5, 6], [7]]
        """
        columns: dict[str, Ragged | Tensor] = {}
        for name, matrix in features.items():
            checks.tensor(name, matrix, torch.int64, (None, None), device=None)
            used = matrix != padding
            splits = torch.cat([used.new_zeros(1, dtype=torch.int64), used.sum(1)]).cumsum(0)
            columns[name] = Ragged(matrix[used], splits)
        return IdBatch.from_dict(columns)

    @staticmethod
    @outside_graphs
    def from_nested(features: Mapping[str, Tensor]) -> IdBatch:
        """Builds a batch from nested tensors of jagged layout.

        >>> nested = torch.nested.nested_tensor(
        ...     [torch.tensor([5, 6]), torch.tensor([7])], layout=torch.jagged
        ... )
        >>> IdBatch.from_nested({"history": nested}).feature("history").to_lists()
        [[5, 6], [7]]
        """
        columns: dict[str, Ragged | Tensor] = {}
        for name, nested in features.items():
            if not isinstance(nested, Tensor) or nested.layout != torch.jagged:
                raise InputError(
                    f"feature {name!r} is no jagged nested tensor; make it with "
                    f"torch.nested.nested_tensor(rows, layout=torch.jagged)."
                )
            columns[name] = Ragged(nested.values().contiguous(), nested.offsets())  # pyright: ignore[reportAttributeAccessIssue]
        return IdBatch.from_dict(columns)

    @staticmethod
    @outside_graphs
    def from_kjt(jagged: Any) -> IdBatch:
        """Builds a batch from a TorchRec KeyedJaggedTensor or an object with the same methods.

        With a variable batch size it must have `inverse_indices`. Each sample gets the bag that
        they name, as in TorchRec's modules.
        """
        found = KeyedJagged.of(jagged)
        if found.is_expanded:
            return IdBatch(found.names, found.values, found.offsets, found.weights)
        return IdBatch.from_dict(*found.columns())

    @staticmethod
    @outside_graphs
    def from_arrow(table: Any, features: Sequence[str] | None = None) -> IdBatch:
        """Builds a batch from columns of a pyarrow table or record batch.

        A column holds integers, strings, or lists of either. A string becomes `id64(value,
        field=column)`. A null gives no ids.
        """
        from .id_columns import ragged_of_column

        names = tuple(table.schema.names if features is None else features)
        for name in names:
            if name not in table.schema.names:
                checks.unknown("column", name, table.schema.names)
        return IdBatch.from_dict({n: ragged_of_column(n, table.column(n)) for n in names})

    def source(self) -> IdBatch:
        """Returns the batch with these features: this one, or the full batch of a `Selection`."""
        return self

    @property
    def samples(self) -> int:
        """The number of samples."""
        return (self.offsets.shape[0] - 1) // len(self.names) if self.names else 0

    @outside_graphs
    def feature(self, name: str) -> Ragged:
        """Returns the ids of one feature, without copying the values."""
        number, splits = self._number(name), self._offsets_of(name)
        if self.cut is None:
            values = self.values[int(splits[0]) : int(splits[-1])]
        else:
            values = self.values[self.cut.borders[number] : self.cut.borders[number + 1]]
        return Ragged.trusted(values, splits - splits[0])

    def _offsets_of(self, name: str) -> Int64[Tensor, "samples+1"]:
        first = self._number(name) * self.samples
        return self.offsets[first : first + self.samples + 1]

    @outside_graphs
    def weights_of(self, name: str) -> Float32[Tensor, "n"] | None:
        """Returns the weights of one feature, not copied, or None if the batch has none."""
        if self.weights is None:
            return None
        number, borders = self._number(name), self.borders()
        return self.weights[borders[number] : borders[number + 1]]

    @outside_graphs
    def has_one_id_each(self) -> bool:
        """Returns whether every sample has exactly one id of every feature."""
        if self.cut is not None:
            return self.cut.is_single
        cells = len(self.offsets) - 1
        if len(self.values) != cells:
            return False
        return bool((self.offsets == torch.arange(cells + 1, device=self.offsets.device)).all())

    def select(self, names: Sequence[str]) -> IdBatch:
        """Returns a batch of the features `names`, in this order.

        Inside `torch.compile` or `torch.export` the result is a `Selection`: the ids are selected
        when they are read.
        """
        if torch.compiler.is_compiling():
            return Selection.of(self, tuple(names))
        return _selected(self, names)

    @outside_graphs
    def part(self, start: int, stop: int) -> IdBatch:
        """Returns the samples from `start` up to, but not including, `stop`.

        >>> batch = IdBatch.from_lists({"user": [[1], [2], [3]], "history": [[5, 6], [], [7]]})
        >>> batch.part(1, 3).feature("history").to_lists()
        [[], [7]]
        """
        if not 0 <= start <= stop <= self.samples:
            raise InputError(f"part {start}..{stop} of {self.samples} samples; it must lie inside.")
        if not self.names:
            return self
        firsts = [number * self.samples for number in range(len(self.names))]
        splits = [self.offsets[first + start : first + stop + 1] for first in firsts]
        pieces = [slice(int(split[0]), int(split[-1])) for split in splits]
        lengths = [split.diff() for split in splits]
        return IdBatch(
            self.names,
            torch.cat([self.values[piece] for piece in pieces]),
            torch.cat([self.offsets.new_zeros(1), *lengths]).cumsum(0),
            None if self.weights is None else torch.cat([self.weights[p] for p in pieces]),
        )

    @staticmethod
    @outside_graphs
    def concat(batches: Sequence[IdBatch]) -> IdBatch:
        """Returns one batch with the samples of all `batches`, in order.

        All need the same features.

        >>> one = IdBatch.from_lists({"user": [[1], []]})
        >>> IdBatch.concat([one, one]).feature("user").to_lists()
        [[1], [], [1], []]
        """
        if not batches:
            raise InputError("concat of no batches; give at least one.")
        first = batches[0]
        for other in batches[1:]:
            if other.names != first.names or (other.weights is None) != (first.weights is None):
                raise InputError(
                    f"batches differ: features {first.names} with "
                    f"{'no ' if first.weights is None else ''}weights, and {other.names} with "
                    f"{'no ' if other.weights is None else ''}weights."
                )
        borders = [batch.borders() for batch in batches]
        order = [(f, b) for f in range(len(first.names)) for b in range(len(batches))]

        def joined(of: str) -> Tensor:
            return torch.cat(
                [getattr(batches[b], of)[borders[b][f] : borders[b][f + 1]] for f, b in order]
            )

        lengths = (
            torch.cat([batches[b].offsets.diff().view(len(first.names), -1)[f] for f, b in order])
            if order
            else first.offsets.new_empty(0)
        )
        offsets = torch.cat([first.offsets.new_zeros(1), lengths]).cumsum(0)
        weights = None if first.weights is None else joined("weights")
        values = joined("values") if order else first.values
        return IdBatch(first.names, values, offsets, weights)

    @outside_graphs
    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> IdBatch:
        """Returns the batch on `device`."""
        moved = self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        if moved.values.device == checks.CPU or self.cut is not None:
            return moved
        return replace(moved, cut=Cut(tuple(self.borders()), self.has_one_id_each()))

    def pin_memory(self) -> IdBatch:
        """Returns the batch in pinned host memory. A DataLoader calls this."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Any) -> IdBatch:
        weights = None if self.weights is None else change(self.weights)
        return IdBatch(self.names, change(self.values), change(self.offsets), weights, self.cut)

    def _number(self, name: str) -> int:
        if name not in self.names:
            checks.unknown("feature", name, self.names)
        return self.names.index(name)

    @outside_graphs
    def borders(self) -> list[int]:
        """Returns the index of each feature's first value, then the end.

        Blocks if `cut` is None.
        """
        if self.cut is not None:
            return list(self.cut.borders)
        every = torch.arange(len(self.names) + 1, device=self.offsets.device) * self.samples
        return self.offsets[every].tolist()


class Selection(IdBatch):
    """A deferred result of `IdBatch.select` inside a compiled graph: names and the full batch.

    The number of ids per feature is unknown while tracing. Embedding modules read the features from
    `source()`. The first access to `values`, `offsets`, `weights` or `cut` computes them and breaks
    the graph.
    """

    __slots__ = ("_whole",)
    _whole: IdBatch

    @staticmethod
    def of(whole: IdBatch, names: tuple[str, ...]) -> Selection:
        """Returns the selection of `names` from `whole`."""
        for name in names:
            if name not in whole.names:
                checks.unknown("feature", name, whole.names)
        made = object.__new__(Selection)
        object.__setattr__(made, "names", tuple(dict.fromkeys(names)))
        object.__setattr__(made, "_whole", whole.source())
        return made

    def source(self) -> IdBatch:
        """Returns the batch that the features were selected from."""
        return self._whole

    def __getattr__(self, name: str) -> Any:
        """Computes the tensors on first access. Only `names` is set at construction."""
        if name not in ("values", "offsets", "weights", "cut"):
            raise AttributeError(f"IdBatch has no attribute {name!r}.")
        _fill(self, self._whole)
        return getattr(self, name)


def _selected(whole: IdBatch, names: Sequence[str]) -> IdBatch:
    columns = {name: whole.feature(name) for name in names}
    if whole.weights is None:
        return IdBatch.from_dict(columns)
    weights = {name: whole.weights_of(name) for name in names}
    return IdBatch.from_dict(columns, weights)  # pyright: ignore[reportArgumentType]


@outside_graphs
def _fill(selection: Selection, whole: IdBatch) -> None:
    own = _selected(whole, selection.names)
    for name in ("values", "offsets", "weights", "cut"):
        object.__setattr__(selection, name, getattr(own, name))


def check_batch(batch: object, reader: str) -> None:
    """Raises `DtypeError` unless `batch` is an `IdBatch`. `reader` names the callee.

    >>> check_batch(torch.tensor([7]), "EmbeddingBags")
    Traceback (most recent call last):
    hedgerow.core.errors.DtypeError: EmbeddingBags was called with a Tensor; it takes an IdBatch, \
which names the feature of every id: hr.IdBatch.from_dict({'user': ids}) for one id per sample, \
hr.IdBatch.from_lists({'user': [[7, 8], []]}) for any number.
    """
    if not isinstance(batch, IdBatch):
        raise DtypeError(
            f"{reader} was called with a {type(batch).__name__}; it takes an IdBatch, which names "
            f"the feature of every id: hr.IdBatch.from_dict({{'user': ids}}) for one id per "
            f"sample, hr.IdBatch.from_lists({{'user': [[7, 8], []]}}) for any number."
        )


def _weights_of_lists(
    name: str, rows: Iterable[Sequence[float]], ids: Ragged | None
) -> Float32[Tensor, "n"]:
    """Returns the weights of all samples one after the other. Each sample needs one per id."""
    try:
        lists = [list(row) for row in rows]
        flat = torch.tensor([weight for row in lists for weight in row], dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(
            f"weights of feature {name!r} are {rows!r:.100}; give one list of numbers per sample."
        ) from error
    traced = torch.compiler.is_compiling()  # a traced tensor has no values
    lengths = [] if ids is None or traced else ids.lengths().tolist()
    for sample, (row, length) in enumerate(zip(lists, lengths, strict=False)):
        if len(row) != length:
            raise InputError(
                f"feature {name!r} of sample {sample} has {length} ids and {len(row)} weights; "
                f"give one weight per id."
            )
    return flat


def _ragged_of_lists(name: str, rows: Iterable[Sequence[int]]) -> Ragged:
    if not isinstance(rows, Iterable):
        raise DtypeError(f"feature {name!r} is {rows!r}; give one list of ids per sample.")
    given = list(rows)
    try:
        lists = [[] if isinstance(row, str | bytes) else list(row) for row in given]
        flat = torch.tensor([value for row in lists for value in row])
        fits = not flat.numel() or not (flat.is_floating_point() or flat.is_complex())
        if fits and not any(isinstance(row, str | bytes) for row in given):
            lengths = torch.tensor([0, *map(len, lists)])
            return Ragged.trusted(flat.to(torch.int64), lengths.cumsum(0))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        _refuse_lists(name, given)
        raise
    return _refuse_lists(name, given)


def _refuse_lists(name: str, rows: Sequence[Any]) -> Any:
    """Raises an error for the first sample that is not a list of valid ids."""
    for sample, row in enumerate(rows):
        if not isinstance(row, Iterable):
            raise DtypeError(
                f"feature {name!r} of sample {sample} is {row!r}; it must be a list of ids, "
                f"such as [{row!r}]."
            )
        for value in [row] if isinstance(row, str | bytes) else row:
            what = f"feature {name!r} of sample {sample} has {value!r}"
            if isinstance(value, str | bytes | tuple):
                raise DtypeError(
                    f"{what}, a {type(value).__name__}; ids are whole numbers of 64 bits: make one "
                    f"of a string with hr.id64({value!r}, field={name!r})."
                )
            if isinstance(value, Integral) and not -(2**63) <= value < 2**63:
                raise InputError(
                    f"{what}; an id lies in -2**63..2**63-1. Subtract 2**64 from an unsigned one."
                )
            if not isinstance(value, Integral | Tensor):
                raise DtypeError(
                    f"{what}, a {type(value).__name__}; ids are whole numbers. An absent id is an "
                    f"empty list."
                )


def _as_ragged(name: str, column: Ragged | Tensor) -> Ragged:
    if isinstance(column, Ragged):
        checks.tensor(f"{name}.values", column.values, torch.int64, (None,), device=None)
        return column
    checks.tensor(name, column, torch.int64, (None,), device=None)
    splits = torch.arange(column.shape[0] + 1, device=column.device)
    return Ragged.trusted(column, splits)


def _joined(
    columns: Mapping[str, Ragged], weights: Mapping[str, Tensor] | None
) -> Float32[Tensor, "n"] | None:
    if weights is None:
        return None
    for name in weights:
        if name not in columns:
            checks.unknown("feature", name, columns)
    parts = []
    for name, column in columns.items():
        ones = torch.ones(column.values.shape[0], device=column.values.device)
        part = weights.get(name, ones)
        checks.tensor(f"weights[{name!r}]", part, torch.float32, tuple(ones.shape), ones.device)
        parts.append(part)
    return torch.cat(parts)
