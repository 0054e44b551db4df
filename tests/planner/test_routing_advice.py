"""Advice on routing: the published table of balances, and the fewest copies of hot keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hedgerow.core.errors import ConfigError, InputError
from hedgerow.planner.problem.key_stats import key_stats
from hedgerow.planner.problem.table_spec import TableSpec
from hedgerow.planner.times.routing_advice import hot_copies, routing_advice
from hedgerow.routing.balance import balance
from hedgerow.routing.router import Router

from .lru import ZipfSteps

KEYS = 1_000_000


def _names(kind: str) -> Tensor:
    random = np.random.default_rng(5)
    if kind == "random":
        return torch.from_numpy(random.integers(-(2**63), 2**63, KEYS))
    if kind == "multiples of 8":
        return 8 * torch.arange(KEYS)
    return (17 << 48) + 64 * torch.arange(KEYS)  # a slot in the high bits


def _keys(kind: str, skew: float) -> Tensor:
    return _names(kind)[torch.from_numpy(ZipfSteps(KEYS, skew, 1, seed=6).ids(1_000_000))]


# Which rank the few hottest keys fall on is chance, and with 8 ranks it decides the raw figures.
@pytest.mark.parametrize(
    ("kind", "skew", "ranks", "plain", "hashed", "copied"),
    [
        ("random", 1.05, 8, (1.61, 1.01), (1.43, 1.02), 1.01),
        ("random", 1.05, 128, (13.4, 1.15), (14.2, 1.13), 1.15),
        ("random", 1.3, 128, (33.2, 1.26), (41.1, 1.27), 1.07),
        ("multiples of 8", 1.05, 8, (8.0, 8.0), (1.86, 1.02), 1.02),
        ("multiples of 8", 1.05, 128, (17.9, 8.2), (12.7, 1.18), 1.15),
        ("slot prefix", 1.05, 128, (66.9, 64.2), (12.7, 1.10), 1.14),
    ],
)
def test_the_published_table(
    kind: str,
    skew: float,
    ranks: int,
    plain: tuple[float, float],
    hashed: tuple[float, float],
    copied: float,
) -> None:
    keys = _keys(kind, skew)
    found = balance(keys, ranks)
    for rule, (raw, sent) in zip(found.rules, (plain, hashed), strict=True):
        assert rule.raw.max_over_mean == pytest.approx(raw, rel=0.35)
        assert rule.deduplicated.max_over_mean == pytest.approx(sent, rel=0.12)
    assert _with_hottest_copied(keys, ranks, 256) == pytest.approx(copied, abs=0.06)
    assert found.recommended == "hash_roundrobin"


def _with_hottest_copied(keys: Tensor, ranks: int, copies: int) -> float:
    names, counts = keys.unique(return_counts=True)
    rest = counts.clone()
    rest[counts.topk(copies).indices] = 0
    owners = Router("hash_roundrobin", ranks).owners(names)
    loads = torch.zeros(ranks, dtype=torch.int64).index_add_(0, owners, rest)
    shared = (len(keys) - int(rest.sum())) / ranks
    return (int(loads.max()) + shared) * ranks / len(keys)


@pytest.mark.parametrize("ranks", [8, 32])
def test_copies_even_out_ranks_and_are_no_more_than_the_hottest_of_all(ranks: int) -> None:
    keys, router = _keys("random", 1.05), Router("hash_roundrobin", ranks)
    found = hot_copies(keys, router, row_bytes=512)
    assert found.enough
    assert found.after <= 1.10 < found.before
    assert found.bytes_per_rank == 512 * len(found.keys)
    names, counts = keys.unique(return_counts=True)
    owners, mean = router.owners(names), len(keys) / ranks

    def fullest(copied: Tensor) -> float:
        rest = torch.where(copied, 0, counts)
        loads = torch.zeros(ranks, dtype=torch.int64).index_add_(0, owners, rest)
        return (int(loads.max()) + int(counts[copied].sum()) / ranks) / mean

    assert fullest(torch.isin(names, torch.tensor(found.keys))) == pytest.approx(found.after)
    one_less = torch.isin(names, torch.tensor(found.keys[:-1], dtype=torch.int64))
    assert fullest(one_less) > 1.10
    hottest = torch.zeros(len(names), dtype=torch.bool)
    hottest[counts.topk(max(0, len(found.keys) - 1)).indices] = True
    assert fullest(hottest) > 1.10  # fewer of the hottest would not do


def test_keys_that_copies_cannot_help() -> None:
    found = hot_copies(8 * torch.arange(100_000), Router("roundrobin", 8), row_bytes=64)
    assert not found.enough
    assert found.before == 8.0


def test_even_keys_need_no_copies() -> None:
    found = hot_copies(torch.arange(80_000), Router("roundrobin", 8), row_bytes=64)
    assert (found.keys, found.enough, found.bytes_per_rank) == ((), True, 0)


def test_the_own_rule_stands_and_the_text_says_what_is_better() -> None:
    keys = _keys("multiples of 8", 1.05)
    spec = TableSpec(
        name="item", rows=KEYS, dim=16, dist_type="roundrobin", stats=key_stats(keys.numpy())
    )
    found = routing_advice(spec, 8)
    assert found is not None
    assert (found.dist_type, found.recommended) == ("roundrobin", "hash_roundrobin")
    assert found.own.deduplicated.max_over_mean == 8.0
    assert "--choose-routing" in found.text
    hashed = TableSpec(name="item", rows=KEYS, dim=16, stats=spec.stats)
    other = routing_advice(hashed, 8)
    assert other is not None
    assert "--choose-routing" not in other.text
    assert "copies of" in other.text


def test_a_table_by_ranges_is_measured_by_them() -> None:
    spec = TableSpec(name="item", rows=1000, dim=4, dist_type="continuous")
    found = routing_advice(spec, 4, torch.arange(100))
    assert found is not None
    assert found.own.raw.max_over_mean == 4.0
    assert found.recommended == "roundrobin"  # of dense keys


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        hot_copies(torch.tensor([], dtype=torch.int64), Router("roundrobin", 2), row_bytes=4)
    with pytest.raises(ConfigError, match="even"):
        hot_copies(torch.tensor([1]), Router("roundrobin", 2), row_bytes=4, even=0.5)
