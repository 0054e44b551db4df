"""Hit rates against a simulated cache, from true chances and from sampled keys."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.core.errors import ConfigError, InputError
from hedgerow.planner.problem.key_stats import key_stats
from hedgerow.planner.times.key_model import (
    DistinctKeys,
    KeyModel,
    characteristic_time,
    from_stats,
    touched,
    zipf,
)

from .lru import LruCache, ZipfSteps, hit_rate

KEYS = 200_000
SKEWS, STEP_IDS, SHARES = (0.8, 1.05, 1.3), (4096, 65_536), (0.02, 0.1, 0.3)


@pytest.mark.parametrize("step_ids", STEP_IDS)
@pytest.mark.parametrize("skew", SKEWS)
def test_within_three_points_of_a_simulated_cache(skew: float, step_ids: int) -> None:
    source = ZipfSteps(KEYS, skew, step_ids)
    true = touched(zipf(KEYS, skew), step_ids)
    sampled = touched(from_stats(key_stats(source.ids(500_000)), KEYS), step_ids)
    rows = [int(share * KEYS) for share in SHARES]
    sound = [size for size in rows if not true.thrashes(size)]
    assert sound
    for size in sound:
        measured = hit_rate(source, size, 30 if step_ids > 5000 else 120)
        assert true.recency_hit(size) == pytest.approx(measured, abs=0.03)
        assert sampled.recency_hit(size) == pytest.approx(measured, abs=0.03)
        assert true.frequency_hit(size) > measured  # the hottest rows are the best that one can do


def test_caches_below_a_step_are_those_that_thrash() -> None:
    small = {
        (skew, ids, share)
        for skew in SKEWS
        for ids in STEP_IDS
        for share in SHARES
        if touched(zipf(KEYS, skew), ids).thrashes(share * KEYS)
    }
    assert small == {(0.8, 65_536, 0.02), (0.8, 65_536, 0.1)} | {
        (skew, 65_536, 0.02) for skew in (1.05, 1.3)
    }


def test_the_simulated_cache_is_a_plain_one() -> None:
    random, cache, plain = np.random.default_rng(1), LruCache(50, 10), {}
    for _ in range(300):
        keys = np.unique(random.integers(0, 50, 8))
        assert cache.step(keys) == sum(int(key) in plain for key in keys)
        for key in keys.tolist():
            plain.pop(key, None)
            plain[key] = True
        for key in list(plain)[: max(0, len(plain) - 10)]:
            del plain[key]


def test_all_keys_alike() -> None:
    even = touched(zipf(1000, 0.0), 100)
    assert even.distinct == pytest.approx(1000 * (1 - 0.999**100))
    assert even.frequency_hit(250) == pytest.approx(0.25)
    assert even.recency_hit(250) == pytest.approx(0.25)
    assert even.split_hit(0.25) == 0.25


def test_bins_change_nothing_that_matters() -> None:
    for rows in (3, 40, 5000):
        for skew in (0.0, 0.7, 1.0, 1.2):
            weights = np.arange(1, rows + 1, dtype=np.float64) ** -skew
            exact = touched(KeyModel(weights / weights.sum(), np.ones(rows)), 700)
            binned = touched(zipf(rows, skew), 700)
            assert binned.distinct == pytest.approx(exact.distinct, rel=1e-3)
            for share in (0.1, 0.5, 0.99):
                wanted = exact.recency_hit(share * rows)
                assert binned.recency_hit(share * rows) == pytest.approx(wanted, abs=1e-3)


def test_a_billion_rows() -> None:
    huge = touched(zipf(10**9, 1.05), 2**20)
    hits = [huge.recency_hit(share * 10**9) for share in (0.001, 0.01, 0.1, 0.5, 0.9)]
    assert 0 < hits[0] < hits[1] < hits[2] < hits[3] < hits[4] < 1


@pytest.mark.parametrize("chance", [1.0, 1 - 1e-16, 1e-3, 1e-12, 1e-250])
def test_the_characteristic_time_of_extreme_chances(chance: float) -> None:
    keys = np.array([1000.0, 500.0])
    chances = np.array([chance, chance / 3])
    for rows in (1e-6, 1.0, 700.0, 1499.0):
        time = characteristic_time(chances, keys, [rows])
        log = np.log1p(-np.minimum(chances, 1 - 1e-15))
        assert float(-np.expm1(time * log) @ keys) == pytest.approx(rows, rel=1e-6)
    assert characteristic_time(chances, keys, [1500.0, 9e9]).tolist() == [np.inf, np.inf]


def test_a_cache_of_everything_hits_always() -> None:
    assert touched(zipf(100, 1.0), 10).recency_hit(100) == pytest.approx(1.0)


def test_what_is_no_size_is_refused() -> None:
    some: DistinctKeys = touched(zipf(100, 1.0), 10)
    for rows in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="cached_rows"):
            some.recency_hit(rows)
        with pytest.raises(InputError, match="cached_rows"):
            some.frequency_hit(rows)
    with pytest.raises(InputError, match="share"):
        some.split_hit(1.5)
    with pytest.raises(ConfigError, match="ids"):
        touched(zipf(100, 1.0), float("nan"))
    with pytest.raises(ConfigError, match="rows"):
        zipf(0)
    with pytest.raises(ConfigError, match="exponent"):
        zipf(10, float("nan"))
