"""Plain numpy twins of the core's functions on values: draws, first values, rounding, codecs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_FIRST_VALUES, _ROUNDING = 0, 1  # streams
_f32 = np.float32


def at(address: int, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """The memory at `address` as an array, without a copy."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    raw = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(raw, dtype).reshape(shape)


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (right >> 32) ^ c1 ^ k0,
            right & 0xFFFFFFFF,
            (left >> 32) ^ c3 ^ k1,
            left & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def _words(seed: int, key: int, block: int, stream: int, attempt: int, step: int) -> list[int]:
    key &= 2**64 - 1
    tag = (stream | attempt << 4 | step << 8) & 0xFFFFFFFF
    counter = (key & 0xFFFFFFFF, key >> 32, block, tag)
    return philox(counter, (seed & 0xFFFFFFFF, seed >> 32))


def _unit(
    seed: int, key: int, column: int, stream: int, number: int = 0, step: int = 0
) -> np.float32:
    block = column // 4 + (number >> 4) * 2**14
    word = _words(seed, key, block, stream, number & 15, step)[column % 4]
    return _f32((word >> 8) * 2.0**-24)


def _bell(seed: int, key: int, column: int, attempt: int) -> np.float32:
    blocks = [_words(seed, key, 3 * column + b, _FIRST_VALUES, attempt, 0) for b in range(3)]
    total = sum(word >> 8 for block in blocks for word in block)
    return _f32(total - 6 * 2**24) * _f32(2.0**-24)


def first_row(kind: str, a: float, b: float, seed: int, key: int, column: int, dim: int) -> Floats:
    """Columns [column, column + dim) of a new row."""
    low, second = _f32(a), _f32(b)
    row = np.empty(dim, np.float32)
    for i in range(dim):
        if kind == "constant":
            row[i] = low
        elif kind == "uniform":
            row[i] = low + _unit(seed, key, column + i, _FIRST_VALUES) * (second - low)
        else:
            z = _bell(seed, key, column + i, 0)
            for attempt in range(1, 16) if kind == "truncated_normal" else ():
                if abs(z) > 2:
                    z = _bell(seed, key, column + i, attempt)
            if kind == "truncated_normal":
                z = np.clip(z, _f32(-2), _f32(2))
            row[i] = low + second * z
    return row


def first_values(
    kind: str,
    a: float,
    b: float,
    seed: int,
    ids_at: int,
    n: int,
    first_column: int,
    dim: int,
    out_at: int,
) -> None:
    """First values of n rows."""
    out = at(out_at, (n, dim), np.float32)
    for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
        out[i] = first_row(kind, a, b, seed, key, first_column, dim)


def half_neighbours(x: float) -> tuple[float, float]:
    """The half values around x; the largest half beyond it."""
    x = float(_f32(x))
    if abs(x) >= 65504:
        return math.copysign(65504, x), math.copysign(65504, x)
    near = np.float16(x)
    if float(near) == x or math.isnan(x):
        return x, x
    toward = np.float16(math.copysign(np.inf, x - float(near)))
    other = float(np.nextafter(near, toward))
    return (float(near), other) if float(near) < x else (other, float(near))


def round_row(
    row: Floats, seed: int, key: int, step: int, number: int, first_column: int
) -> Floats:
    """The row, rounded to half precision at random, up with the chance that makes it unbiased."""
    out = row.copy()
    for i, x in enumerate(row):
        down, up = half_neighbours(float(x))
        out[i] = down
        if down != up:
            draw = _unit(seed, key, first_column + i, _ROUNDING, number, step)
            chance = (x - _f32(down)) / (_f32(up) - _f32(down))
            out[i] = up if draw < chance else down
    return out


def round_to_half(
    seed: int,
    ids_at: int,
    n: int,
    step: int,
    number: int,
    first_column: int,
    dim: int,
    rows_at: int,
) -> None:
    """Rounds n rows in place."""
    rows = at(rows_at, (n, dim), np.float32)
    for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
        rows[i] = round_row(rows[i], seed, key, step, number, first_column)


def first_not_finite(values_at: int, n: int) -> int:
    """Position of the first NaN or infinity, or -1."""
    bad = np.flatnonzero(~np.isfinite(at(values_at, n, np.float32)))
    return int(bad[0]) if len(bad) else -1


def gather(rows_at: int, numbers_at: int, n: int, dim: int, out_at: int) -> None:
    """Rows by number."""
    for out, number in zip(
        at(out_at, (n, dim), np.float32), at(numbers_at, n, np.int64), strict=True
    ):
        out[:] = at(rows_at + 4 * dim * int(number), dim, np.float32)


class Codec:
    """One compressor."""

    _DTYPES: ClassVar = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16}

    def __init__(
        self,
        kind: str,
        range: float = 1.0,
        amplitude: float = 1.0,
        step_size: int = 1,
        init_scale: float = 1.0,
        max_scale: float = 1.0,
    ) -> None:
        self.kind = kind
        self._step = _f32(range) / _f32(128)
        self._amplitude = _f32(amplitude)
        self._scales = (step_size, init_scale, max_scale)
        self.dtype = np.dtype(self._DTYPES.get(kind, np.int8))

    def bytes_per_value(self) -> int:
        """Storage of one value."""
        return self.dtype.itemsize

    def codes(self, x: Floats) -> NDArray[Any]:
        """Codes of values."""
        with np.errstate(all="ignore"):
            if self.kind == "one_bit":
                return np.where(x > 0, 1, -1).astype(np.int8)
            if self.kind == "fixed_r8":
                half = self._step / _f32(2)
                code = np.trunc((x + np.where(x < 0, -half, half)) / self._step)
                return np.nan_to_num(np.clip(code, -128, 127)).astype(np.int8)
            if self.kind == "bf16":
                bits = x.view(np.uint32).astype(np.uint64)
                rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
                return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16)
            return x.astype(self.dtype)

    def values(self, codes: NDArray[Any]) -> Floats:
        """Values of codes."""
        if self.kind == "one_bit":
            return codes.astype(np.float32) * self._amplitude
        if self.kind == "fixed_r8":
            return codes.astype(np.float32) * self._step
        if self.kind == "bf16":
            return (codes.astype(np.uint32) << 16).view(np.float32)
        return codes.astype(np.float32)

    def scale(self, step: int) -> np.float32:
        """The slope of one_bit's tanh at a step."""
        step_size, init_scale, max_scale = self._scales
        reached = step - step % step_size
        return _f32(min(init_scale * math.sqrt(1 + 0.005 * reached), max_scale))

    def view(self, step: int, x: Floats) -> Floats:
        """What a training lookup shows of a row."""
        if self.kind == "fixed_r8":
            return self.values(self.codes(x))
        if self.kind == "one_bit":
            return self._amplitude * np.tanh(self.scale(step) * x)
        return x.copy()

    def view_gradient(self, step: int, x: Floats, g: Floats) -> Floats:
        """Gradient of the row from the gradient of its view."""
        if self.kind != "one_bit":
            return g.copy()
        c = float(self.scale(step))
        with np.errstate(over="ignore"):
            squared = np.cosh(c * x.astype(np.float64)) ** 2
        return (g.astype(np.float64) * float(self._amplitude) * c / squared).astype(np.float32)

    def encode(self, values_at: int, n: int, out_at: int) -> None:
        """Codes of n values."""
        at(out_at, n, self.dtype)[:] = self.codes(at(values_at, n, np.float32))

    def decode(self, stored_at: int, n: int, out_at: int) -> None:
        """Values of n codes."""
        at(out_at, n, np.float32)[:] = self.values(at(stored_at, n, self.dtype))

    def view_forward(self, step: int, values_at: int, n: int, out_at: int) -> None:
        """The view of n values."""
        at(out_at, n, np.float32)[:] = self.view(step, at(values_at, n, np.float32))

    def view_backward(self, step: int, values_at: int, grad_at: int, n: int, out_at: int) -> None:
        """The gradient through the view of n values."""
        x, g = at(values_at, n, np.float32), at(grad_at, n, np.float32)
        at(out_at, n, np.float32)[:] = self.view_gradient(step, x, g)
