"""Streaming metrics of a binary predictor: log loss, AUC, normalized entropy, calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from ..core import checks
from ..core.errors import InputError, NotFiniteError
from ..core.shapes import Float, Int32

# Logits have 2**12 buckets per octave of |logit|, from 2**-20 up to 2**12. The bucket is a prefix
# of the bits of a float32, without rounding, so it is the same on every machine.
_MANTISSA_BITS, _KEPT_BITS = 23, 12
_LOWEST_EXPONENT, _OCTAVES = 127 - 20, 32
_HALF = _OCTAVES << _KEPT_BITS
BUCKETS = 2 * _HALF + 1


class BinaryMetrics:
    """Metrics of all samples since the start, in fixed memory (4 MiB). Not thread-safe.

    Labels are in 0..1; a value in between counts as that fraction of a positive sample. All sums
    are float64 on the host, so an update with tensors on a device waits for the device.

    AUC is exact for logits that are rounded to buckets. Each doubling of |logit| has 4,096 buckets,
    so a bucket is at most 1/4096 of the logit wide. All |logit| below 1e-6 share one bucket, and
    each end beyond 4,096 has one. A positive and a negative in one bucket count half, as a tie
    does. The error is at most half the share of (positive, negative) pairs that are in one bucket
    with unequal logits. For normal logits of deviation 1 this bound is 3e-5 around a mean of 0 and
    1e-4 around -4. The actual error is far smaller (below 1e-6 there), because most of it cancels
    inside a bucket. A constant predictor gives exactly 0.5. Only if all logits are within a
    thousandth of their size is the AUC imprecise.

    >>> metrics = BinaryMetrics()
    >>> metrics.update(torch.tensor([2.0, -1.0, 0.5, -3.0]), torch.tensor([1, 0, 0, 1]))
    >>> {name: round(value, 4) for name, value in metrics.result().items()}
    {'loss': 1.1157, 'auc': 0.5, 'ne': 1.6096, 'calibration': 0.9098, 'samples': 4.0}
    """

    def __init__(self) -> None:
        # Sums of loss, predicted probability, positives and negatives, each times its weight.
        self._sums = torch.zeros(4, dtype=torch.float64)
        self._histograms = torch.zeros(2, BUCKETS, dtype=torch.float64)  # positives, negatives
        self._samples = torch.zeros(1, dtype=torch.int64)

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Adds a batch of any shape. Raises for invalid values before anything changes."""
        logit = _values("logits", logits, logits, -checks.LARGEST, checks.LARGEST)
        positive = _values("labels", labels, logits, 0, 1)
        weight = None
        if weights is not None:
            weight = _values("weights", weights, logits, 0, checks.LARGEST)
        if not logit.numel():
            return
        loss = functional.binary_cross_entropy_with_logits(
            logit, positive, weight=weight, reduction="sum"
        )
        predicted, negative = logit.sigmoid(), 1 - positive
        if weight is not None:
            predicted, positive, negative = (x * weight for x in (predicted, positive, negative))
        self._sums += torch.stack([loss, predicted.sum(), positive.sum(), negative.sum()])
        bucket = _buckets(logit)
        self._histograms[0].index_add_(0, bucket, positive)
        self._histograms[1].index_add_(0, bucket, negative)
        self._samples += logit.numel()

    def result(self) -> dict[str, float]:
        """Returns the metrics of all samples so far; NaN if a metric is not defined.

        `ne` is the log loss divided by the log loss of always predicting the mean label.
        `calibration` is the mean prediction divided by the mean label.
        """
        loss, predicted, positives, negatives = self._sums.tolist()
        total = positives + negatives
        mean_loss = loss / total if total else math.nan
        return {
            "loss": mean_loss,
            "auc": self._auc(),
            "ne": mean_loss / _entropy(positives, negatives) if total else math.nan,
            "calibration": predicted / positives if positives else math.nan,
            "samples": float(self._samples.item()),
        }

    def _auc(self) -> float:
        positives, negatives = self._histograms
        below = negatives.cumsum(0)
        pairs = positives.sum() * below[-1]
        if not pairs:
            return math.nan
        return float(positives.dot(below - negatives / 2) / pairs)

    def reset(self) -> None:
        """Removes all samples."""
        for tensor in self._state().values():
            tensor.zero_()

    def merge(self, other: BinaryMetrics) -> None:
        """Adds the samples of `other`."""
        theirs = other._state()
        for name, tensor in self._state().items():
            tensor += theirs[name]

    def state_dict(self) -> dict[str, Tensor]:
        """Returns copies of the sums: float64 and int64 tensors of fixed shapes."""
        return {name: tensor.clone() for name, tensor in self._state().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `state_dict`, bit for bit."""
        own = self._state()
        if set(state) != set(own):
            raise InputError(
                f"the state has {', '.join(sorted(state)) or 'nothing'}; "
                f"it must have {', '.join(sorted(own))}, as Metrics.state_dict() gives."
            )
        for name, tensor in own.items():
            checks.tensor(f"state[{name!r}]", state[name], tensor.dtype, tuple(tensor.shape))
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def _state(self) -> dict[str, Tensor]:
        return {
            "sums": self._sums,
            "histograms": self._histograms,
            "samples": self._samples,
        }


def _values(
    name: str, given: Tensor, like: Tensor, least: float, most: float
) -> Float[Tensor, "n"]:
    """Returns `given` as float64 on the host. Raises for a wrong shape or values out of bounds."""
    if given.shape != like.shape:
        raise InputError(
            f"{name} has shape {tuple(given.shape)}, logits {tuple(like.shape)}; "
            "they must be equal: squeeze or reshape one of them."
        )
    values = given.detach().to("cpu", torch.float64).reshape(-1)
    if values.numel():
        low, high = torch.aminmax(values)
        if not (low.item() >= least and high.item() <= most):  # written so that NaN fails, too
            _refuse(name, values, given.shape, least, most)
    return values


def _refuse(name: str, values: Tensor, shape: torch.Size, least: float, most: float) -> None:
    """Raises for the first value out of bounds."""
    at = int((~((values >= least) & (values <= most))).nonzero()[0])
    value = values[at].item()
    place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(at), shape))
    if not math.isfinite(value):
        raise NotFiniteError(
            f"{name}[{place}] is {value}; metrics need finite numbers: "
            "look for a learning rate that is too large or for damaged data."
        )
    raise InputError(f"{name}[{place}] is {value:g}; it must lie in {least:g}..{most:g}.")


def _buckets(logit: Float[Tensor, "n"]) -> Int32[Tensor, "n"]:
    """Returns the bucket of each logit. A larger logit never has a smaller bucket."""
    bits = logit.float().view(torch.int32)
    size = (bits & 0x7FFFFFFF).bitwise_right_shift_(_MANTISSA_BITS - _KEPT_BITS)
    size.sub_(_LOWEST_EXPONENT << _KEPT_BITS).clamp_(0, _HALF)
    sign = bits >> 31  # -1 or 0; `^` and `-` with it negate or keep, faster than `where`
    return size.bitwise_xor_(sign).sub_(sign).add_(_HALF)


def _entropy(positives: float, negatives: float) -> float:
    """Returns the log loss of always predicting the mean label; NaN if all labels are equal."""
    shares = [part / (positives + negatives) for part in (positives, negatives)]
    if not all(shares):
        return math.nan
    return -sum(share * math.log(share) for share in shares)


_MOST_DEFERRED = 1000  # most batches that wait before all are added


class DeferredMetrics:
    """Passes batches to `metrics`: those on the CPU at once, those on a device in `settle`.

    Non-finite values on a device therefore raise only in `settle`.

    >>> import torch
    >>> metrics = BinaryMetrics()
    >>> DeferredMetrics(metrics).update(torch.zeros(2), torch.tensor([0.0, 1.0]), None)
    >>> metrics.result()["samples"]
    2.0
    """

    def __init__(self, metrics: BinaryMetrics) -> None:
        self._metrics = metrics
        self._waiting: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Adds a batch."""
        if logits.device.type == "cpu":
            self._metrics.update(logits, labels, weights)
            return
        self._waiting.append((logits.detach(), labels, weights))
        if len(self._waiting) >= _MOST_DEFERRED:
            self.settle()

    def settle(self) -> None:
        """Adds the waiting batches. Waits for the device."""
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self._metrics.update(*batch)
