"""Plain torch twins of the kernels of one table: verbs, update rules and admission.

They say what a kernel must give. Only where a new id is put may differ: many programs insert at
once, the twin one id after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from hedgerow.core.hashing import signed64
from hedgerow.core.shapes import Bool, Float32, Int64
from hedgerow.kernels.layout import (
    EMPTY,
    ERASED,
    HOME_LANES,
    KEYS,
    LANES,
    NEWBORN,
    NO_STEP,
    PIECE,
    SETTINGS,
    TAKEN,
    TIMES,
    Arrays,
    Cells,
    FirstValues,
    Grouped,
    RowSegment,
    mix_of,
    mixed,
)

LEAST_RATE = torch.finfo(torch.float32).tiny

Rule = Callable[..., None]
"""Changes a row and its states in place: (row, states, gradient, rate, settings as float64), and
for the rules in `FOLLOW_STEP` the step."""


def _root(x: Tensor) -> Tensor:
    """Rounded to the nearest, which `torch.sqrt` is not on every processor."""
    return torch.from_numpy(np.sqrt(np.atleast_1d(x.numpy()))).reshape(x.shape)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def _sgd(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    w -= rate * (g + p.float()[0] * w)


def _momentum(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    decay, mu, nesterov = p.float()[:3]
    old = s.clone()
    s.copy_(mu * old - rate * (g + decay * w))
    if rate != 0:
        w += (1 + mu) * s - mu * old if nesterov else s


def _torch_momentum(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    decay, mu, nesterov = p.float()[:3]
    x = g + decay * w
    s.copy_(mu * s + x)
    w -= rate * (x + mu * s if nesterov else s)


def _adagrad(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    decay, epsilon = p.float()[:2]
    x = g + decay * w
    s += x * x
    w -= _ratio(rate * x, _root(s) + epsilon)


def _row_adagrad(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    decay, epsilon = p.float()[:2]
    x = g + decay * w
    s += (x * x).sum() / len(w)
    w -= _ratio(rate, _root(s) + epsilon) * x


def _adam(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    beta1, rest1, beta2, rest2, epsilon, decay, nesterov = p.float()[:7]
    m, v, powers = s[: len(w)], s[len(w) : -2], s[-2:]
    alpha = rate * _root(1 - powers[1]) / (1 - powers[0])
    x = g + decay * w
    m += (x - m) * rest1
    v += (x * x - v) * rest2
    w -= _ratio(alpha * (rest1 * x + beta1 * m if nesterov else m), _root(v) + epsilon)
    powers *= torch.stack([beta1, beta2])


def _corrections(p: Tensor, count: Tensor, *, by_row: bool) -> tuple[Tensor, Tensor]:
    first, root = 1 - p[0] ** count.double(), _root(1 - p[2] ** count.double())
    sparse = (p[7] == 2) & (not by_row)
    of_rate, of_root = torch.where(sparse, root, 1.0) / first, torch.where(sparse, 1.0, 1 / root)
    return of_rate.float(), of_root.float()


def _torch_adam(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor, step: int) -> None:
    _, rest1, beta2, rest2, epsilon, decay, decoupled, counted = p.float()[:8]
    m, v, count = s[: len(w)], s[len(w) : -1], s[-1:]
    count += 1
    by_row = bool(counted == 0) or step == NO_STEP
    number = count if by_row else torch.tensor([step + 1])
    first, second = _corrections(p, number, by_row=by_row)
    x = g + (0.0 if decoupled else decay) * w
    m += (x - m) * rest1
    v.copy_(v * beta2 + rest2 * (x * x))
    shrink = 1 - rate * decay if decoupled else 1.0
    w.copy_(w * shrink - _ratio((rate * first) * m, _root(v) * second + epsilon))


def _dense_adam(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor, step: int) -> None:
    """The updates without a gradient one after the other, in float64."""
    beta1, beta2, epsilon, decay = (float(p[k]) for k in (0, 2, 4, 5))
    m, v, count = s[: len(w)], s[len(w) : -2], torch.zeros(1)
    number = s[-2:].numpy().view(np.int64)
    last = int(number[0])
    pace, shrink = float(rate), 1 - float(rate) * decay
    if 0 < last < step:
        wide, first, root = w.double(), m.double(), v.double().sqrt()
        for t in range(last + 1, step + 1):
            first, root = first * beta1, root * beta2**0.5
            under = root / (1 - beta2**t) ** 0.5 + epsilon
            wide = wide * shrink - pace / (1 - beta1**t) * torch.where(under == 0, 0, first / under)
        w.copy_(wide)
        m *= beta1 ** (step - last)
        v *= beta2 ** (step - last)
    number[0] = max(last, step + 1)
    moments = torch.cat([m, v, count])
    p = p[:8].clone()
    p[6] = 1.0  # its decay is apart from the gradient
    _torch_adam(w, moments, g, rate, p, step)
    s[:-2] = moments[:-1]


def _ftrl(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    if rate < LEAST_RATE:
        return
    beta, l1, l2 = p.float()[:3]
    norm, zero = s[: len(w)], s[len(w) :]
    grown = norm + g * g
    zero += g - (_root(grown) - _root(norm)) / rate * w
    norm.copy_(grown)
    moved = _ratio(rate * (torch.where(zero < 0, -l1, l1) - zero), _root(grown) + beta + l2 * rate)
    w.copy_(torch.where(zero.abs() <= l1, 0.0, moved))


def _rmsprop(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    wide = w.double()
    x = g + p[0] * wide
    s.copy_(p[1] * s.double() + p[2] * (x * x))
    w.copy_(wide - rate.double() / (_root(s.double()) + 1.0) * x)


def _torch_rmsprop(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    alpha, rest, epsilon, decay, mu = p.float()[:5]
    square, buffer = s[: len(w)], s[len(w) :]
    x = g + decay * w
    square.copy_(square * alpha + rest * (x * x))
    move = _ratio(x, _root(square) + epsilon)
    if len(buffer):
        move = mu * buffer + move
        buffer.copy_(move)
    w -= rate * move


# The rule, its states a value, its states a row.
RULES: dict[str, tuple[Rule, int, int]] = {
    "sgd": (_sgd, 0, 0),
    "momentum": (_momentum, 1, 0),
    "torch_momentum": (_torch_momentum, 1, 0),
    "adagrad": (_adagrad, 1, 0),
    "row_adagrad": (_row_adagrad, 0, 1),
    "adam": (_adam, 2, 2),
    "torch_adam": (_torch_adam, 2, 1),
    "dense_adam": (_dense_adam, 2, 2),
    "ftrl": (_ftrl, 2, 0),
    "rmsprop": (_rmsprop, 1, 0),
    "torch_rmsprop": (_torch_rmsprop, 1, 0),
    "torch_rmsprop_momentum": (_torch_rmsprop, 2, 0),
}


FOLLOW_STEP = {"torch_adam", "dense_adam"}


def step(
    row: Tensor, grad: Tensor, part: RowSegment, rate: float, *, new: bool, at_step: int = NO_STEP
) -> None:
    """One step on a part of a whole row, in place; the states of a new one start."""
    rule, by_value, by_row = RULES[part.rule]
    states = row[part.state : part.state + by_value * part.dim + by_row]
    numbers = part.numbers.cpu()
    if new:
        starts = numbers[SETTINGS:].float()
        states[: by_value * part.dim] = starts[:by_value].repeat_interleave(part.dim)
        states[by_value * part.dim :] = starts[by_value : by_value + by_row]
    w = row[part.start : part.start + part.dim]
    more = (at_step,) if part.rule in FOLLOW_STEP else ()
    rule(w, states, grad, torch.tensor(rate), numbers, *more)


_LOW = 2**32 - 1


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & (2 ** (64 - bits) - 1)  # the mask makes the signed shift a logical one


def place(
    ids: Int64[Tensor, "n"], buckets: int, slot_key: int = 0
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """The first and second bucket of each id."""
    return place_by(ids, buckets, mix_of(slot_key))


def place_by(
    ids: Int64[Tensor, "n"], buckets: int, mix: tuple[int, int, int]
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """`place` by the words of a slot key, as a table has them."""
    words = [signed64(mixed(id_ % 2**64, *mix)) for id_ in ids.tolist()]
    hashed = torch.tensor(words, dtype=torch.int64)
    first = _shifted(_shifted(hashed, 32) * buckets, 32)
    second = _shifted((hashed & _LOW) * buckets, 32)
    return first, torch.where(second == first, (first + 1) % buckets, second)


def places_of(table: Arrays, id_: int) -> list[int]:
    """The slots an id may have, in the order in which they are taken."""
    if id_ in (EMPTY, ERASED):
        return [table.buckets * LANES + (id_ == ERASED)]
    first, second = (
        int(b) * LANES for b in place_by(torch.tensor([id_]), table.buckets, table.mix())
    )
    homes = [bucket + lane for bucket in (first, second) for lane in range(HOME_LANES)]
    return homes + [
        bucket + lane for lane in range(HOME_LANES, LANES) for bucket in (first, second)
    ]


def key_at(table: Arrays, slot: int) -> int:
    return int(table.index[slot // LANES, KEYS, slot % LANES])


def put_word(table: Arrays, line: int, slot: int, word: int) -> None:
    table.index[slot // LANES, line, slot % LANES] = word


def find_one(table: Arrays, id_: int) -> int:
    sought = TAKEN if id_ in (EMPTY, ERASED) else id_
    return next((s for s in places_of(table, id_) if key_at(table, s) == sought), -1)


def find(
    table: Arrays, ids: Int64[Tensor, "n"], used: Int64[Tensor, "1"] | None = None
) -> Int64[Tensor, "n"]:
    """The slot of each id; -1 where there is none, and from `used` on."""
    live = len(ids) if used is None else int(used)
    found = [find_one(table, id_) if i < live else -1 for i, id_ in enumerate(ids.tolist())]
    return torch.tensor(found, dtype=torch.int64)


def insert_one(table: Arrays, id_: int) -> tuple[int, bool]:
    slot = find_one(table, id_)
    if slot >= 0:
        return slot, False
    free = [s for s in places_of(table, id_) if key_at(table, s) in (EMPTY, ERASED)]
    if not free:
        return -1, False
    put_word(table, KEYS, free[0], TAKEN if id_ in (EMPTY, ERASED) else id_)
    return free[0], True


def find_or_insert(
    table: Arrays, ids: Int64[Tensor, "n"], wanted: Bool[Tensor, "n"] | None = None
) -> tuple[Int64[Tensor, "n"], Bool[Tensor, "n"]]:
    """The slot of each id, -1 = no room, and whether this occurrence took it. Rows are not set."""
    asked = [True] * len(ids) if wanted is None else wanted.tolist()
    taken = [
        insert_one(table, id_) if ask else (-1, False)
        for id_, ask in zip(ids.tolist(), asked, strict=True)
    ]
    slots = torch.tensor([slot for slot, _ in taken], dtype=torch.int64)
    return slots, torch.tensor([new for _, new in taken], dtype=torch.bool)


def erase(
    table: Arrays, grouped: Grouped, used: Int64[Tensor, "1"] | None = None
) -> Bool[Tensor, "n"]:
    """Takes the rows of these ids out and says which were there; of equal ids the first was."""
    erased = torch.zeros(len(grouped.ids), dtype=torch.bool)
    for _, id_, sources in groups_of(grouped, used):
        slot = find_one(table, id_)
        if slot >= 0:
            put_word(table, KEYS, slot, EMPTY if id_ in (EMPTY, ERASED) else ERASED)
            table.index[slot // LANES, KEYS + 1 :, slot % LANES] = NEWBORN
            erased[sources[0]] = True
    return erased


def _words(ids: Tensor, block: Tensor, seed: int, attempt: int) -> list[Tensor]:
    """Philox4x32-10 at (id, block, attempt); four words for every id and block."""
    zero = torch.zeros(len(ids), len(block), dtype=torch.int64)
    return philox(zero + ids[:, None], zero + block, zero + (attempt << 4), seed)


def philox(ids: Tensor, c2: Tensor, c3: Tensor, seed: int) -> list[Tensor]:
    """Four words of Philox4x32-10 at a counter of an id and two words of 32 bits."""
    c0, c1 = ids & _LOW, _shifted(ids, 32)
    k0, k1 = seed & _LOW, seed >> 32
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = _shifted(right, 32) ^ c1 ^ k0, right & _LOW
        c2, c3 = _shifted(left, 32) ^ c3 ^ k1, left & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return [c0, c1, c2, c3]


def _bell(ids: Tensor, dim: int, seed: int, attempt: int) -> Tensor:
    columns = torch.arange(dim)
    words = [w for b in range(3) for w in _words(ids, 3 * columns + b, seed, attempt)]
    total = torch.stack([w >> 8 for w in words]).sum(0)
    return (total - 6 * 2**24).float() * 2.0**-24


def first_values(
    ids: Int64[Tensor, "n"], dim: int, first: FirstValues, start: int = 0
) -> Float32[Tensor, "n dim"]:
    """The rows that `ids` are born with, from column `start` on."""
    return _whole_first_values(ids, start + dim, first)[:, start:].contiguous()


def _whole_first_values(ids: Tensor, dim: int, first: FirstValues) -> Tensor:
    a, scale = torch.tensor([first.a, first.scale])
    if first.kind == "constant":
        return a.expand(len(ids), dim).contiguous()
    if first.kind == "uniform":
        words = _words(ids, torch.arange(-(-dim // 4)), first.seed, 0)
        word = torch.stack(words, dim=2).flatten(1)[:, :dim]
        return a + (word >> 8).float() * 2.0**-24 * scale
    z = _bell(ids, dim, first.seed, 0)
    if first.kind == "truncated_normal":
        for attempt in range(1, 16):
            z = torch.where(z.abs() > 2, _bell(ids, dim, first.seed, attempt), z)
        z = z.clamp(-2, 2)
    return a + scale * z


def gather(
    table: Arrays, slots: Int64[Tensor, "n"], states: int | None = None
) -> Float32[Tensor, "n width"]:
    """The rows in `slots`, or so many floats behind them; zeros for -1."""
    columns = slice(0, table.dim) if states is None else slice(table.dim, table.dim + states)
    rows = table.values[slots.clamp(min=0), columns]
    return torch.where((slots >= 0)[:, None], rows, 0.0)


def read(table: Arrays, slots: Int64[Tensor, "n"], out: Float32[Tensor, "n dim"]) -> None:
    """`gather` into `out`."""
    out.copy_(gather(table, slots))


def lookup(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    out: Float32[Tensor, "n dim"],
    parts: Sequence[RowSegment] = (),
    used: Int64[Tensor, "1"] | None = None,
) -> Int64[Tensor, "n"]:
    """Rows of `ids` into `out`, and their slots, -1 = absent."""
    slots = find(table, ids, used)
    rows = gather(table, slots)
    live = len(ids) if used is None else int(used)
    absent = (slots < 0) & (torch.arange(len(ids)) < live)
    if parts:
        rows = torch.where(absent[:, None], born_rows(ids, parts), rows)
    out.copy_(rows)
    return slots


def born_rows(ids: Tensor, parts: Sequence[RowSegment]) -> Tensor:
    return torch.cat([first_values(ids, p.dim, p.first, p.start) for p in parts], dim=1)


def groups_of(grouped: Grouped, used: Tensor | None) -> list[tuple[int, int, list[int]]]:
    """Position of the first occurrence, id, and sources of the occurrences that count."""
    live = len(grouped.ids) if used is None else int(used)
    order = torch.arange(len(grouped.ids)) if grouped.order is None else grouped.order
    groups: dict[int, tuple[int, int, list[int]]] = {}
    for at, (id_, source) in enumerate(zip(grouped.ids.tolist(), order.tolist(), strict=True)):
        if source < live:
            groups.setdefault(id_, (at, id_, []))[2].append(source)
    return list(groups.values())


def in_order(parts: list[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _pieces(grads: Tensor, sources: list[int]) -> list[Tensor]:
    cuts = [sources[at : at + PIECE] for at in range(0, len(sources), PIECE)]
    return [in_order([grads[source] for source in cut]) for cut in cuts]


def _summed(grads: Tensor, sources: list[int]) -> Tensor:
    return in_order(_pieces(grads, sources))


def sum_pieces(
    grouped: Grouped, grads: Float32[Tensor, "n dim"], used: Int64[Tensor, "1"] | None = None
) -> tuple[Float32[Tensor, "pieces dim"], Int64[Tensor, "pieces"]]:
    """Sum and size of the pieces after the first, each at its grouped position // PIECE."""
    pieces = -(-len(grads) // PIECE)
    sums, counts = torch.zeros(pieces, grads.shape[1]), torch.zeros(pieces, dtype=torch.int64)
    for at, _, sources in groups_of(grouped, used):
        for k, piece in list(enumerate(_pieces(grads, sources)))[1:]:
            sums[at // PIECE + k] = piece
            counts[at // PIECE + k] = min(PIECE, len(sources) - k * PIECE)
    return sums, counts


def sum_gradients(
    grouped: Grouped, grads: Float32[Tensor, "n dim"], used: Int64[Tensor, "1"] | None = None
) -> tuple[Float32[Tensor, "n dim"], Int64[Tensor, "n"]]:
    """Sum and occurrences of each id, at the position where its group begins; zeros elsewhere."""
    sums, counts = torch.zeros_like(grads), torch.zeros_like(grouped.ids)
    for at, _, sources in groups_of(grouped, used):
        sums[at], counts[at] = _summed(grads, sources), len(sources)
    return sums, counts


def apply(
    table: Arrays,
    grouped: Grouped,
    grads: Float32[Tensor, "n dim"],
    counts: Int64[Tensor, "3"],
    parts: Sequence[RowSegment],
    rates: Sequence[float],
    now: int,
    slots: Int64[Tensor, "n"] | None = None,
    used: Int64[Tensor, "1"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
    *,
    stamp: bool = True,
    at_step: int = NO_STEP,
) -> None:
    """One step for each id with its summed gradient; adds to `counts` as `Applied` has them."""
    told = torch.empty_like(grouped.ids) if placed is None else placed
    told.fill_(-1)
    for at, id_, sources in groups_of(grouped, used):
        total = _summed(grads, sources)
        if not bool(total.isfinite().all()):
            counts[2] += len(sources)
            continue
        known = -1 if slots is None else int(slots[sources[0]])
        slot, new = (known, False) if known >= 0 else insert_one(table, id_)
        counts += torch.tensor([new, slot < 0, 0])
        told[at] = slot
        if slot < 0:
            continue
        row = table.values[slot]
        if new:
            row[: table.dim] = born_rows(torch.tensor([id_]), parts)[0]
        for part, rate in zip(parts, rates, strict=True):
            step(
                row, total[part.start : part.start + part.dim], part, rate, new=new, at_step=at_step
            )
        if stamp or new:
            put_word(table, TIMES, slot, now)


def assign(
    table: Arrays,
    grouped: Grouped,
    rows: Float32[Tensor, "n dim"],
    usable: Bool[Tensor, "n"],
    starts: Float32[Tensor, "states"],
    counts: Int64[Tensor, "3"],
    now: int,
    used: Int64[Tensor, "1"] | None = None,
    states: Float32[Tensor, "n states"] | None = None,
    stamps: Int64[Tensor, "n"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
) -> None:
    """Puts each id's last row that is `usable`; adds to `counts` as `Applied` has them."""
    told = torch.empty_like(grouped.ids) if placed is None else placed
    told.fill_(-1)
    for at, id_, sources in groups_of(grouped, used):
        good = [source for source in sources if bool(usable[source])]
        slot, new = insert_one(table, id_) if good else (-1, False)
        counts += torch.tensor([new, bool(good) and slot < 0, len(sources) - len(good)])
        told[at] = slot
        if slot >= 0:
            table.values[slot, : table.dim] = rows[good[-1]]
            if new or states is not None:
                given = starts if states is None else states[good[-1]]
                table.values[slot, table.dim : table.dim + len(starts)] = given
            put_word(table, TIMES, slot, now if stamps is None else int(stamps[good[-1]]))


_ALL = 2**64 - 1


def _places(filter: Cells, id_: int, salt: int) -> tuple[list[int], int]:
    """The cells an id may have, in the order in which they are taken, and its label."""
    add, by_1, by_2 = (word & _ALL for word in filter.state[3:].tolist())
    hashed = mixed((id_ ^ salt) & _ALL, add, by_1, by_2)
    first = (hashed >> 32) * filter.homes >> 32
    second = (hashed & (2**32 - 1)) * filter.homes >> 32
    if second == first:
        second = (first + 1) % filter.homes
    homes = [first * LANES, second * LANES]
    places = [home + lane for home in homes for lane in range(HOME_LANES)]
    places += [home + lane for lane in range(HOME_LANES, LANES) for home in homes]
    return places, mixed(hashed) >> 24


def _find(filter: Cells, id_: int, salt: int) -> tuple[int, int, bool]:
    """The cell of an id or the one it would take (-1: none), its count, and if it is its own."""
    places, label = _places(filter, id_, salt)
    turn, free = int(filter.state[0]), -1
    for place in places:
        cell = int(filter.cells[place]) & _ALL
        alive = cell & 0xFF and (turn - (cell >> 8)) & 0xFFFF <= filter.kept
        if alive and cell >> 24 == label:
            return place, cell & 0xFF, True
        if not alive and free < 0:
            free = place
    return free, 0, False


def counts_of(
    filter: Cells, ids: Int64[Tensor, "n"], asked: Bool[Tensor, "n"], salt: int
) -> Int64[Tensor, "n"]:
    """How often each asked id was counted; 0 for the others."""
    pairs = zip(ids.tolist(), asked.tolist(), strict=True)
    counts = [_find(filter, id_, salt)[1] if ask else 0 for id_, ask in pairs]
    return torch.tensor(counts, dtype=torch.int64)


def add_counts(
    filter: Cells,
    ids: Int64[Tensor, "n"],
    asked: Bool[Tensor, "n"],
    added: Int64[Tensor, "n"],
    salt: int,
) -> Bool[Tensor, "n"]:
    """Counts each asked id, which must differ, `added` times more; False where it has no cell."""
    stored = torch.zeros(len(ids), dtype=torch.bool)
    for i, (id_, more) in enumerate(zip(ids.tolist(), added.tolist(), strict=True)):
        if not bool(asked[i]):
            continue
        place, before, own = _find(filter, id_, salt)
        if place < 0:
            filter.state[2] += 1
            continue
        turn = int(filter.state[0]) & 0xFFFF
        present = own and (int(filter.cells[place]) >> 8) & 0xFFFF == turn
        filter.state[1] += not present
        count = min(filter.most, before + min(more, filter.most))
        cell = _places(filter, id_, salt)[1] << 24 | turn << 8 | count
        filter.cells[place] = signed64(cell)
        stored[i] = True
    return stored


def draws(
    ids: Int64[Tensor, "n"], numbers: Int64[Tensor, "n"], seed: int, step: int
) -> Float32[Tensor, "n"]:
    """A number in [0, 1) for every id and its `numbers`-th question at this step."""
    tag = torch.full_like(ids, (2 | step << 8) & 0xFFFFFFFF)
    return (philox(ids, numbers, tag, seed)[0] >> 8).float() * 2.0**-24


def exchange(
    table: Arrays, ids: Int64[Tensor, "n"], rows: Float32[Tensor, "n width"]
) -> tuple[Int64[Tensor, "n"], Bool[Tensor, "n"]]:
    """`find_or_insert` of different ids with their rows: new ones get them, others give theirs."""
    slots, new = find_or_insert(table, ids)
    held, width = ~new & (slots >= 0), rows.shape[1]
    table.values[slots[new], :width] = rows[new]
    rows[held] = table.values[slots[held], :width]
    return slots, new


def assign_add(
    table: Arrays,
    grouped: Grouped,
    rows: Float32[Tensor, "n dim"],
    usable: Bool[Tensor, "n"],
    begun: Float32[Tensor, "n dim"],
    starts: Float32[Tensor, "states"],
    counts: Int64[Tensor, "3"],
    now: int,
    used: Int64[Tensor, "1"] | None = None,
    placed: Int64[Tensor, "n"] | None = None,
) -> None:
    """Adds the `usable` rows of each id to what it has; adds to `counts` as `Applied` has them."""
    told = torch.empty_like(grouped.ids) if placed is None else placed
    told.fill_(-1)
    for at, id_, sources in groups_of(grouped, used):
        good = [source for source in sources if bool(usable[source])]
        total = begun[at].clone()
        for source in good:
            total += rows[source]
        if not good or not bool(total.isfinite().all()):
            counts[2] += len(sources)
            continue
        told[at], new = insert_one(table, id_)
        slot = int(told[at])
        counts += torch.tensor([new, slot < 0, len(sources) - len(good)])
        if slot >= 0:
            table.values[slot, : table.dim] = total
            put_word(table, TIMES, slot, now)
            if new:
                table.values[slot, table.dim : table.dim + len(starts)] = starts


def apply_each(
    table: Arrays,
    grouped: Grouped,
    taking: Bool[Tensor, "n"],
    grads: Float32[Tensor, "n dim"],
    slots: Int64[Tensor, "n"],
    born: Bool[Tensor, "n"],
    parts: Sequence[RowSegment],
    rates: Sequence[float],
    now: int,
    at_step: int = NO_STEP,
) -> None:
    """A step for every grouped occurrence that is `taking`."""
    order = grouped.order if grouped.order is not None else torch.arange(len(grouped.ids))
    for at in (slots >= 0).nonzero()[:, 0].tolist():
        slot, id_ = int(slots[at]), int(grouped.ids[at])
        row, new = table.values[slot], bool(born[at])
        if new:
            row[: table.dim] = born_rows(grouped.ids[at : at + 1], parts)[0]
        same = (grouped.ids == id_) & (torch.arange(len(grouped.ids)) >= at) & taking
        for i in same.nonzero()[:, 0].tolist():
            for part, rate in zip(parts, rates, strict=True):
                grad = grads[int(order[i]), part.start : part.start + part.dim]
                step(row, grad, part, rate, new=new, at_step=at_step)
            new = False
        put_word(table, TIMES, slot, now)


__all__ = [
    "add_counts",
    "apply",
    "apply_each",
    "assign",
    "assign_add",
    "counts_of",
    "draws",
    "erase",
    "exchange",
    "find",
    "find_or_insert",
    "first_values",
    "gather",
    "lookup",
    "place",
    "read",
    "sum_gradients",
    "sum_pieces",
]
