"""Compressed formats of serving rows, and what a training lookup shows of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import ConfigError
from ..core.records import Record
from ..core.shapes import Float32


class Compressor(Record):
    """Base of every compressor.

    Two of them affect training: with `FixedR8`, a lookup returns the rounded value; with `OneBit`,
    it returns a smooth step function, and the gradient passes through that function.
    """

    stored_dtype: ClassVar[torch.dtype] = torch.float32
    depends_on_step: ClassVar[bool] = False

    @property
    def bytes_per_value(self) -> int:
        """The bytes of one value in a serving row."""
        return self.stored_dtype.itemsize

    def codec(self) -> native.Codec:
        """Returns the core's codec."""
        return native.Codec(self.kind)

    def encode(self, values: Float32[Tensor, "..."]) -> Tensor:
        """Returns the codes of `values`.

        >>> FixedR8(1.0).encode(torch.tensor([0.5, -2.0])).tolist()
        [64, -128]
        """
        values = _contiguous(values)
        out = torch.empty(values.shape, dtype=self.stored_dtype)
        self.codec().encode(values.data_ptr(), values.numel(), out.data_ptr())
        return out

    def decode(self, codes: Tensor) -> Float32[Tensor, "..."]:
        """Returns the values of `codes`."""
        if codes.dtype != self.stored_dtype:
            raise ConfigError(f"codes are {codes.dtype}; {self.kind} stores {self.stored_dtype}.")
        codes = codes.contiguous()
        out = torch.empty(codes.shape, dtype=torch.float32)
        self.codec().decode(codes.data_ptr(), codes.numel(), out.data_ptr())
        return out

    def view(self, values: Float32[Tensor, "..."], step: int = 0) -> Float32[Tensor, "..."]:
        """Returns what a training lookup at `step` gives for a stored row."""
        values = _contiguous(values)
        out = torch.empty_like(values)
        step = checks.count("step", step)
        self.codec().view_forward(step, values.data_ptr(), values.numel(), out.data_ptr())
        return out

    def view_gradient(
        self, values: Float32[Tensor, "..."], grad: Float32[Tensor, "..."], step: int = 0
    ) -> Float32[Tensor, "..."]:
        """Returns the gradient of the stored row from that of its view; `grad` is not changed."""
        values, grad = _contiguous(values), _contiguous(grad)
        checks.tensor("grad", grad, torch.float32, tuple(values.shape))
        out = torch.empty_like(grad)
        self.codec().view_backward(
            checks.count("step", step),
            values.data_ptr(),
            grad.data_ptr(),
            values.numel(),
            out.data_ptr(),
        )
        return out


def _contiguous(values: Tensor) -> Tensor:
    values = values.contiguous()
    checks.tensor("values", values, torch.float32, (None,) * values.dim())
    return values


@dataclass(frozen=True)
class Fp32(Compressor):
    """Four bytes per value, uncompressed."""

    kind = "fp32"


@dataclass(frozen=True)
class Fp16(Compressor):
    """IEEE half precision, rounded to nearest, ties to even; values above 65504 become infinite."""

    kind = "fp16"
    stored_dtype = torch.float16


@dataclass(frozen=True)
class Bf16(Compressor):
    """bfloat16: half the bytes of fp32, with the same range."""

    kind = "bf16"
    stored_dtype = torch.bfloat16


@dataclass(frozen=True)
class FixedR8(Compressor):
    """One byte per value, in steps of range / 128, clamped at the ends.

    >>> FixedR8(5.0).view(torch.tensor([0.0625, 100.0])).tolist()
    [0.078125, 4.9609375]
    """

    kind = "fixed_r8"
    stored_dtype = torch.int8
    range: float = 1.0

    def __post_init__(self) -> None:
        checks.setting("FixedR8", "range", self.range, least=1e-30)  # range / 128 is a float too

    def codec(self) -> native.Codec:
        """Returns the core's codec with its range."""
        return native.Codec(self.kind, range=self.range)


@dataclass(frozen=True)
class OneBit(Compressor):
    """Stores the sign, as plus or minus `amplitude`.

    In training, a tanh that steepens with the step. The slope of the tanh is init_scale * sqrt(1 +
    0.005 step), at most `max_scale`. It changes only at multiples of `step_size`.
    """

    kind = "one_bit"
    stored_dtype = torch.int8
    depends_on_step = True
    step_size: int = 200
    init_scale: float = 1.0
    max_scale: float = 10000.0
    amplitude: float = 0.1

    def __post_init__(self) -> None:
        checks.whole("OneBit", "step_size", self.step_size, least=1)
        for name in ("init_scale", "max_scale", "amplitude"):
            checks.setting("OneBit", name, getattr(self, name), above=0)

    def codec(self) -> native.Codec:
        """Returns the core's codec with its scales."""
        return native.Codec(
            self.kind,
            amplitude=self.amplitude,
            step_size=self.step_size,
            init_scale=self.init_scale,
            max_scale=self.max_scale,
        )
