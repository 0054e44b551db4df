"""Ragged rows of ids, stored as one tensor of values and one of offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import pairwise
from numbers import Integral, Number
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from . import checks
from .errors import DtypeError, HedgerowError, InputError
from .shapes import Bool, Int64

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Makes `torch.compile` run `function` eagerly between two graphs. `torch.export` traces it.

    Tracing it under `torch.compile` would break the graph inside the function and recompile for new
    values. `torch.compiler.disable` does the same but imports the compiler, which takes seconds.

    >>> @outside_graphs
    ... def longest(lengths: torch.Tensor) -> int:
    ...     return int(lengths.max())
    >>> longest(torch.tensor([2, 5]))
    5
    """
    apart = _disable_dynamo(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            return apart(*args, **kwargs)
        return function(*args, **kwargs)

    return call


Ids = np.ndarray[Any, np.dtype[np.int64]]


def check_splits(name: str, splits: Int64[Tensor, "rows + 1"], values: int) -> None:
    """Raises unless `splits` divides `values` values into rows.

    The splits must start at 0, end at `values` and never decrease. Type and shape are checked
    elsewhere. On a device this blocks.

    >>> check_splits("row_splits", torch.tensor([0, 2, 1]), 1)
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: row_splits falls from 2 to 1 at 2; borders of rows never fall.
    """
    if splits.shape[0] == 0:
        raise InputError(f"{name} is empty; it must be [0, ..., {values}], or [0] without rows.")
    borders = splits.numpy(force=True)  # four times faster than torch for a few numbers
    first, last = int(borders[0]), int(borders[-1])
    if first != 0 or last != values:
        raise InputError(f"{name} goes from {first} to {last}; it must go from 0 to {values}.")
    falls = borders[1:] < borders[:-1]
    if falls.any():
        at = int(falls.argmax())
        raise InputError(
            f"{name} falls from {int(splits[at])} to {int(splits[at + 1])} at {at + 1}; "
            f"borders of rows never fall."
        )


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    The contents of `row_splits` are checked on the CPU only, because reading them from a device
    blocks.

    >>> ragged = Ragged.from_lists([[7, 8], [], [9]])
    >>> ragged.row_splits.tolist(), ragged.lengths().tolist()
    ([0, 2, 2, 3], [2, 0, 1])
    """

    values: Tensor
    row_splits: Int64[Tensor, "rows + 1"]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Tensor) or self.values.dim() == 0:
            raise DtypeError(
                f"Ragged.values is {self.values!r}; it must be a torch.Tensor of one or more "
                f"dimensions, the rows one after the other."
            )
        if torch.compiler.is_compiling():  # no values while tracing; readers check them
            return
        checks.tensor("row_splits", self.row_splits, torch.int64, (None,), self.values.device)
        if self.values.device == checks.CPU:
            check_splits("row_splits", self.row_splits, len(self.values))

    @staticmethod
    def from_lists(rows: Iterable[Sequence[int]], dtype: torch.dtype = torch.int64) -> Ragged:
        """Builds rows from one list of ids per row.

        >>> Ragged.from_lists([["Z"]])
        Traceback (most recent call last):
        hedgerow.core.errors.DtypeError: row 0 has 'Z', a str; rows hold numbers: make an id of a \
string with hr.id64.
        """
        lists = [list(row) for row in rows]
        values = _flat(lists, dtype)
        lengths = torch.tensor([0] + [len(row) for row in lists], dtype=torch.int64)
        return Ragged(values, lengths.cumsum(0))

    @staticmethod
    def trusted(values: Tensor, row_splits: Int64[Tensor, "rows + 1"]) -> Ragged:
        """Builds rows without checking `row_splits`. For splits that Hedgerow computed."""
        ragged = object.__new__(Ragged)
        object.__setattr__(ragged, "values", values)
        object.__setattr__(ragged, "row_splits", row_splits)
        return ragged

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.row_splits.shape[0] - 1

    @cached_property
    def row_ids(self) -> Int64[Tensor, "n"]:
        """The row of each value. Computed once.

        >>> Ragged.from_lists([[], [7], [8, 9]]).row_ids.tolist()
        [1, 2, 2]
        """
        rows = torch.arange(self.rows, device=self.row_splits.device)
        return torch.repeat_interleave(rows, self.lengths(), output_size=self.values.shape[0])

    def lengths(self) -> Int64[Tensor, "rows"]:
        """Returns the number of values in each row."""
        return self.row_splits.diff()

    def mask(self, length: int | None = None) -> Bool[Tensor, "rows length"]:
        """Returns which positions of `to_padded(length=length)` hold a value.

        >>> Ragged.from_lists([[7, 8], [], [9]]).mask().tolist()
        [[True, True], [False, False], [True, False]]
        """
        places = torch.arange(self._length(length), device=self.row_splits.device)
        return places < self.lengths().unsqueeze(1)

    def to_padded(
        self, padding: float = 0, *, length: int | None = None
    ) -> Annotated[Tensor, "rows length ..."]:
        """Returns a dense tensor in which `padding` fills up the shorter rows.

        Each row has `length` positions; longer rows are cut. By default `length` is that of the
        longest row. Finding it blocks on a device and breaks a compiled graph, so pass `length`
        there. The result has the dtype and device of `values`, and gradients flow to `values`.

        >>> Ragged.from_lists([[7, 8], [], [9]]).to_padded(-1).tolist()
        [[7, 8], [-1, -1], [9, -1]]
        >>> vectors = Ragged(torch.ones(3, 2), torch.tensor([0, 1, 3]))
        >>> vectors.to_padded(length=4).shape
        torch.Size([2, 4, 2])
        """
        there, values = self.mask(length), self.values
        if not values.dtype.is_floating_point and not float(padding).is_integer():
            raise InputError(
                f"padding is {padding}, which {values.dtype} does not hold; pass a whole number."
            )
        if torch.compiler.is_compiling() or not values.shape[0]:  # indexing needs a value
            values = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
        places = self.row_splits[:-1, None] + torch.arange(there.shape[1], device=there.device)
        taken = values[places.clamp_max(values.shape[0] - 1)]
        return taken.masked_fill(~there.view(*there.shape, *[1] * (values.dim() - 1)), padding)

    def to_nested(self) -> Tensor:
        """Returns the rows as a jagged nested tensor that shares `values`.

        Gradients flow to `values`.

        >>> nested = Ragged.from_lists([[7, 8], [], [9]]).to_nested()
        >>> [row.tolist() for row in nested.unbind()]
        [[7, 8], [], [9]]
        """
        return torch.nested.nested_tensor_from_jagged(self.values, self.row_splits)

    def _length(self, length: int | None) -> int:
        if length is None:
            return self._longest()
        return length if torch.compiler.is_compiling() else checks.count("length", length)

    @outside_graphs
    def _longest(self) -> int:
        if not self.rows:
            return 0
        longest: Any = self.lengths().max().item()  # int() would make a traced size constant
        return longest

    def row(self, i: int) -> Tensor:
        """Returns row `i` without a copy."""
        if not 0 <= i < self.rows:
            raise InputError(f"row {i} is not one of 0..{self.rows - 1}.")
        return self.values[int(self.row_splits[i]) : int(self.row_splits[i + 1])]

    def to_lists(self) -> list[list[int]]:
        """Returns one list per row."""
        values, borders = self.values.tolist(), self.row_splits.tolist()
        return [values[start:stop] for start, stop in pairwise(borders)]


def distinct_ids(ids: Ids) -> Ids:
    """Returns the distinct ids in ascending order.

    Uses torch, which sorts. numpy's `unique`, `isin` and `union1d` use an unkeyed hash, so ids that
    are chosen to collide make them quadratic.

    >>> distinct_ids(np.array([8, 7, 8])).tolist()
    [7, 8]
    """
    return torch.from_numpy(np.ascontiguousarray(ids)).unique().numpy()


def are_among(ids: Ids, others: Ids) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns, for each id, whether it is in `others`.

    >>> are_among(np.array([8, 7, 8]), np.array([8, 5])).tolist()
    [True, False, True]
    """
    both = (torch.from_numpy(np.ascontiguousarray(one)) for one in (ids, others))
    return torch.isin(*both).numpy()


def narrowest(many: int) -> torch.dtype:
    """Returns the narrowest integer dtype that holds 0 to `many - 1`. Narrower types sort faster.

    >>> narrowest(8), narrowest(1000)
    (torch.uint8, torch.int16)
    """
    return torch.uint8 if many <= 2**8 else torch.int16 if many <= 2**15 else torch.int64


def _flat(lists: Sequence[Sequence[Any]], dtype: torch.dtype) -> Tensor:
    """Returns the values of all rows as one tensor.

    Raises for the first row that `dtype` cannot hold.
    """
    flat = [value for row in lists for value in row]
    # torch would truncate floats to integers and split a bytes object into its bytes.
    cut = (bytes,) if dtype.is_floating_point or dtype.is_complex else (bytes, float)
    if any(isinstance(value, cut) for value in flat):
        raise _refusal(lists, dtype)
    try:
        return torch.tensor(flat, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _refusal(lists, dtype) from error


def _refusal(lists: Sequence[Sequence[Any]], dtype: torch.dtype) -> HedgerowError:
    """Returns an error that names the first value that `dtype` cannot hold."""
    holds = Number if dtype.is_floating_point or dtype.is_complex else Integral
    for number, row in enumerate(lists):
        for value in row:
            what = f"row {number} has {value!r}"
            if isinstance(value, str | bytes):
                return DtypeError(
                    f"{what}, a {type(value).__name__}; rows hold numbers: make an id of a string "
                    f"with hr.id64."
                )
            if isinstance(value, Integral) and not -(2**63) <= value < 2**63:
                return InputError(f"{what}; whole numbers lie in -2**63..2**63-1.")
            if not isinstance(value, holds | Tensor):
                return DtypeError(
                    f"{what}, a {type(value).__name__}, which {dtype} does not hold; correct the "
                    f"value, or give another dtype."
                )
    return DtypeError(f"the rows have values that {dtype} does not hold; give another dtype.")
