"""Key statistics: counted exactly, kept in files, and refused where they cannot be."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import ConfigError, DtypeError, HedgerowError, InputError
from hedgerow.planner.problem.key_stats import HEAD_KEYS, KeySampler, KeyStats, drift, key_stats
from hedgerow.planner.times.key_model import from_stats

from ..crafted_ids import that_share_a_bucket_of_numpy
from .lru import ZipfSteps


def test_counts_are_those_of_a_plain_count() -> None:
    keys = np.random.default_rng(0).zipf(1.3, 50_000).astype(np.int64)
    stats = key_stats(keys)
    _, counts = np.unique(keys, return_counts=True)
    times, often = np.unique(counts, return_counts=True)
    assert dict(stats.counts()) == dict(zip(times.tolist(), often.tolist(), strict=True))
    assert (stats.sampled, stats.distinct) == (50_000, len(counts))
    assert stats.unseen_mass == (counts == 1).sum() / 50_000


def test_a_long_tail_is_kept_as_how_many_were_seen_how_often() -> None:
    keys = np.concatenate([np.repeat(np.arange(HEAD_KEYS), 3), 10**9 + np.arange(100_000)])
    stats = key_stats(keys)
    assert (len(stats.head), stats.tail) == (HEAD_KEYS, ((1, 100_000),))
    assert len(json.dumps(stats.to_dict()["head"])) < 100


def test_a_sampler_takes_chunks_as_one_stream_up_to_its_limit() -> None:
    keys = torch.arange(1000) % 7
    sampler = KeySampler(limit=900)
    assert [sampler.add(part) for part in keys.split(400)] == [400, 400, 100]
    assert sampler.full
    assert sampler.taken == 900
    assert sampler.stats() == key_stats(keys, 900)


def test_drift_of_what_stays_is_none_and_of_what_goes_is_told() -> None:
    source = ZipfSteps(100_000, 1.05, 1)
    assert key_stats(source.ids(500_000)).drift < 0.01
    later = source.ids(250_000)
    moved = np.where(later % 4 == 0, later + 10**9, later)  # a quarter of the keys has new names
    found = key_stats(np.concatenate([source.ids(250_000), moved])).drift
    assert found == pytest.approx(0.25, abs=0.03)
    assert drift(np.array([1]), np.array([2])) == 0.0  # too few to tell


def test_drift_of_ids_that_share_a_bucket_of_numpys_hash_takes_no_longer() -> None:
    crafted = that_share_a_bucket_of_numpy(2000, buckets=2179).numpy()  # as many as 2,000 ids have
    random = np.random.default_rng(1)
    usual = random.integers(-(2**63), 2**63 - 1, 2000)

    def took_s(ids: np.ndarray) -> float:
        began_s = time.thread_time()
        assert drift(ids, np.repeat(ids[:100], 20)) == 0.0
        return time.thread_time() - began_s

    assert min(took_s(crafted) for _ in range(9)) < 3 * min(took_s(usual) for _ in range(9))


def test_a_round_trip_through_json() -> None:
    stats = key_stats(ZipfSteps(5000, 1.1, 1).ids(30_000) - 2500)
    again = KeyStats.from_dict(json.loads(json.dumps(stats.to_dict())))
    assert again == stats
    assert hash(again) == hash(stats)


def test_the_unseen_mass_of_the_model_is_that_of_good_and_turing() -> None:
    for skew in (0.8, 1.05, 1.3):
        stats = key_stats(ZipfSteps(1_000_000, skew, 1).ids(200_000))
        model = from_stats(stats, 1_000_000)
        assert model.mass() == pytest.approx(1)
        assert float(model.keys.sum()) == 1_000_000
        assert len(model.keys) < 600
        assert model.unseen(stats.sampled) == pytest.approx(stats.unseen_mass, abs=0.02)


def test_models_of_odd_samples() -> None:
    for counts in ([1], [5], [1] * 50, [1000], [1000, 1], [3, 3, 3]):
        head = tuple(sorted(counts, reverse=True))
        for rows in (1, 40, 10**9):
            model = from_stats(KeyStats(sampled=sum(counts), head=head, tail=()), rows)
            assert model.mass() == pytest.approx(1)
            assert np.isfinite(model.chance).all()
            assert (model.chance > 0).all()
            assert (np.diff(model.chance) <= 0).all()


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {},
        {"sampled": 3},
        {"sampled": 0, "head": [], "tail": []},
        {"sampled": float("nan"), "head": [[3, 1]], "tail": []},
        {"sampled": 3.0, "head": [[3, 1]], "tail": []},
        {"sampled": "3", "head": [[3, 1]], "tail": []},
        {"sampled": 3, "head": [[-3, 1]], "tail": []},
        {"sampled": 3, "head": [[3, True]], "tail": []},
        {"sampled": 3, "head": [3], "tail": []},
        {"sampled": 3, "head": "3", "tail": []},
        {"sampled": 3, "head": [[1, 10**15]], "tail": []},
        {"sampled": 3, "head": [[3, 1, 1]], "tail": []},
        {"sampled": 3, "head": [], "tail": [[3, float("nan")]]},
        {"sampled": 3, "head": [], "tail": [[0, 3]]},
        {"sampled": 3, "head": [], "tail": {"3": 1}},
        {"sampled": 4, "head": [[3, 1]], "tail": []},
        {"sampled": 3, "head": [[1, 1], [2, 1]], "tail": []},
        {"sampled": 3, "head": [[3, 1]], "tail": [], "drift": 2.0},
        {"sampled": 3, "head": [[3, 1]], "tail": [], "drift": float("nan")},
        {"sampled": 3, "head": [[3, 1]], "tail": [], "keys": [2**64]},
        {"sampled": 3, "head": [[3, 1]], "tail": [], "keys": ["a"]},
        {"sampled": 3, "head": [[3, 1]], "tail": [], "keys": 7},
        {"sampled": 3, "head": [[3, 1]], "tail": [], "more": 1},
    ],
)
def test_what_is_no_statistics_is_refused(values: Any) -> None:
    with pytest.raises(HedgerowError):
        KeyStats.from_dict(values)


def test_what_is_no_sample_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        key_stats(np.array([], np.int64))
    with pytest.raises(DtypeError, match="float64"):
        key_stats(np.array([1.0, float("nan")]))
    with pytest.raises(InputError, match="shape"):
        key_stats(np.array([[1, 2]]))
    with pytest.raises(InputError, match="limit"):
        KeySampler(limit=0)
    with pytest.raises(ConfigError, match="KeyStats"):
        from_stats("hot", 10)  # pyright: ignore[reportArgumentType]
