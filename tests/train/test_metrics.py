"""Metrics against exact ones in float64, in one pass, in parts and over a reload."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import checkpoint as dcp

from hedgerow.core.errors import DtypeError, InputError, NotFiniteError
from hedgerow.train.metrics import BUCKETS, BinaryMetrics, _buckets

Floats = NDArray[np.float64]

_LOGIT = st.one_of(
    st.floats(-30, 30, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 4096.0, -4096.0, 3.4028234663852886e38]),
)
_SAMPLE = st.tuples(_LOGIT, st.sampled_from([0.0, 1.0, 1.0, 0.25]), st.floats(0, 8, width=16))


def _exact_auc(logits: Floats, labels: Floats, weights: Floats) -> float:
    """By sorting: each positive beats the negatives below it and half of those beside it."""
    _, group = np.unique(logits, return_inverse=True)
    positives = np.bincount(group, weights * labels)
    negatives = np.bincount(group, weights * (1 - labels))
    below = np.cumsum(negatives) - negatives / 2
    return float(positives @ below / (positives.sum() * negatives.sum()))


def _exact(logits: Floats, labels: Floats, weights: Floats) -> dict[str, float]:
    losses = np.logaddexp(0, -logits) * labels + np.logaddexp(0, logits) * (1 - labels)
    loss, mean = np.average(losses, weights=weights), np.average(labels, weights=weights)
    predicted = np.average(np.exp(-np.logaddexp(0, -logits)), weights=weights)
    return {
        "loss": loss,
        "auc": _exact_auc(logits, labels, weights),
        "ne": loss / -(mean * np.log(mean) + (1 - mean) * np.log1p(-mean)),
        "calibration": predicted / mean,
        "samples": len(logits),
    }


def _tied_share(metrics: BinaryMetrics) -> float:
    """The share of pairs in one bucket, half of which bounds the error of AUC."""
    positives, negatives = metrics.state_dict()["histograms"]
    return float(positives @ negatives / (positives.sum() * negatives.sum()))


def _of(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> BinaryMetrics:
    metrics = BinaryMetrics()
    metrics.update(logits, labels, weights)
    return metrics


@settings(max_examples=50)
@given(st.lists(_SAMPLE, min_size=1, max_size=60))
def test_every_metric_is_the_exact_one_and_auc_within_its_bound(
    samples: list[tuple[float, float, float]],
) -> None:
    logits, labels, weights = (np.array(x, np.float64) for x in zip(*samples, strict=True))
    metrics = _of(*(torch.from_numpy(x) for x in (logits, labels, weights)))
    got = metrics.result()
    assert list(got) == ["loss", "auc", "ne", "calibration", "samples"]
    both = (weights * labels).sum() > 0 and (weights * (1 - labels)).sum() > 0
    if not both:
        assert math.isnan(got["auc"])
        assert math.isnan(got["ne"])
        assert math.isnan(got["calibration"]) == (not (weights * labels).any())
        return
    want = _exact(logits, labels, weights)
    assert abs(got["auc"] - want["auc"]) <= _tied_share(metrics) / 2 + 1e-12
    for name in ("loss", "ne", "calibration", "samples"):
        # A tiny loss is what torch leaves of 1 + exp(-x): the places behind those of 1 are lost.
        assert got[name] == pytest.approx(want[name], rel=1e-9, abs=1e-14), name


def _clicks(mean: float, spread: float, n: int = 200_000) -> tuple[Tensor, Tensor]:
    """Logits of a predictor whose AUC is about 0.7, with labels."""
    generator = torch.Generator().manual_seed(5)
    truth = torch.randn(n, generator=generator)
    labels = (torch.rand(n, generator=generator) < torch.sigmoid(truth - 1.5)).float()
    return mean + spread * (truth + 0.7 * torch.randn(n, generator=generator)), labels


@pytest.mark.parametrize(
    ("mean", "spread"),
    [(0, 1), (-4, 1), (-3.5, 0.02), (7, 0.05), (0, 1e-4), (0, 40), (-300, 100), (0.1, 1e-3)],
)
def test_auc_is_right_to_four_digits_for_any_realistic_spread(mean: float, spread: float) -> None:
    logits, labels = _clicks(mean, spread)
    want = _exact_auc(logits.double().numpy(), labels.double().numpy(), np.ones(len(labels)))
    assert 0.6 < want < 0.8
    assert abs(_of(logits, labels).result()["auc"] - want) < 1e-4


def test_the_bounds_that_the_docstring_names() -> None:
    for mean, bound in ((0, 3e-5), (-4, 1e-4)):
        logits, labels = _clicks(mean, 1 / math.hypot(1, 0.7))
        metrics = _of(logits, labels)
        want = _exact_auc(logits.double().numpy(), labels.double().numpy(), np.ones(len(labels)))
        assert _tied_share(metrics) / 2 < bound
        assert abs(metrics.result()["auc"] - want) < 1e-6


@pytest.mark.parametrize("logit", [0.0, -3.7, 88.0, 1e30, -1e-30])
def test_a_constant_predictor_has_an_auc_of_one_half(logit: float) -> None:
    assert _of(torch.full((10,), logit), torch.arange(10) % 3 == 0).result()["auc"] == 0.5


def test_confident_predictors() -> None:
    labels = torch.tensor([1, 0, 1, 0])
    right = _of(torch.tensor([1000.0, -1000.0, 900.0, -900.0]), labels).result()
    assert (right["auc"], right["loss"], right["calibration"]) == (1, 0, 1)
    wrong = _of(torch.tensor([-1000.0, 1000.0, -900.0, 900.0]), labels).result()
    assert (wrong["auc"], wrong["loss"]) == (0, 950)


def test_buckets_never_fall_where_logits_grow() -> None:
    sizes = torch.logspace(-9, 5, 100_000, dtype=torch.float64)
    buckets = _buckets(torch.cat([-sizes.flip(0), torch.zeros(1), sizes]))
    assert (buckets.diff() >= 0).all()
    assert (int(buckets[0]), int(buckets[-1])) == (0, BUCKETS - 1)
    assert len(buckets.unique()) > 0.6 * len(sizes)  # 32 of the 46.5 octaves are told apart


@settings(max_examples=30)
@given(st.data())
def test_parts_that_are_merged_equal_one_pass(data: st.DataObject) -> None:
    logits, labels = _clicks(0, 1, n=500)
    parts = data.draw(st.integers(1, 5))
    whole, merged = _of(logits, labels), BinaryMetrics()
    for part in range(parts):
        merged.merge(_of(logits[part::parts], labels[part::parts]))
    one, other = whole.state_dict(), merged.state_dict()
    assert torch.equal(one["histograms"], other["histograms"])
    assert torch.equal(one["samples"], other["samples"])
    torch.testing.assert_close(other["sums"], one["sums"], rtol=1e-12, atol=0)


def test_a_reload_continues_bit_for_bit() -> None:
    logits, labels = _clicks(0, 1, n=1000)
    weights = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    unbroken = _of(logits[:600], labels[:600], weights[:600])
    resumed = BinaryMetrics()
    resumed.load_state_dict(unbroken.state_dict())
    for metrics in (unbroken, resumed):
        metrics.update(logits[600:], labels[600:], weights[600:])
    assert unbroken.result() == resumed.result()
    for name, tensor in unbroken.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_torchs_distributed_checkpoint_loads_into_a_fresh_object(tmp_path: object) -> None:
    saved = _of(*_clicks(0, 1, n=1000))
    dcp.save({"metrics": saved.state_dict()}, checkpoint_id=str(tmp_path), no_dist=True)
    fresh = BinaryMetrics()
    state = {"metrics": fresh.state_dict()}
    dcp.load(state, checkpoint_id=str(tmp_path), no_dist=True)
    fresh.load_state_dict(state["metrics"])
    assert fresh.result() == saved.result()


def test_a_state_is_a_copy_and_reset_forgets_all() -> None:
    metrics = _of(torch.ones(3), torch.ones(3))
    state = metrics.state_dict()
    metrics.reset()
    assert metrics.result()["samples"] == 0
    assert state["samples"].item() == 3
    assert all(math.isnan(v) for k, v in metrics.result().items() if k != "samples")


def test_weights_multiply_and_zero_leaves_out() -> None:
    logits, labels = torch.tensor([0.3, -2.0, 1.0, 5.0]), torch.tensor([1, 0, 1, 0])
    twice = _of(logits[:3].repeat_interleave(2), labels[:3].repeat_interleave(2)).result()
    weighted = _of(logits, labels, torch.tensor([2, 2, 2, 0])).result()
    assert weighted.pop("samples") == 4
    assert twice.pop("samples") == 6
    assert weighted == pytest.approx(twice, rel=1e-14)


def test_half_precision_columns_gradients_and_empty_batches_are_taken() -> None:
    metrics = BinaryMetrics()
    logits = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    metrics.update(logits.bfloat16(), torch.tensor([[True], [False]]))
    metrics.update(torch.zeros(0), torch.zeros(0))
    assert metrics.result()["auc"] == 1
    assert metrics.result()["samples"] == 2


@pytest.mark.parametrize(
    ("logits", "labels", "weights", "error", "message"),
    [
        ([0, 1], [1], None, InputError, r"labels has shape \(1,\), logits \(2,\)"),
        ([0, 1], [1, 0], [1], InputError, r"weights has shape \(1,\), logits \(2,\)"),
        ([0, math.nan, math.nan], [1, 0, 1], None, NotFiniteError, r"logits\[1\] is nan"),
        ([0, math.inf], [1, 0], None, NotFiniteError, r"logits\[1\] is inf"),
        ([0, 1], [math.nan, 0], None, NotFiniteError, r"labels\[0\] is nan"),
        ([[0], [1]], [[1], [2]], None, InputError, r"labels\[1, 0\] is 2; it must lie in 0..1"),
        ([0, 1], [-1, 0], None, InputError, r"labels\[0\] is -1"),
        ([0, 1], [1, 0], [1, -0.5], InputError, r"weights\[1\] is -0.5"),
        ([0, 1], [1, 0], [math.nan, 1], NotFiniteError, r"weights\[0\] is nan"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    logits: list[float],
    labels: list[float],
    weights: list[float] | None,
    error: type[Exception],
    message: str,
) -> None:
    metrics = _of(torch.ones(2), torch.tensor([0, 1]))
    before = metrics.state_dict()
    given_weights = None if weights is None else torch.tensor(weights)
    with pytest.raises(error, match=message):
        metrics.update(
            torch.tensor(logits, dtype=torch.float32), torch.tensor(labels), given_weights
        )
    assert all(torch.equal(metrics.state_dict()[name], before[name]) for name in before)


def test_a_state_of_another_form_is_refused() -> None:
    state = BinaryMetrics().state_dict()
    with pytest.raises(InputError, match="it must have histograms, samples, sums"):
        BinaryMetrics().load_state_dict({"sums": state["sums"]})
    with pytest.raises(DtypeError, match=r"state\['samples'\] has dtype torch.float32"):
        BinaryMetrics().load_state_dict({**state, "samples": torch.zeros(1)})
    with pytest.raises(InputError, match=r"state\['sums'\] has shape \(3,\)"):
        BinaryMetrics().load_state_dict({**state, "sums": torch.zeros(3, dtype=torch.float64)})
