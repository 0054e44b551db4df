"""Ragged rows of ids as one tensor of values and one of offsets."""

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
    """The function, which `torch.compile` calls as it is, between two graphs; an export traces it.

    Traced, it would break the graph in its middle, and be compiled again for new values. This is
    what `torch.compiler.disable` does, which imports the compiler at once, in seconds.

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
    """`splits`, whose type and shape are right, cut so many values into rows.

    They go from 0 to the end and never fall. Looking at them waits for a device.

    >>> check_splits("row_splits", torch.tensor([0, 2, 1]), 1)
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: row_splits falls from 2 to 1 at 2; borders of rows never fall.
    """
    if splits.shape[0] == 0:
        raise InputError(f"{name} is empty; rows are cut by [0, ..., {values}], [0] if none.")
    borders = splits.numpy(force=True)  # a quarter of what torch takes for a few numbers
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

    The contents of `row_splits` are checked where that waits for no device.

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
        if torch.compiler.is_compiling():  # no values yet: whoever uses the rows checks them
            return
        checks.tensor("row_splits", self.row_splits, torch.int64, (None,), self.values.device)
        if self.values.device == checks.CPU:
            check_splits("row_splits", self.row_splits, len(self.values))

    @staticmethod
    def from_lists(rows: Iterable[Sequence[int]], dtype: torch.dtype = torch.int64) -> Ragged:
        """From one list of ids a row.

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
        """Without a look at the contents: for rows that were cut by code of ours."""
        ragged = object.__new__(Ragged)
        object.__setattr__(ragged, "values", values)
        object.__setattr__(ragged, "row_splits", row_splits)
        return ragged

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.row_splits.shape[0] - 1

    @cached_property
    def row_ids(self) -> Int64[Tensor, "n"]:
        """The row of each value; the same tensor every time.

        >>> Ragged.from_lists([[], [7], [8, 9]]).row_ids.tolist()
        [1, 2, 2]
        """
        rows = torch.arange(self.rows, device=self.row_splits.device)
        return torch.repeat_interleave(rows, self.lengths(), output_size=self.values.shape[0])

    def lengths(self) -> Int64[Tensor, "rows"]:
        """Values of each row."""
        return self.row_splits.diff()

    def mask(self, length: int | None = None) -> Bool[Tensor, "rows length"]:
        """Which places of `to_padded(length=length)` hold a value.

        >>> Ragged.from_lists([[7, 8], [], [9]]).mask().tolist()
        [[True, True], [False, False], [True, False]]
        """
        places = torch.arange(self._length(length), device=self.row_splits.device)
        return places < self.lengths().unsqueeze(1)

    def to_padded(
        self, padding: float = 0, *, length: int | None = None
    ) -> Annotated[Tensor, "rows length ..."]:
        """One dense tensor, with `padding` behind the values of shorter rows.

        A row has `length` places, or those of the longest row; of a longer row the first `length`
        values are kept. Finding the longest row waits for a device, and ends a compiled graph: give
        a `length` there. Type and device are those of `values`, and gradients flow to them.

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
        if torch.compiler.is_compiling() or not values.shape[0]:  # one at least, to take from
            values = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
        places = self.row_splits[:-1, None] + torch.arange(there.shape[1], device=there.device)
        taken = values[places.clamp_max(values.shape[0] - 1)]
        return taken.masked_fill(~there.view(*there.shape, *[1] * (values.dim() - 1)), padding)

    def to_nested(self) -> Tensor:
        """The rows as a nested tensor of jagged layout, which shares `values`; gradients flow.

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
        longest: Any = self.lengths().max().item()  # int() would fix the size of what is traced
        return longest

    def row(self, i: int) -> Tensor:
        """Row `i`, without a copy."""
        if not 0 <= i < self.rows:
            raise InputError(f"row {i} is not one of 0..{self.rows - 1}.")
        return self.values[int(self.row_splits[i]) : int(self.row_splits[i + 1])]

    def to_lists(self) -> list[list[int]]:
        """One list a row."""
        values, borders = self.values.tolist(), self.row_splits.tolist()
        return [values[start:stop] for start, stop in pairwise(borders)]


def distinct_ids(ids: Ids) -> Ids:
    """Each id once, in order.

    Numpy's `unique` has a hash without a key, and ids that are chosen to collide make it quadratic;
    torch's sorts. The same holds for its `isin` and `union1d`.

    >>> distinct_ids(np.array([8, 7, 8])).tolist()
    [7, 8]
    """
    return torch.from_numpy(np.ascontiguousarray(ids)).unique().numpy()


def are_among(ids: Ids, others: Ids) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the ids are among others.

    >>> are_among(np.array([8, 7, 8]), np.array([8, 5])).tolist()
    [True, False, True]
    """
    both = (torch.from_numpy(np.ascontiguousarray(one)) for one in (ids, others))
    return torch.isin(*both).numpy()


def narrowest(many: int) -> torch.dtype:
    """A whole type for so many numbers from 0 on: a sort goes over all bits of its type.

    >>> narrowest(8), narrowest(1000)
    (torch.uint8, torch.int16)
    """
    return torch.uint8 if many <= 2**8 else torch.int16 if many <= 2**15 else torch.int64


def _flat(lists: Sequence[Sequence[Any]], dtype: torch.dtype) -> Tensor:
    """The values of all rows; an error names the first row with a value that `dtype` cannot be."""
    flat = [value for row in lists for value in row]
    # torch makes whole numbers of floats, and a row of the bytes of a bytes object.
    cut = (bytes,) if dtype.is_floating_point or dtype.is_complex else (bytes, float)
    if any(isinstance(value, cut) for value in flat):
        raise _refusal(lists, dtype)
    try:
        return torch.tensor(flat, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _refusal(lists, dtype) from error


def _refusal(lists: Sequence[Sequence[Any]], dtype: torch.dtype) -> HedgerowError:
    """The error that names the first value which `dtype` does not hold."""
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
