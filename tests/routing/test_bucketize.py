"""Keys ordered by owner: core, torch and a plain loop agree, whatever the rows and rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow import native
from hedgerow.core.errors import DtypeError, InputError
from hedgerow.routing import bucketize as module
from hedgerow.routing.bucketize import Bucketized, bucketize, bucketize_by_torch
from hedgerow.routing.router import Router
from tests.support import threads
from tests.twins import native_core

FIELDS = ("lengths", "keys", "weights", "positions", "unbucketize_permute")


def _same(one: Bucketized, other: Bucketized) -> None:
    for name in FIELDS:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        assert a is None or torch.equal(a, b), name


def _routers(shards: int) -> list[Router]:
    return [
        Router("hash_roundrobin", shards),
        Router("continuous", shards, rows=100),
        Router("roundrobin", shards),
        Router("continuous", shards, bounds=[0, *(10 * i for i in range(shards))]),
    ]


def _batch(
    sizes: list[int], longest: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (sum(sizes),), generator=random)
    n = int(lengths.sum())
    keys = torch.empty(n, dtype=torch.int64).random_(-(2**63), None, generator=random)
    keys[::2] = torch.randint(0, 130, (len(keys[::2]),), generator=random)
    return lengths, keys, torch.randn(n, generator=random)


def _plain(
    lengths: torch.Tensor,
    keys: torch.Tensor,
    routers: list[Router],
    sizes: list[int],
    w: torch.Tensor,
) -> tuple[list[int], list[int], list[float], list[int], list[int]]:
    """A loop over owners, rows and keys, as the result is described."""
    features = [f for f, size in enumerate(sizes) for _ in range(size)]
    starts = [0, *lengths.cumsum(0).tolist()]
    out: tuple[Any, ...] = ([], [], [], [], [0] * len(keys))
    for p in range(routers[0].shards):
        for row, f in enumerate(features):
            mine = keys[starts[row] : starts[row + 1]].clone()
            owners = routers[f].owners(mine).tolist()
            local = routers[f].local_keys(mine).tolist()
            chosen = [i for i, owner in enumerate(owners) if owner == p]
            out[0].append(len(chosen))
            for i in chosen:
                out[4][starts[row] + i] = len(out[1])
                out[1].append(local[i])
                out[2].append(w[starts[row] + i].item())
                out[3].append(i)
    return out


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.integers(0, 7), min_size=4, max_size=4),
    st.integers(0, 12),
    st.integers(0, 99),
)
def test_it_is_what_a_plain_loop_gives(
    shards: int, sizes: list[int], longest: int, seed: int
) -> None:
    routers = _routers(shards)
    lengths, keys, weights = _batch(sizes, longest, seed)
    found = bucketize(
        lengths, keys, routers, batch_sizes=sizes, weights=weights, positions=True, sequence=True,
        local_keys=True,
    )  # fmt: skip
    expected = _plain(lengths, keys, routers, sizes, weights)
    assert tuple(getattr(found, name).tolist() for name in FIELDS) == expected
    borders = [0, *np.cumsum(sizes).tolist()]
    _same(found, bucketize_by_torch(lengths, keys, routers, borders, weights, True, True, True))


@pytest.mark.parametrize("longest", [3, 90, 60_000])
@pytest.mark.parametrize("shards", [1, 8, 64])
def test_long_rows_are_shared_by_threads_and_no_thread_shows(longest: int, shards: int) -> None:
    sizes = [200_000 // longest // 4 + 1] * 4
    lengths, keys, weights = _batch(sizes, longest)
    routers = _routers(shards)
    options: dict[str, Any] = {"weights": weights, "positions": True, "sequence": True}
    found = []
    for count in (1, 3):
        with threads(count):
            found.append(bucketize(lengths, keys, routers, **options))
    _same(found[0], found[1])
    borders = [0, *np.cumsum(sizes).tolist()]
    _same(found[0], bucketize_by_torch(lengths, keys, routers, borders, **options))
    assert torch.equal(found[0].keys[found[0].unbucketize_permute], keys)


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_only_what_was_asked_for_is_there(positions: bool, sequence: bool, weighted: bool) -> None:
    lengths, keys, weights = _batch([5] * 4, 6)
    whole = bucketize(lengths, keys, _routers(3), weights=weights, positions=True, sequence=True)
    found = bucketize(
        lengths,
        keys,
        _routers(3),
        weights=weights if weighted else None,
        positions=positions,
        sequence=sequence,
    )
    asked = (True, True, weighted, positions, sequence)
    for name, wanted in zip(FIELDS, asked, strict=True):
        value = getattr(found, name)
        assert torch.equal(value, getattr(whole, name)) if wanted else value is None


def test_numbers_of_32_bits_are_widened() -> None:
    lengths, keys, _ = _batch([6], 5)
    keys = keys.to(torch.int32)
    router = [Router("hash_roundrobin", 6)]
    _same(bucketize(lengths.int(), keys, router), bucketize(lengths, keys.long(), router))


def test_the_core_and_its_twin_agree() -> None:
    lengths, keys, weights = _batch([5, 0, 3, 9], 7)
    routers = _routers(5)
    ours = bucketize(
        lengths, keys, routers, batch_sizes=[5, 0, 3, 9], weights=weights, positions=True,
        sequence=True, local_keys=True,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "native", native_core)
        twin = bucketize(
            lengths, keys, routers, batch_sizes=[5, 0, 3, 9], weights=weights, positions=True,
            sequence=True, local_keys=True,
        )  # fmt: skip
    _same(ours, twin)
    for router in routers:
        placed = []
        for core in (native, native_core):
            owners, local = torch.empty_like(keys), torch.empty_like(keys)
            core.route(
                keys.data_ptr(), len(keys), router.code, *router.numbers(), router.bounds or (),
                owners.data_ptr(), local.data_ptr(),
            )  # fmt: skip
            placed.append((owners.tolist(), local.tolist()))
        assert placed[0] == placed[1]


ONE = [Router("roundrobin", 2)]


@pytest.mark.parametrize(
    ("lengths", "routers", "options", "message"),
    [
        ([1, 1], ONE, {}, "add up to 2; there are 3 keys"),
        ([4, -1], ONE, {}, "lengths has -1"),
        ([2**62, 3], ONE, {}, "lengths has 4611686018427387904"),
        ([3], [], {}, "routers is empty"),
        ([3], [Router("roundrobin", 2), Router("roundrobin", 3)], {}, "2 and 3 shards"),
        ([3], ["roundrobin"], {}, "has a str; give Routers"),
        ([3], ONE * 2, {}, "1 rows for 2 features"),
        ([3], ONE, {"batch_sizes": [2]}, r"batch_sizes is \[2\]"),
        ([3], ONE, {"batch_sizes": [1, 0]}, "must have 1 numbers"),
        ([3], ONE * 2, {"batch_sizes": [2, -1]}, "batch_sizes is -1"),
        ([3], ONE, {"weights": torch.ones(2)}, r"weights has shape \(2,\)"),
        ([3], ONE, {"weights": torch.ones(3).double()}, "weights has dtype"),
        ([3], ONE, {"positions": 1}, "positions is 1"),
        ([3], [Router("roundrobin", 2**31)], {}, "at most 2147483647"),
        ([3, 0], [Router("roundrobin", 2**30)], {}, "2147483648 rows of the result"),
    ],
)
def test_bad_batches_are_refused(
    lengths: list[int], routers: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bucketize(torch.tensor(lengths), torch.tensor([1, 2, 3]), routers, **options)


def test_too_many_keys_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ELEMENTS", 2)
    with pytest.raises(InputError, match="3 keys; at most 2"):
        bucketize(torch.tensor([3]), torch.tensor([1, 2, 3]), [Router("roundrobin", 1)])


def test_other_dtypes_and_shapes_are_refused() -> None:
    with pytest.raises(DtypeError, match=r"keys has dtype torch\.float32"):
        bucketize(torch.tensor([1]), torch.tensor([1.0]), ONE)
    with pytest.raises(InputError, match="lengths has shape"):
        bucketize(torch.tensor([[1]]), torch.tensor([1]), ONE)
    with pytest.raises(InputError, match="lengths are on cpu, keys on meta"):
        bucketize(torch.tensor([0]), torch.empty(0, dtype=torch.int64, device="meta"), ONE)
