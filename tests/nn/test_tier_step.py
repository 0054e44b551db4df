"""A module over alike tables in two tiers pools on the device; the numbers are those of before."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from hedgerow.tables.multi.device_bags import GroupFeatures
from hedgerow.tiers.tier_tables import Tiers, TierTables, device_tier_tables

from ..launches import launches
from .test_device_step import (
    FEATURES,
    NAMES,
    POOLINGS,
    SETTINGS,
    _batch,
    _loss,
    _module,
    _same_bits,
    _trained,
    _values,
)

SMALL = {"CACHING": 6, "HYBRID": 3}  # rows leave and come at every step


def _in_tiers(
    poolings: list[Any],
    device: torch.device,
    mode: Any,
    rows: int,
    *,
    pools: bool = True,
    **settings: Any,
) -> Any:
    made: Any = _module(poolings, None, pools=pools, **settings)
    tiers = Tiers(mode=mode, fast_rows=rows, slots=32, allow_small=mode == "CACHING")
    configs = made.store.configs_to_move(device).values()
    tables, groups = device_tier_tables([(one, tiers) for one in configs], device, made.clock)
    made.set_store(TierTables(tables, device=device, together=groups))
    return made


EVERY = list(product(["CACHING", "HYBRID"], range(len(POOLINGS)), [False, True], [1, -1]))
HOW = ["all", "some", "held"]


@pytest.mark.parametrize(
    ("mode", "first", "weighs", "order", "how"),
    [
        pytest.param(*one, HOW[i % 3], marks=pytest.mark.long if i % 5 else ())
        for i, one in enumerate(EVERY)
    ],
)
def test_it_is_what_torch_makes_of_rows(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    mode: str,
    first: int,
    weighs: bool,
    order: int,
    how: str,
) -> None:
    """Every pooling beside others, while rows come and leave."""
    poolings = [POOLINGS[(first + k) % len(POOLINGS)] for k in range(3)]
    names = [*NAMES, "unknown"][::order]
    batches = [_batch(seed, device, names, weighs=weighs) for seed in range(first, first + 4)]
    found = []
    for pooled in (True, False):
        if not pooled:
            monkeypatch.setattr(GroupFeatures, "takes", lambda self, bags: False)
        found.append(_trained(_in_tiers(poolings, device, mode, SMALL[mode]), batches, how))
    _same_bits(*found)


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
def test_rows_are_what_they_were(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, mode: str, one: bool
) -> None:
    """Ids without bags, or with one id in each."""
    batches = [_batch(seed, device, NAMES, weighs=False, one=one) for seed in (1, 2, 3)]
    poolings = ["sum", "max", "mean"]
    model = _in_tiers(poolings, device, mode, SMALL[mode], pools=one)
    ours = _trained(model, batches)
    monkeypatch.setattr(GroupFeatures, "takes", lambda self, bags: False)
    before = _in_tiers(poolings, device, mode, SMALL[mode], pools=one)
    _same_bits(ours, _trained(before, batches))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: next(iter(one)))
@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
def test_it_gives_the_rows_of_host_tables(
    device: torch.device, mode: str, settings: dict[str, Any]
) -> None:
    poolings = ["mean", ("first", 2), "max"]
    here = _module(poolings, None, **settings)
    there = _in_tiers(poolings, device, mode, 6, **settings)
    on_host = [_batch(seed, torch.device("cpu"), NAMES, weighs=True) for seed in (1, 2)]
    on_device = [_batch(seed, device, NAMES, weighs=True) for seed in (1, 2)]
    for one, other in zip(_trained(there, on_device), _trained(here, on_host), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
def test_outputs_may_be_changed_viewed_and_kept_alone(device: torch.device, mode: str) -> None:
    model = _in_tiers(["sum", "mean", ("first", 2)], device, mode, 24)
    vectors = _values(model(_batch(3, device, NAMES, weighs=False)))
    first, second, third, fourth, fifth = vectors.values()
    assert all(vector.is_contiguous() and not vector._is_view() for vector in vectors.values())
    squares = (second**2).sum()
    first.mul_(2.0)
    first.view(-1)[0] = 0.0
    third.relu_()
    (first.view(-1).sum() + squares + third.sum() + fourth.sum() + fifth.sum()).backward()
    assert model.updates.step == 1


@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
def test_features_may_be_asked_for_alone(device: torch.device, mode: str) -> None:
    """Of such features, whose tables are some of the store's, all is as of the whole batch."""
    model = _in_tiers(["sum", "mean", "max"], device, mode, 24)
    batch = _batch(3, device, NAMES, weighs=False)
    whole = model(batch)
    for name in NAMES:
        torch.testing.assert_close(model(batch, [name])[name], whole[name], rtol=0, atol=0)
    alone = model(batch, ["b0"])
    _loss(alone).backward()
    assert [model.table(name).size() > 0 for name in FEATURES] == [False, True, False]


@pytest.mark.parametrize("kind", ["bags", "rows"])
def test_a_step_of_resident_rows_launches_little(device: torch.device, kind: str) -> None:
    """One kernel finds, one pools; an update has two more than that of tables on a device."""
    model = _in_tiers(["sum", "mean", "max"], device, "CACHING", 24, pools=kind == "bags")
    batch = _batch(3, device, NAMES, weighs=False)
    for _ in range(3):
        with launches() as forward:
            outputs = list(_values(model(batch)).values())
        grads = [torch.ones_like(output) for output in outputs]
        with launches() as backward:
            torch.autograd.backward(outputs, grads)
    reads = "_pool_features" if kind == "bags" else "_gather"
    assert forward.kernels == {"_absent": 1, reads: 1}
    assert backward.kernels.total() == 5


@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
def test_rows_move_in_these_tests(device: torch.device, mode: str) -> None:
    """The fast tiers of these tests are as small as they must be for that."""
    model = _in_tiers(["sum", "mean", "max"], device, mode, SMALL[mode])
    batches = [_batch(seed, device, NAMES, weighs=False) for seed in range(4)]
    _trained(model, batches)
    stats = [model.table(name).stats() for name in FEATURES]
    came = "fetches" if mode == "CACHING" else "promotions"
    assert sum(one[came] for one in stats) > 0, stats
