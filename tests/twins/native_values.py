"""Plain twins of the core's functions on values and bytes: draws, codecs, update rules.

Each takes a row segment `w`, its state floats `s`, a gradient `g`, the rate, the step (`NO_STEP` if
there is none) and the settings `p`, and changes `w` and `s` in place.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.core.hashing import xxh64
from hedgerow.core.protobuf import BYTES, VARINT, ProtobufReader, WireError

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


_AnyFloats = NDArray[np.floating[Any]]  # what numpy's types make of float32 arithmetic
RuleFunction = Callable[[Floats, Floats, Floats, np.float32, int, list[float]], None]
NO_STEP = -1
_BY_ROW, _BY_STEP_SPARSE = 0, 2
_LEAST_RATE = np.finfo(np.float32).smallest_normal


def _ratio(numerator: _AnyFloats, denominator: _AnyFloats) -> Floats:
    safe = np.where(denominator == 0, _f32(1), denominator)
    return np.where(denominator == 0, _f32(0), numerator / safe).astype(np.float32)


def _sum_of_squares(x: _AnyFloats) -> np.float32:
    lanes = np.zeros(16, np.float32)
    for i in range(0, len(x), 16):
        part = x[i : i + 16]
        lanes[: len(part)] += part * part
    for width in (8, 4, 2, 1):
        lanes[:width] += lanes[width : 2 * width]
    return lanes[0]


def _sgd(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    w -= rate * (g + _f32(p[0]) * w)


def _adagrad(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    x = g + _f32(p[0]) * w
    s += x * x
    w -= _ratio(rate * x, np.sqrt(s) + _f32(p[1]))


def _row_adagrad(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    x = g + _f32(p[0]) * w
    if p[0] == 0:
        squares = _sum_of_squares(g)
    else:
        squares = _f32(0)
        for i in range(0, len(x), 64):
            squares += _sum_of_squares(x[i : i + 64])
    s[0] += squares / _f32(len(w))
    w -= _ratio(np.array([rate]), np.sqrt(s[:1]) + _f32(p[1]))[0] * x


def _momentum(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    decay, mu, nesterov = _f32(p[0]), _f32(p[1]), p[2] != 0
    old = s.copy()
    s[:] = mu * old - rate * (g + decay * w)
    if rate != 0:
        w += (_f32(1) + mu) * s - mu * old if nesterov else s


def _torch_momentum(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    decay, mu, nesterov = _f32(p[0]), _f32(p[1]), p[2] != 0
    x = g + decay * w
    s[:] = mu * s + x
    w -= rate * (x + mu * s if nesterov else s)


def _adam_with(maximum: bool) -> RuleFunction:
    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        beta1, rest1, beta2, rest2, epsilon, decay = (_f32(v) for v in p[:6])
        d = len(w)
        m, v, powers = s[:d], s[d : 2 * d], s[-2:]
        alpha = rate * np.sqrt(_f32(1) - powers[1]) / (_f32(1) - powers[0])
        x = g + decay * w
        m += (x - m) * rest1
        v += (x * x - v) * rest2
        second = v
        if maximum:
            second = s[2 * d : 3 * d]
            second[:] = np.maximum(second, v)
        first = rest1 * x + beta1 * m if p[6] != 0 else m
        w -= _ratio(alpha * first, np.sqrt(second) + epsilon)
        powers *= np.array([beta1, beta2])

    return rule


def _adam_corrections(
    p: list[float], count: float, *, by_row: bool
) -> tuple[np.float32, np.float32]:
    first, root = 1 - p[0] ** count, np.sqrt(1 - p[2] ** count)
    if p[7] == _BY_STEP_SPARSE and not by_row:
        return _f32(root / first), _f32(1)
    return _f32(1 / first), _f32(1 / root)


def _moments(d: int, s: Floats, maximum: bool) -> tuple[Floats, Floats, Floats]:
    """First, second, and the one that stands under the fraction."""
    return s[:d], s[d : 2 * d], s[2 * d : 3 * d] if maximum else s[d : 2 * d]


def _torch_adam_with(maximum: bool) -> RuleFunction:
    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        _, rest1, beta2, rest2, epsilon, weight_decay = (_f32(v) for v in p[:6])
        decoupled = p[6] != 0
        m, v, square = _moments(len(w), s, maximum)
        count = s[-1:]
        count += _f32(1)
        by_row = p[7] == _BY_ROW or step == NO_STEP
        first, second = _adam_corrections(p, float(count[0]) if by_row else step + 1, by_row=by_row)
        x = g + (_f32(0) if decoupled else weight_decay) * w
        m += (x - m) * rest1
        v[:] = v * beta2 + rest2 * (x * x)
        square[:] = np.maximum(square, v)
        shrink = _f32(1) - rate * weight_decay if decoupled else _f32(1)
        w[:] = w * shrink - _ratio((rate * first) * m, np.sqrt(square) * second + epsilon)

    return rule


def _drift(p: list[float], last: int, missed: int, maximum: bool) -> float:
    """What updates `last` + 1 to `last` + `missed` of dense Adam move a row without gradients by,
    in units of rate * m / root of v: the sum itself."""
    number = last + np.arange(1, missed + 1, dtype=np.float64)
    shrinks = p[0] if maximum else p[0] / np.sqrt(p[2])
    paces = np.sqrt(1 - p[2] ** number) / (1 - p[0] ** number)
    return float((shrinks ** (number - last) * paces).sum())


def _pieces(last: int, step: int) -> list[tuple[int, int]]:
    """The updates from `last` to `step` in pieces of 1, 2, 4, 8, 16 and the rest.

    Each is the number of the update before it and its length.
    """
    found: list[tuple[int, int]] = []
    for length in (1, 2, 4, 8, 16, step):
        if last < step:
            found.append((last, min(length, step - last)))
            last += length
    return found


def _dense_adam_with(maximum: bool) -> RuleFunction:
    plain = _torch_adam_with(maximum)

    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        m, v, square = _moments(len(w), s, maximum)
        number = s[-2:].view(np.int64)
        last = int(number[0])
        for first, missed in _pieces(last, step) if last > 0 else ():
            shrinks = p[0] if maximum else p[0] / np.sqrt(p[2])
            middle = min((missed + 1) / 2, 1 / (1 - shrinks))
            root = 1 if maximum else np.sqrt(p[2])
            epsilon = _f32(p[4] * np.sqrt(1 - p[2] ** (first + middle)) / root**middle)
            fade = 1 - float(rate) * p[5]
            drift = float(rate) * _drift(p, first, missed, maximum)
            moved, shrink = _f32(drift * fade ** (missed - middle)), _f32(fade**missed)
            w[:] = w * shrink - _ratio(moved * m, np.sqrt(square) + epsilon)
            m *= _f32(p[0] ** missed)
            v *= _f32(p[2] ** missed)
        number[0] = max(last, step + 1)
        moments = np.append(s[:-2], _f32(0))
        plain(w, moments, g, rate, step, p)
        s[:-2] = moments[:-1]

    return rule


def _ftrl(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    if rate < _LEAST_RATE:
        return
    beta, l1, l2 = (_f32(v) for v in p)
    d = len(w)
    norm, zero = s[:d], s[d:]
    grown = norm + g * g
    root = np.sqrt(grown)
    zero += g - (root - np.sqrt(norm)) / rate * w
    norm[:] = grown
    shrunk = np.where(zero < 0, -l1, l1) - zero
    moved = _ratio(rate * shrunk, root + beta + l2 * rate)
    w[:] = np.where(np.abs(zero) <= l1, _f32(0), moved)


def _rmsprop_with(mean: bool) -> RuleFunction:
    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        wide = w.astype(np.float64)
        x = g + p[0] * wide
        s[:] = p[1] * s.astype(np.float64) + (p[2] if mean else 1.0) * (x * x)
        w[:] = wide - float(rate) / (np.sqrt(s.astype(np.float64)) + 1.0) * x

    return rule


def _torch_rmsprop_with(buffered: bool) -> RuleFunction:
    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        alpha, rest, epsilon, decay, mu = (_f32(v) for v in p)
        d = len(w)
        x = g + decay * w
        s[:d] = s[:d] * alpha + rest * (x * x)
        move = _ratio(x, np.sqrt(s[:d]) + epsilon)
        if buffered:
            s[d:] = move = mu * s[d:] + move
        w -= rate * move

    return rule


def _decoupled_adagrad(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    s += g * g
    w -= _ratio(rate * g, np.sqrt(s)) + rate * _f32(p[0]) * w


def _adadelta(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    decay, rho, rest, epsilon = (_f32(v) for v in p)
    accum, update = s[: len(w)], s[len(w) :]
    x = g + decay * w
    accum[:] = rho * accum + rest * (x * x)
    u = _ratio(np.sqrt(update + epsilon) * x, np.sqrt(accum + epsilon))
    w -= rate * u
    update[:] = rho * update + rest * (u * u)


def _norm(x: Floats) -> float:
    total = 0.0
    for value in x:
        total += float(value) * float(value)
    return float(np.sqrt(total))


def _group_ftrl(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    if rate < _LEAST_RATE:
        return
    beta, l1, l2 = (_f32(v) for v in p)
    norm, zero = s[: len(w)], s[len(w) :]
    grown = norm + g * g
    zero += g - (np.sqrt(grown) - np.sqrt(norm)) / rate * w
    norm[:] = grown
    group = _norm(zero)
    shrink = _f32(0) if group < l1 or group == 0 else _f32((float(l1) - group) / group)
    w[:] = _ratio(rate * zero * shrink, beta + np.sqrt(norm) + l2 * rate)


def _group_adagrad(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    if rate < _LEAST_RATE:
        return
    beta, l2, decay = (_f32(v) for v in p)
    x = g + decay * w
    s[0] += max(_f32(0), *(x * x))
    divisor = beta + np.sqrt(s[0])
    if divisor == 0:
        return
    alpha = rate / divisor
    z = x - w / alpha
    group = _norm(z)
    shrink = _f32(0) if group < l2 or group == 0 else _f32((group - float(l2)) / group)
    w[:] = -alpha * shrink * z


def _moving_average(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    w[:] = _f32(p[0]) * w + _f32(p[1]) * g


def _batch_softmax(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    last, now = s.view(np.int64), 0 if step == NO_STEP else step
    w[0] = (_f32(1) - rate) * w[0] + rate * _f32(now - int(last[0]))
    last[0] = now


RULES: dict[str, RuleFunction] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row_adagrad": _row_adagrad,
    "momentum": _momentum,
    "torch_momentum": _torch_momentum,
    "adam": _adam_with(maximum=False),
    "amsgrad": _adam_with(maximum=True),
    "torch_adam": _torch_adam_with(maximum=False),
    "torch_amsgrad": _torch_adam_with(maximum=True),
    "dense_adam": _dense_adam_with(maximum=False),
    "dense_amsgrad": _dense_adam_with(maximum=True),
    "ftrl": _ftrl,
    "rmsprop": _rmsprop_with(mean=True),
    "torch_rmsprop": _torch_rmsprop_with(buffered=False),
    "torch_rmsprop_momentum": _torch_rmsprop_with(buffered=True),
    "decoupled_adagrad": _decoupled_adagrad,
    "adadelta": _adadelta,
    "group_ftrl": _group_ftrl,
    "group_adagrad": _group_adagrad,
    "moving_average": _moving_average,
    "rmspropv2": _rmsprop_with(mean=False),
    "batch_softmax": _batch_softmax,
}


PlainInput = tuple[int, tuple[int, ...], int, int]  # dtype, shape, and where its bytes are
PlainRequest = tuple[str, int | None, str, dict[str, PlainInput]]
_MOST_INPUTS, _MOST_DIMS, _LENGTH_BYTES = 256, 8, 5
_PADDINGS = tuple(bytes(n) for n in range(16))  # a client's name of zeros: values stand aligned

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with its bits in reverse


def crc32c(data_at: int, n: int, seed: int) -> int:
    """CRC32C of n bytes that follow bytes with checksum `seed` (0 = none), bit by bit."""
    crc = seed ^ 0xFFFFFFFF
    for byte in at(data_at, n, np.uint8).tolist():
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def hash_strings(data_at: int, offsets_at: int, n: int, seed: int, out_at: int) -> None:
    """XXH64 of n strings; string i is `data[offsets[i]:offsets[i + 1]]`."""
    offsets = at(offsets_at, n + 1, np.int64).tolist()
    out = at(out_at, n, np.uint64)
    data = at(data_at, offsets[-1], np.uint8).tobytes()
    for i in range(n):
        out[i] = xxh64(data[offsets[i] : offsets[i + 1]], seed)


def plain_request(message: bytes) -> PlainRequest | None:
    """Model, version, signature and inputs of a PredictRequest, if its tensors are plain buffers.

    None for any other: one with a field beside these, with one that comes twice, or broken.
    """
    try:
        return _plain_request(message)
    except (WireError, UnicodeDecodeError):
        return None


def _plain_request(message: bytes) -> PlainRequest | None:
    spec, inputs = b"", {}
    seen, paddings = False, 0
    for number, value, at_byte in _fields(message, 0):
        if number == 1 and isinstance(value, bytes) and not seen:
            spec, seen = value, True
        elif number == 2 and isinstance(value, bytes) and len(inputs) < _MOST_INPUTS:
            alias, tensor = _plain_input(value, at_byte)
            if alias in inputs:
                return None
            inputs[alias] = tensor
        elif number == 6 and value in _PADDINGS and paddings < _MOST_INPUTS:
            paddings += 1
        else:
            return None
    if inputs and not any(size for _, _, _, size in inputs.values()):
        return None
    asked = _once(spec, 0, {1: bytes, 2: bytes, 3: bytes})
    version = None
    if 2 in asked:
        version = _signed(_once(asked[2][0], 0, {1: int}).get(1, (0, 0))[0])
    name, signature = asked.get(1, (b"", 0))[0], asked.get(3, (b"", 0))[0]
    return name.decode(), version, signature.decode(), inputs


def _plain_input(entry: bytes, entry_at: int) -> tuple[str, PlainInput]:
    parts = _once(entry, entry_at, {1: bytes, 2: bytes})
    tensor, tensor_at = parts.get(2, (b"", 0))
    fields = _once(tensor, tensor_at, {1: int, 2: bytes, 4: bytes})
    content, content_at = fields.get(4, (b"", 0))
    dims = []
    for number, dim, _ in _fields(fields.get(2, (b"", 0))[0], 0):
        if number != 2 or not isinstance(dim, bytes) or len(dims) == _MOST_DIMS:
            raise WireError("a shape that is not plain")
        dims.append(_signed(_once(dim, 0, {1: int}).get(1, (0, 0))[0]))
    if not content and 0 not in dims:
        raise WireError("a tensor without content")
    number = _signed(fields.get(1, (0, 0))[0])
    return parts.get(1, (b"", 0))[0].decode(), (number, tuple(dims), content_at, len(content))


def _once(message: bytes, start: int, kinds: dict[int, type]) -> dict[int, tuple[Any, int]]:
    """The fields of a message by number, none of them twice, each of its kind, and their places."""
    found: dict[int, tuple[Any, int]] = {}
    for number, value, at_byte in _fields(message, start):
        if number in found or not isinstance(value, kinds.get(number, type(None))):
            raise WireError(f"field {number} is not plain")
        found[number] = (value, at_byte)
    return found


def _fields(message: bytes, start: int) -> Iterator[tuple[int, int | bytes, int]]:
    """Numbers, values, and where the values of a message that begins at `start` stand."""
    reader = ProtobufReader(message)
    while (before := reader.at) < len(message):
        tag = message[before]
        if tag >= 0x80 or tag & 7 not in (VARINT, BYTES):
            raise WireError("a tag that is not plain")
        reader.varint()
        value = reader.bytes() if tag & 7 == BYTES else reader.varint()
        begin = reader.at - (len(value) if isinstance(value, bytes) else 0)
        if isinstance(value, bytes) and begin - before - 1 > _LENGTH_BYTES:
            raise WireError("a length that a parser refuses")
        yield tag >> 3, value, start + begin


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
