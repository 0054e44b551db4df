"""Initial values of rows: functions of (table seed, id, column), equal on every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import ConfigError, InputError
from ..core.records import Record
from ..core.shapes import Float32, Int64


class Initializer(Record):
    """Base of every initializer."""

    native_kind: ClassVar[str] = "constant"

    def parameters(self) -> tuple[float, float]:
        """Returns the core's two numbers: value and 0, low and high, or mean and deviation."""
        raise NotImplementedError

    def rows(
        self, ids: Int64[Tensor, "n"], *, dim: int, seed: int, first_column: int = 0
    ) -> Float32[Tensor, "n dim"]:
        """Returns the initial values of the rows of `ids`. Inserts nothing.

        >>> Uniform(0.3).rows(torch.tensor([5]), dim=2, seed=1).shape
        torch.Size([1, 2])
        """
        checks.tensor("ids", ids, torch.int64, (None,))
        column, dim = checks.count("first_column", first_column), checks.count("dim", dim, least=1)
        if column + dim > checks.MAX_DIM:
            raise InputError(f"columns end at {column + dim}; a row has at most {checks.MAX_DIM}.")
        if not 0 <= seed < 2**64:
            raise InputError(f"seed is {seed}; it must lie in 0..2**64-1.")
        out = torch.empty(len(ids), dim, dtype=torch.float32, device="cpu")
        a, b = self.parameters()
        native.first_values(
            self.native_kind, a, b, seed, ids.data_ptr(), len(ids), column, dim, out.data_ptr()
        )
        return out


@dataclass(frozen=True)
class Zeros(Initializer):
    """All zeros."""

    kind = "zeros"

    def parameters(self) -> tuple[float, float]:
        """Returns (0, 0)."""
        return 0.0, 0.0


@dataclass(frozen=True)
class Ones(Initializer):
    """All ones."""

    kind = "ones"

    def parameters(self) -> tuple[float, float]:
        """Returns (1, 0)."""
        return 1.0, 0.0


@dataclass(frozen=True)
class Constant(Initializer):
    """The same value in every column."""

    kind = "constants"
    constant: float

    def __post_init__(self) -> None:
        checks.setting(type(self).__name__, "constant", self.constant)

    def parameters(self) -> tuple[float, float]:
        """Returns (value, 0)."""
        return self.constant, 0.0


@dataclass(frozen=True)
class BatchSoftmaxInitializer(Constant):
    """The initial value of a `batch_softmax` segment: an interval of at least one step."""

    kind = "batch_softmax_initializer"

    def __post_init__(self) -> None:
        checks.setting(type(self).__name__, "constant", self.constant, least=1)


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform in [-bound, bound).

    >>> Uniform(0.3).parameters()
    (-0.3, 0.3)
    """

    kind = "uniform"
    native_kind = "uniform"
    bound: float = 0.05

    def __post_init__(self) -> None:
        checks.setting("Uniform", "bound", self.bound, least=0, below=checks.LARGEST / 2)

    def parameters(self) -> tuple[float, float]:
        """Returns low and high."""
        return -self.bound, self.bound


@dataclass(frozen=True)
class RandomUniform(Initializer):
    """Monolith's `random_uniform`: uniform in [minval, maxval)."""

    kind = "random_uniform"
    native_kind = "uniform"
    minval: float = -0.05
    maxval: float = 0.05

    def __post_init__(self) -> None:
        checks.setting("RandomUniform", "minval", self.minval)
        checks.setting("RandomUniform", "maxval", self.maxval)
        if self.minval > self.maxval:
            raise ConfigError(f"RandomUniform is [{self.minval}, {self.maxval}); swap the two.")
        checks.setting("RandomUniform", "maxval - minval", self.maxval - self.minval)

    def parameters(self) -> tuple[float, float]:
        """Returns low and high."""
        return self.minval, self.maxval


@dataclass(frozen=True)
class Normal(Initializer):
    """Approximately normal: `mean` and `std` of a sum of twelve uniforms, which lies within 6 std.

    >>> Normal(std=0.01).parameters()
    (0.0, 0.01)
    """

    kind = "normal"
    native_kind = "normal"
    std: float = 0.01
    mean: float = 0.0

    def __post_init__(self) -> None:
        checks.setting(type(self).__name__, "std", self.std, least=0)
        checks.setting(type(self).__name__, "mean", self.mean)

    def parameters(self) -> tuple[float, float]:
        """Returns mean and standard deviation."""
        return self.mean, self.std


@dataclass(frozen=True)
class TruncatedNormal(Normal):
    """`Normal`, redrawn while the value is more than two standard deviations from the mean."""

    kind = "truncated_normal"
    native_kind = "truncated_normal"
