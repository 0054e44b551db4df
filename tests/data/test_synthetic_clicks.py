"""Synthetic clicks: determinism, ground truth, the profile of repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError, InputError
from hedgerow.data.source import Batch
from hedgerow.data.synthetic_clicks import (
    PROFILE,
    Best,
    Popularity,
    fitted_popularities,
    folded_profile,
    power_law,
    sightings_profile,
)


def same(a: Batch, b: Batch) -> bool:
    return (
        torch.equal(a.dense, b.dense)
        and torch.equal(a.labels, b.labels)
        and a.ids.names == b.ids.names
        and torch.equal(a.ids.values, b.ids.values)
        and torch.equal(a.ids.offsets, b.ids.offsets)
    )


def test_300_steps_see_exactly_500_users_and_200_items_with_scattered_ids() -> None:
    users, items = set(), set()
    for _, ids, _ in hr.data.clicks(batch_size=256, steps=300):
        users.update(ids.feature("user").values.tolist())
        items.update(ids.feature("item").values.tolist())
        items.update(ids.feature("history").values.tolist())
    assert (len(users), len(items)) == (500, 200)
    spread = np.array(sorted(users | items), float)
    assert spread.min() < -8e18
    assert spread.max() > 8e18


def test_a_batch_has_the_promised_form() -> None:
    dense, ids, labels = hr.data.clicks(batch_size=256, steps=1).batch(0)
    assert dense.shape == (256, 4)
    assert dense.dtype == labels.dtype == torch.float32
    assert ids.names == ("user", "item", "history")
    assert set(labels.tolist()) == {0.0, 1.0}
    assert set(ids.feature("history").lengths().tolist()) == set(range(9))


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    one, two = (list(hr.data.clicks(batch_size=32, steps=5, seed=3)) for _ in range(2))
    assert all(same(a, b) for a, b in zip(one, two, strict=True))
    assert not same(one[0], one[1])
    assert not same(one[0], hr.data.clicks(batch_size=32, steps=5, seed=4).batch(0))
    assert same(one[4], hr.data.clicks(batch_size=32, steps=5, seed=3).batch(4))


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_a_source_goes_on_exactly_where_another_stopped(stop: int) -> None:
    whole = list(hr.data.clicks(batch_size=16, steps=5))
    stopped = hr.data.clicks(batch_size=16, steps=5)
    batches = iter(stopped)
    for _ in range(stop):
        next(batches)
    source = hr.data.clicks(batch_size=16, steps=5)
    source.load_state_dict(stopped.state_dict())
    rest = list(source)
    assert len(rest) == 5 - stop
    assert all(same(a, b) for a, b in zip(rest, whole[stop:], strict=True))
    assert len(list(source)) == 5  # and then anew


def test_the_position_counts_batches_that_were_handed_out() -> None:
    source = hr.data.clicks(batch_size=16, steps=5)
    for number, _ in enumerate(source, start=1):
        assert source.state_dict()["step"] == number


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "seed = 9"),
        ({"step": 6}, "step 6 of 5"),
        ({"step": -1}, "must lie in 0"),
        ({"nonsense": 1}, "no position"),
        ({"features": []}, "features = "),
    ],
)
def test_a_position_of_another_source_is_refused(change: dict[str, Any], message: str) -> None:
    source = hr.data.clicks(batch_size=16, steps=5)
    with pytest.raises(InputError, match=message):
        source.load_state_dict({**source.state_dict(), **change})


def test_held_out_samples_are_others_with_the_same_truth() -> None:
    source = hr.data.clicks(batch_size=64, steps=2)
    held = source.held_out(batch_size=64, steps=2)
    assert not same(source.batch(0), held.batch(0))
    known = set(hr.data.clicks(batch_size=20_000, steps=1).batch(0).ids.values.tolist())
    assert set(held.batch(0).ids.values.tolist()) <= known
    assert held.best(5_000) == source.best(5_000)


def _auc(scores: np.ndarray, labels: np.ndarray) -> float:
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    ones = labels.sum()
    return (ranks[labels > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones))


def test_the_best_auc_and_loss_are_what_the_true_chances_reach() -> None:
    source = hr.data.clicks(batch_size=100_000, steps=1)
    _, _, labels, chances = source._samples(1, 0, 100_000)
    loss = -np.where(labels, np.log(chances), np.log(1 - chances)).mean()
    best = source.best()
    assert best.auc == pytest.approx(_auc(chances, labels), abs=0.005)
    assert best.log_loss == pytest.approx(loss, abs=0.006)
    assert best.click_rate == pytest.approx(labels.mean(), abs=0.006)
    noisy = chances + np.random.default_rng(0).normal(0, 0.1, len(chances))
    assert _auc(noisy, labels) < best.auc - 0.005


def test_best_of_certain_and_of_equal_chances() -> None:
    assert Best.of(np.array([0.0, 0.0, 1.0])) == Best(1.0, 0.0, 1 / 3)
    assert Best.of(np.full(5, 0.25)).auc == pytest.approx(0.5)


def test_best_of_equals_the_sum_over_all_pairs() -> None:
    p = np.random.default_rng(1).choice([0.1, 0.3, 0.6, 0.9], 40)
    wins = sum(a * (1 - b) * ((a > b) + 0.5 * (a == b)) for a in p for b in p)
    assert Best.of(p).auc == pytest.approx(wins / (p.sum() * (1 - p).sum()))


def _all_ids(batch: Batch) -> np.ndarray:
    return np.concatenate([batch.ids.feature(n).values.numpy() for n in batch.ids.names])


# Hot ids are whole: the fewer accesses, the coarser the hottest buckets.
@pytest.mark.parametrize(("batch_size", "tolerance"), [(1024, 0.06), (4096, 0.02), (16_384, 0.02)])
def test_one_batch_repeats_ids_as_production_does(batch_size: int, tolerance: float) -> None:
    source = hr.data.wide_clicks(batch_size=batch_size, steps=2)
    for batch in source:
        shares, mean = sightings_profile(_all_ids(batch), batch_size)
        assert mean == pytest.approx(6.9, abs=0.15)
        assert np.abs(shares - folded_profile(batch_size)).max() < tolerance
        seldom = shares[:8] - folded_profile(batch_size)[:8]  # up to 128 sightings
        assert np.abs(seldom).max() < 0.015


def test_the_profile_is_that_of_the_statistics() -> None:
    assert sum(PROFILE) == pytest.approx(1.0, abs=0.002)
    assert folded_profile(65_536).round(3).tolist() == pytest.approx(list(PROFILE), abs=0.001)
    assert folded_profile(100).sum() == pytest.approx(1.0)


def test_every_table_of_wide_clicks_has_its_rows() -> None:
    source = hr.data.wide_clicks(batch_size=2048, steps=1, features=5, rows=50_000)
    assert [feature[2] for feature in source.state_dict()["features"]] == [50_000] * 5
    assert len(source.batch(0).ids.names) == 5
    assert source.batch(0).ids.has_one_id_each()


def test_too_few_rows_for_the_profile_are_refused_with_the_least_number() -> None:
    with pytest.raises(InputError, match=r"at least (\d+) ids") as caught:
        fitted_popularities(2, 100, 4096)
    least = int(str(caught.value).split("at least ")[1].split()[0])
    assert all(p.ids == least for p in fitted_popularities(2, least, 4096))


def test_draws_follow_the_masses() -> None:
    popularity = Popularity(np.array([0.2, 0.5, 0.3]), np.array([1, 5, 10]))
    drawn = popularity.draw(np.random.default_rng(0), 200_000)
    share = np.bincount(drawn, minlength=16) / len(drawn)
    assert share[0] == pytest.approx(0.2, abs=0.01)
    assert share[1:6].tolist() == pytest.approx([0.1] * 5, abs=0.01)
    assert share[6:].tolist() == pytest.approx([0.03] * 10, abs=0.01)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="batch_size is 0"):
        hr.data.clicks(batch_size=0, steps=1)
    with pytest.raises(InputError, match="steps is 0"):
        hr.data.clicks(batch_size=1, steps=0)
    with pytest.raises(InputError, match="step is 1"):
        hr.data.clicks(batch_size=1, steps=1).batch(1)
    with pytest.raises(InputError, match="no features"):
        hr.data.SyntheticClicks([], 1, 1)
    with pytest.raises(ConfigError, match="3 to 2 ids"):
        hr.data.ClickFeature("a", power_law(5), least=3, most=2)
