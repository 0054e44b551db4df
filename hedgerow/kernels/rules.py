"""One optimizer step on a block of rows, for each update rule.

A rule takes the rows `w` of a segment, their summed gradients `g` and the rate. It reads and writes
the states behind the rows, and returns the new rows. `rows` holds: the table's values, where the
states of each row begin in them, which rows of the block exist, which of these are new (their
states start from the rule's first values), and the numbers of the rule. These are float64 on the
device: eight settings in the order of the rule, the first value of each state, and for dense Adam
the table of `layout.drifts`. `at_step` is the step of the update, or `NO_STEP`.
"""

from __future__ import annotations

from . import layout
from .toolchain import jit, tl

RULES = frozenset(
    {
        *("sgd", "momentum", "torch_momentum", "adagrad", "row_adagrad", "adam", "torch_adam"),
        *("dense_adam", "ftrl", "rmsprop", "torch_rmsprop", "torch_rmsprop_momentum"),
    }
)
START = tl.constexpr(layout.SETTINGS)
NO_STEP = tl.constexpr(layout.NO_STEP)
BY_STEP_SPARSE = tl.constexpr(2.0)  # the last setting of torch's Adam, see csrc/rules_adam.h
DRIFTS = tl.constexpr(layout.SETTINGS + layout.STARTS)
TABULATED = tl.constexpr(layout.TABULATED_DRIFTS)
LEAST_RATE = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32


@jit
def _number(numbers: tl.tensor, k: tl.constexpr) -> tl.tensor:
    return tl.load(numbers + k).to(tl.float32)


@jit
def _root(x: tl.tensor) -> tl.tensor:
    return tl.sqrt_rn(x)


@jit
def _ratio(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Returns a / b, and 0 where b is 0."""
    nothing = b == 0
    return tl.where(nothing, 0.0, tl.div_rn(a, tl.where(nothing, 1.0, b)))


@jit
def _read(rows: tl.tuple, K: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Returns state number K of each row, which has one number per value."""
    values, at, there, born, numbers = rows
    column = tl.arange(0, COLUMNS)[None, :]
    old = (there & ~born)[:, None] & (column < DIM)
    kept = tl.load(values + at[:, None] + K * DIM + column, mask=old, other=0.0)
    return tl.where(born[:, None], _number(numbers, START + K), kept)


@jit
def _write(
    rows: tl.tuple, state: tl.tensor, K: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    values, at, there, _, _ = rows
    column = tl.arange(0, COLUMNS)[None, :]
    here = there[:, None] & (column < DIM)
    tl.store(values + at[:, None] + K * DIM + column, state, mask=here)


@jit
def _read_one(rows: tl.tuple, PLACE: tl.constexpr, K: tl.constexpr) -> tl.tensor:
    """Returns state number K of each row, a single number PLACE floats into its states."""
    values, at, there, born, numbers = rows
    kept = tl.load(values + at + PLACE, mask=there & ~born, other=0.0)
    return tl.where(born, _number(numbers, START + K), kept)


@jit
def _write_one(rows: tl.tuple, state: tl.tensor, PLACE: tl.constexpr) -> None:
    values, at, there, _, _ = rows
    tl.debug_barrier()  # all warps read the number before any of them writes it
    tl.store(values + at + PLACE, state, mask=there)


@jit
def _sgd(rows: tl.tuple, w: tl.tensor, g: tl.tensor, rate: tl.tensor) -> tl.tensor:
    _, _, _, _, numbers = rows
    return w - rate * (g + _number(numbers, 0) * w)


@jit
def _momentum(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    TORCH: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Momentum. Monolith's buffer includes the rate, torch's does not."""
    _, _, _, _, numbers = rows
    mu, nesterov = _number(numbers, 1), _number(numbers, 2) != 0
    x = g + _number(numbers, 0) * w
    old = _read(rows, 0, DIM, COLUMNS)
    if TORCH:
        new = mu * old + x
        moved = w - rate * tl.where(nesterov, x + mu * new, new)
    else:
        new = mu * old - rate * x
        step = tl.where(nesterov, (1.0 + mu) * new - mu * old, new)
        moved = tl.where(rate != 0, w + step, w)
    _write(rows, new, 0, DIM, COLUMNS)
    return moved


@jit
def _adagrad(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    _, _, _, _, numbers = rows
    x = g + _number(numbers, 0) * w
    squares = _read(rows, 0, DIM, COLUMNS) + x * x
    _write(rows, squares, 0, DIM, COLUMNS)
    return w - _ratio(rate * x, _root(squares) + _number(numbers, 1))


@jit
def _row_adagrad(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """One mean square per row. The squares are summed in another order than in the core."""
    _, _, _, _, numbers = rows
    x = g + _number(numbers, 0) * w
    squares = _read_one(rows, 0, 0)
    inside = tl.arange(0, COLUMNS)[None, :] < DIM
    total = tl.sum(tl.where(inside, x * x, 0.0), axis=1)
    squares = squares + tl.div_rn(total, tl.zeros_like(squares) + DIM)
    _write_one(rows, squares, 0)
    pace = _ratio(tl.zeros_like(squares) + rate, _root(squares) + _number(numbers, 1))
    return w - pace[:, None] * x


@jit
def _adam(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Monolith's Adam: a row stores the powers of its betas. Setting 6 turns on Nesterov."""
    _, _, _, _, numbers = rows
    rest1, rest2 = _number(numbers, 1), _number(numbers, 3)
    x = g + _number(numbers, 5) * w
    m, v = _read(rows, 0, DIM, COLUMNS), _read(rows, 1, DIM, COLUMNS)
    power1 = _read_one(rows, 2 * DIM, 2)
    power2 = _read_one(rows, 2 * DIM + 1, 3)
    m = m + (x - m) * rest1
    _write(rows, m, 0, DIM, COLUMNS)
    v = v + (x * x - v) * rest2
    _write(rows, v, 1, DIM, COLUMNS)
    alpha = tl.div_rn(rate * _root(1.0 - power2), 1.0 - power1)
    _write_one(rows, power1 * _number(numbers, 0), 2 * DIM)
    _write_one(rows, power2 * _number(numbers, 2), 2 * DIM + 1)
    first = tl.where(_number(numbers, 6) != 0, rest1 * x + _number(numbers, 0) * m, m)
    return w - _ratio(alpha[:, None] * first, _root(v) + _number(numbers, 4))


@jit
def _power(base: tl.tensor, count: tl.tensor) -> tl.tensor:
    """Returns base ** count in float64, by squaring."""
    left = count.to(tl.int64)
    result = tl.full(count.shape, 1.0, tl.float64)
    square = tl.zeros_like(result) + base
    while tl.max(left, axis=0) > 0:
        result = tl.where(left % 2 == 1, result * square, result)
        square = square * square
        left = left // 2
    return result


@jit
def _corrections(
    numbers: tl.tensor, count: tl.tensor, by_row: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the factors of the rate and of the root of the second moment at update `count`."""
    first = 1.0 - _power(tl.load(numbers), count)
    root = tl.sqrt(1.0 - _power(tl.load(numbers + 2), count))
    sparse = (tl.load(numbers + 7) == BY_STEP_SPARSE) & ~by_row
    of_rate = tl.where(sparse, root, 1.0) / first
    of_root = tl.where(sparse, 1.0, 1.0 / root)
    return of_rate.to(tl.float32), of_root.to(tl.float32)


@jit
def _torch_adam(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    at_step: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """torch's Adam, and AdamW if setting 6 is on. A row also counts its own steps."""
    _, _, _, _, numbers = rows
    decay, decoupled = _number(numbers, 5), _number(numbers, 6) != 0
    m, v = _read(rows, 0, DIM, COLUMNS), _read(rows, 1, DIM, COLUMNS)
    count = _read_one(rows, 2 * DIM, 2) + 1.0
    _write_one(rows, count, 2 * DIM)
    by_row = (_number(numbers, 7) == 0) | (at_step == NO_STEP)
    number = tl.where(by_row, count.to(tl.int64), at_step + 1)
    first, second = _corrections(numbers, number, by_row)
    x = g + tl.where(decoupled, 0.0, decay) * w
    m = m + (x - m) * _number(numbers, 1)
    _write(rows, m, 0, DIM, COLUMNS)
    v = v * _number(numbers, 2) + _number(numbers, 3) * (x * x)
    _write(rows, v, 1, DIM, COLUMNS)
    shrink = tl.where(decoupled, 1.0 - rate * decay, 1.0)
    move = _ratio((rate * first)[:, None] * m, _root(v) * second[:, None] + _number(numbers, 4))
    return w * shrink - move


@jit
def _drift(numbers: tl.tensor, number: tl.tensor, ratio: tl.tensor) -> tl.tensor:
    """Returns how far all later updates of dense Adam move a row, see csrc/rules_adam.h."""
    known = tl.load(numbers + DRIFTS + tl.minimum(number, TABULATED))
    at = number.to(tl.float64) + 1.0 / (1.0 - ratio)
    first = 1.0 - tl.exp(at * tl.log(tl.load(numbers)))
    root = tl.sqrt(1.0 - tl.exp(at * tl.log(tl.load(numbers + 2))))
    return tl.where(number <= TABULATED, known, ratio / (1.0 - ratio) * root / first)


@jit
def _read_last(rows: tl.tuple, PLACE: tl.constexpr) -> tl.tensor:
    """Returns an int64 stored in two floats, lower half first; 0 for new rows."""
    low = _read_one(rows, PLACE, 2).to(tl.int32, bitcast=True)
    high = _read_one(rows, PLACE + 1, 2).to(tl.int32, bitcast=True)
    return (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)


@jit
def _write_last(rows: tl.tuple, number: tl.tensor, PLACE: tl.constexpr) -> None:
    low, high = number.to(tl.int32), (number >> 32).to(tl.int32)
    _write_one(rows, low.to(tl.float32, bitcast=True), PLACE)
    _write_one(rows, high.to(tl.float32, bitcast=True), PLACE + 1)


@jit
def _made_up(
    numbers: tl.tensor,
    w: tl.tensor,
    m: tl.tensor,
    v: tl.tensor,
    last: tl.tensor,
    missed: tl.tensor,
    pace: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns rows and moments after `missed` updates without a gradient, which follow `last`."""
    beta1, beta2 = tl.load(numbers), tl.load(numbers + 2)
    ratio = beta1 / tl.sqrt(beta2)
    left = _power(ratio, missed) * _drift(numbers, last + missed, ratio)
    drift = tl.where(missed > 0, _drift(numbers, last, ratio) - left, 0.0)
    fade = 1.0 - pace * tl.load(numbers + 5)
    faded = _power(fade, missed).to(tl.float32)[:, None]
    middle = tl.minimum((missed + 1) / 2.0, 1.0 / (1.0 - ratio)).to(tl.float64)
    moved = (pace * drift * tl.exp((missed - middle) * tl.log(fade))).to(tl.float32)[:, None]
    beside = tl.sqrt(1.0 - tl.exp((last + middle) * tl.log(beta2)))
    early = tl.load(numbers + 4) * beside / tl.exp(middle * 0.5 * tl.log(beta2))
    made_up = w * faded - _ratio(moved * m, _root(v) + early.to(tl.float32)[:, None])
    w = tl.where(missed[:, None] > 0, made_up, w)
    m = m * _power(beta1, missed).to(tl.float32)[:, None]
    v = v * _power(beta2, missed).to(tl.float32)[:, None]
    return w, m, v


@jit
def _dense_adam(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    at_step: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """torch's Adam or AdamW on all rows. First performs the missed updates without a gradient."""
    _, _, _, _, numbers = rows
    epsilon = _number(numbers, 4)
    last = _read_last(rows, 2 * DIM)
    _write_last(rows, tl.maximum(last, at_step + 1), 2 * DIM)
    left = tl.where(last > 0, tl.maximum(at_step - last, 0), 0)
    pace = (tl.zeros_like(left).to(tl.float32) + rate).to(tl.float64)
    m, v = _read(rows, 0, DIM, COLUMNS), _read(rows, 1, DIM, COLUMNS)
    at = last
    for piece in tl.static_range(6):  # of 1, 2, 4, 8 and 16 updates, and the others
        missed = tl.minimum(left, 1 << piece) if piece < 5 else left
        w, m, v = _made_up(numbers, w, m, v, at, missed, pace)
        at, left = at + missed, left - missed
    first, second = _corrections(numbers, tl.zeros_like(last) + (at_step + 1), at_step == NO_STEP)
    m = m + (g - m) * _number(numbers, 1)
    _write(rows, m, 0, DIM, COLUMNS)
    v = v * _number(numbers, 2) + _number(numbers, 3) * (g * g)
    _write(rows, v, 1, DIM, COLUMNS)
    move = _ratio((rate * first)[:, None] * m, _root(v) * second[:, None] + epsilon)
    return w * (1.0 - rate * _number(numbers, 5)) - move


@jit
def _ftrl(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """FTRL. A rate of 0 changes no row but initializes the states of new rows."""
    _, _, _, _, numbers = rows
    moves = rate >= LEAST_RATE
    l1 = _number(numbers, 1)
    norm = _read(rows, 0, DIM, COLUMNS)
    zero = _read(rows, 1, DIM, COLUMNS)
    grown = norm + g * g
    root = _root(grown)
    pace = tl.zeros_like(w) + tl.where(moves, rate, 1.0)
    after = zero + (g - tl.div_rn(root - _root(norm), pace) * w)
    _write(rows, tl.where(moves, grown, norm), 0, DIM, COLUMNS)
    _write(rows, tl.where(moves, after, zero), 1, DIM, COLUMNS)
    shrunk = tl.where(after < 0, -l1, l1) - after
    moved = _ratio(rate * shrunk, root + _number(numbers, 0) + _number(numbers, 2) * rate)
    return tl.where(moves, tl.where(tl.abs(after) <= l1, 0.0, moved), w)


@jit
def _rmsprop(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Monolith's RMSProp, in float64, with 1 as epsilon."""
    _, _, _, _, numbers = rows
    wide = w.to(tl.float64)
    x = g.to(tl.float64) + tl.load(numbers) * wide
    n = _read(rows, 0, DIM, COLUMNS).to(tl.float64)
    n = (tl.load(numbers + 1) * n + tl.load(numbers + 2) * (x * x)).to(tl.float32)
    _write(rows, n, 0, DIM, COLUMNS)
    pace = (tl.zeros_like(w) + rate).to(tl.float64)
    return (wide - pace / (tl.sqrt(n.to(tl.float64)) + 1.0) * x).to(tl.float32)


@jit
def _torch_rmsprop(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    BUFFERED: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    _, _, _, _, numbers = rows
    x = g + _number(numbers, 3) * w
    square = _read(rows, 0, DIM, COLUMNS)
    old = _read(rows, 1, DIM, COLUMNS) if BUFFERED else square
    square = square * _number(numbers, 0) + _number(numbers, 1) * (x * x)
    _write(rows, square, 0, DIM, COLUMNS)
    move = _ratio(x, _root(square) + _number(numbers, 2))
    if BUFFERED:
        move = _number(numbers, 4) * old + move
        _write(rows, move, 1, DIM, COLUMNS)
    return w - rate * move


@jit
def stepped(
    rows: tl.tuple,
    w: tl.tensor,
    g: tl.tensor,
    rate: tl.tensor,
    at_step: tl.tensor,
    RULE: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Returns the rows after one step of this rule, and writes their states."""
    if RULE == "sgd":
        return _sgd(rows, w, g, rate)
    elif RULE == "momentum":  # noqa: RET505 (Triton wants every arm)
        return _momentum(rows, w, g, rate, False, DIM, COLUMNS)
    elif RULE == "torch_momentum":
        return _momentum(rows, w, g, rate, True, DIM, COLUMNS)
    elif RULE == "adagrad":
        return _adagrad(rows, w, g, rate, DIM, COLUMNS)
    elif RULE == "row_adagrad":
        return _row_adagrad(rows, w, g, rate, DIM, COLUMNS)
    elif RULE == "adam":
        return _adam(rows, w, g, rate, DIM, COLUMNS)
    elif RULE == "torch_adam":
        return _torch_adam(rows, w, g, rate, at_step, DIM, COLUMNS)
    elif RULE == "dense_adam":
        return _dense_adam(rows, w, g, rate, at_step, DIM, COLUMNS)
    elif RULE == "ftrl":
        return _ftrl(rows, w, g, rate, DIM, COLUMNS)
    elif RULE == "rmsprop":
        return _rmsprop(rows, w, g, rate, DIM, COLUMNS)
    elif RULE == "torch_rmsprop":
        return _torch_rmsprop(rows, w, g, rate, False, DIM, COLUMNS)
    else:
        tl.static_assert(RULE == "torch_rmsprop_momentum")
        return _torch_rmsprop(rows, w, g, rate, True, DIM, COLUMNS)


@jit
def all_finite(rows: tl.tensor) -> tl.tensor:
    """Returns whether each row is finite."""
    return tl.min((tl.abs(rows) < float("inf")).to(tl.int32), axis=1) > 0


@jit
def count_up(
    counts: tl.tensor, inserted: tl.tensor, refused: tl.tensor, dropped: tl.tensor
) -> None:
    """Adds to the counts of `Applied`. Programs with nothing to add skip the atomics."""
    inserted, refused = inserted.to(tl.int64), refused.to(tl.int64)
    born, kept_out, left_out = tl.sum(inserted), tl.sum(refused), tl.sum(dropped)
    if born + kept_out + left_out > 0:
        tl.atomic_add(counts, born, sem="relaxed")
        tl.atomic_add(counts + 1, kept_out, sem="relaxed")
        tl.atomic_add(counts + 2, left_out, sem="relaxed")
