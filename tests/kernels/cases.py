"""Tables, ids and checks that the tests of kernels share."""

from __future__ import annotations

import torch
from torch import Tensor

from hedgerow.kernels.incoming_rows import IncomingRows
from hedgerow.kernels.layout import EMPTY, ERASED, KEYS, LANES, TAKEN, TIMES, Arrays, FirstValues
from tests.twins import kernels_table

from ..support import EXTREME_IDS

# The ids that stand for "empty", "erased" and "taken" inside; one with the lower half of "empty".
ODD_IDS = [*EXTREME_IDS, EMPTY, ERASED, TAKEN, EMPTY ^ (1 << 40), 5, -(2**31), 2**32]
UNIFORM = FirstValues("uniform", -0.3, 0.3, seed=2**63 + 12345)
FIRST_VALUES = [
    FirstValues("constant", 0.7, 0.0, seed=1),
    UNIFORM,
    FirstValues("uniform", -0.05, 0.1, seed=7),
    FirstValues("normal", 0.5, 0.1, seed=2**64 - 1),
    FirstValues("truncated_normal", 0.0, 0.1, seed=3),
]


def some_ids(n: int, seed: int, distinct: int | None = None) -> Tensor:
    """Ids on the CPU, the odd ones among them; with repetitions if `distinct` is given."""
    random = torch.Generator().manual_seed(seed)
    pool = torch.randint(-(2**63), 2**63 - 1, (distinct or n,), generator=random)
    odd = torch.tensor(ODD_IDS)[: len(pool)]
    pool[: len(odd)] = odd
    if distinct is None:
        return pool[torch.randperm(n, generator=random)]
    return pool[torch.randint(distinct, (n,), generator=random)]


def values(n: int, dim: int, seed: int) -> Tensor:
    """Numbers of very different size, with both zeros and with denormal ones."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=random)
    x *= torch.exp2(torch.randint(-12, 12, (n, dim), generator=random).float())
    x.view(-1)[::7] = 0.0
    x.view(-1)[3::11] = -0.0
    x.view(-1)[5::13] = 1e-41
    return x


def filled(buckets: int, dim: int, ids: Tensor, seed: int = 1, states: int = 0) -> Arrays:
    """A table on the CPU that holds those of `ids` for which there is room, by the twin."""
    table = Arrays.make(buckets, dim, torch.device("cpu"), states)
    slots, _ = kernels_table.find_or_insert(table, ids)
    table.values[:, :dim] = values(len(table.values), dim, seed)
    table.values[:, dim : dim + states] = values(len(table.values), states, seed + 1).abs() % 0.9
    table.values[table.line(KEYS) == EMPTY] = 0.0
    table.write(TIMES, table.taken().nonzero()[:, 0], 0)
    assert len(slots) == len(ids)
    return table


def moved(table: Arrays, device: torch.device) -> Arrays:
    """A copy elsewhere."""
    pins = None if table.pins is None else table.pins.clone().to(device)
    return Arrays(*(x.clone().to(device) for x in (table.index, table.values)), table.dim, pins)


def same_bits(ours: Tensor, model: Tensor) -> None:
    """Equal shapes and bits, so that 0.0 is not -0.0."""
    ours = ours.cpu()
    assert ours.shape == model.shape
    if ours.dtype == torch.float32:
        ours, model = ours.contiguous().view(torch.int32), model.contiguous().view(torch.int32)
    assert torch.equal(ours, model)


def content(table: Arrays) -> dict[int, tuple[list[int], int]]:
    """All rows by id, states and all, as bits, with their times; no id may stand twice."""
    found: dict[int, tuple[list[int], int]] = {}
    keys, times = table.line(KEYS).tolist(), table.line(TIMES).tolist()
    bits = table.values.view(torch.int32).tolist()
    for slot, key in enumerate(keys):
        if key not in (EMPTY, ERASED):
            own = {table.buckets * LANES: EMPTY, table.buckets * LANES + 1: ERASED}
            id_ = own.get(slot, key)
            assert id_ not in found, f"id {id_} stands in two slots"
            found[id_] = (bits[slot], times[slot])
    return found


def check_placed(table: Arrays, ids: Tensor, slots: Tensor, new: Tensor) -> None:
    """Every id has one slot, among those it may have, or none because all of them are taken."""
    keys, first_slot = table.line(KEYS).cpu(), {}
    born: dict[int, int] = {}
    for id_, slot, is_new in zip(ids.tolist(), slots.tolist(), new.tolist(), strict=True):
        assert first_slot.setdefault(id_, slot) == slot, f"id {id_} was given two slots"
        born[id_] = born.get(id_, 0) + is_new
    content(table)
    for id_, slot in first_slot.items():
        places = kernels_table.places_of(table, id_)
        if slot < 0:
            assert all(int(keys[p]) not in (EMPTY, ERASED, id_) for p in places), f"{id_} had room"
        else:
            assert slot in places
            assert int(keys[slot]) == (TAKEN if id_ in (EMPTY, ERASED) else id_)
        assert born[id_] <= 1


def coming_of(
    splits: Tensor, ids: Tensor, found: Tensor, rows: Tensor, states: Tensor, times: Tensor
) -> IncomingRows:
    """Rows in one piece, where the splits are."""
    shape = (len(splits) - 1, len(ids), rows.shape[1], states.shape[1])
    words = torch.full((IncomingRows.words_of(*shape),), -1, device=splits.device)
    piece = IncomingRows(words, *shape)
    piece.cuts.copy_(splits)
    for part, given in zip(piece.parts(), (ids, found, rows, states, times), strict=True):
        part.copy_(given)
    return piece
