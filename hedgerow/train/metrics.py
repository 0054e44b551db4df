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

# Buckets of logits: 2**12 to an octave of |logit| from 2**-20 up to 2**12. Cutting the bits of a
# float32 does that without rounding, so a logit has the same bucket on every machine.
_MANTISSA_BITS, _KEPT_BITS = 23, 12
_LOWEST_EXPONENT, _OCTAVES = 127 - 20, 32
_HALF = _OCTAVES << _KEPT_BITS
BUCKETS = 2 * _HALF + 1


class BinaryMetrics:
    """Metrics of all samples since the start, in fixed memory (4 MiB). Not thread-safe.

    Labels lie in 0..1; one between counts as that much of a positive. Everything is summed in
    float64 on the host, so a call with tensors of a device waits for it.

    AUC is the exact one of logits rounded to buckets: 4,096 to each doubling of the logit's size
    (a width of 1/4096 of the logit or less), one for all below 1e-6, one at each end beyond
    4,096. A positive and a negative in one bucket count half, as a tie does. So it is off by at
    most half the share of (positive, negative) pairs in one bucket with unequal logits. For
    normal logits of deviation 1 that is 3e-5 around 0 and 1e-4 around -4; the error itself is far
    smaller (below 1e-6 there), since most of it cancels inside a bucket. A constant predictor
    gives exactly 0.5. Only logits that all lie within a thousandth of their size blur.

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
        """Adds a batch of any shape. Bad values are refused before anything has changed."""
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
        """The metrics of all samples so far; NaN where one is not defined.

        `ne` is the log loss over the loss of always predicting the mean label, `calibration` the
        mean prediction over the mean label.
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
        """Forgets all samples."""
        for tensor in self._state().values():
            tensor.zero_()

    def merge(self, other: BinaryMetrics) -> None:
        """Adds what `other` has seen, as if its batches had come here."""
        theirs = other._state()
        for name, tensor in self._state().items():
            tensor += theirs[name]

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the sums: float64 and int64 tensors of fixed shapes."""
        return {name: tensor.clone() for name, tensor in self._state().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continues from what `state_dict` gave, bit for bit."""
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
    """`given` as float64 on the host, with `like`'s shape and inside the bounds."""
    if given.shape != like.shape:
        raise InputError(
            f"{name} has shape {tuple(given.shape)}, logits {tuple(like.shape)}; "
            "they must be equal: squeeze or reshape one of them."
        )
    values = given.detach().to("cpu", torch.float64).reshape(-1)
    if values.numel():
        low, high = torch.aminmax(values)
        if not (low.item() >= least and high.item() <= most):  # so that NaN, too, is caught
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
    """The bucket of each logit; it never falls where the logit grows."""
    bits = logit.float().view(torch.int32)
    size = (bits & 0x7FFFFFFF).bitwise_right_shift_(_MANTISSA_BITS - _KEPT_BITS)
    size.sub_(_LOWEST_EXPONENT << _KEPT_BITS).clamp_(0, _HALF)
    sign = bits >> 31  # -1 or 0; `^` and `-` with it negate or keep, faster than a choice
    return size.bitwise_xor_(sign).sub_(sign).add_(_HALF)


def _entropy(positives: float, negatives: float) -> float:
    """The log loss of always predicting the mean label; NaN where all labels are equal."""
    shares = [part / (positives + negatives) for part in (positives, negatives)]
    if not all(shares):
        return math.nan
    return -sum(share * math.log(share) for share in shares)


_MOST_DEFERRED = 1000  # batches that wait; then all are looked at


class DeferredMetrics:
    """Hands batches to `metrics`: those of the CPU at once, those of a device with `settle`.

    What is not finite on a device is refused then, up to a line of the log later.

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
        """Looks at what waits; waits for the device."""
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self._metrics.update(*batch)
