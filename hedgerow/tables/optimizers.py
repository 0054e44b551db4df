"""The optimizers that users write, their learning rates, and their update rules.

The bias correction of the Adam family counts the step of the update, as torch's SparseAdam does, or
the updates of each row.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError
from ..core.records import Record


class RateSchedule(Record):
    """A rate that depends on the step. It can be compared and written to a file."""

    def __call__(self, step: int) -> float:
        """Returns the rate at `step`, the number of steps before this one."""
        raise NotImplementedError


@dataclass(frozen=True)
class Polynomial(RateSchedule):
    """Goes from `initial` to `end` in `decay_steps` steps; the rate may fall or rise.

    With `cycle`, the schedule is stretched to the next multiple of `decay_steps` instead of ending.

    >>> warmup = Polynomial(initial=0.0, decay_steps=20, end=0.05)
    >>> warmup(0), round(warmup(10), 9), warmup(25)
    (0.0, 0.025, 0.05)
    """

    kind = "polynomial"
    initial: float
    decay_steps: int
    end: float = 1e-4
    power: float = 1.0
    cycle: bool = False

    def __post_init__(self) -> None:
        checks.setting("Polynomial", "initial", self.initial, least=0)
        checks.whole("Polynomial", "decay_steps", self.decay_steps, least=1)
        checks.setting("Polynomial", "end", self.end, least=0)
        checks.setting("Polynomial", "power", self.power, above=0)
        checks.switch("Polynomial", "cycle", self.cycle)

    def __call__(self, step: int) -> float:
        """Returns the rate at `step`."""
        span = self.decay_steps
        if self.cycle:
            span *= max(1, math.ceil(step / self.decay_steps))
        left = 1 - min(step, span) / span
        return (self.initial - self.end) * left**self.power + self.end


Rate = float | RateSchedule | Callable[[int], float]


def check_rate(owner: str, name: str, rate: Rate) -> None:
    """Raises if `rate` can never be a rate. The results of a callable are checked at each call."""
    if callable(rate):
        return
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real):
        raise ConfigError(f"{owner}.{name} is {rate!r}; it must be a number, schedule or callable.")
    checks.setting(owner, name, rate, least=0)  # pyright: ignore[reportArgumentType]


def rate_at(rate: Rate, step: int) -> float:
    """Returns the rate at `step` for any kind of rate; raises if it is negative or NaN.

    >>> rate_at(0.1, 7), rate_at(lambda step: 1 / (1 + step), 4)
    (0.1, 0.2)
    """
    now = rate(step) if callable(rate) else rate
    if isinstance(now, Tensor) and now.numel() == 1:
        now = now.item()
    return checks.rate(f"the rate at step {step}", now)


def check_rates(rates: Sequence[Rate], segments: int) -> tuple[Rate, ...]:
    """Returns one rate per segment; raises an error with both numbers if the count is wrong."""
    if isinstance(rates, str) or not isinstance(rates, Sequence):
        raise ConfigError(f"rates is {rates!r}; give a list with one rate per segment, in order.")
    if len(rates) != segments:
        raise ConfigError(
            f"{len(rates)} rates for {segments} segments; give one rate per segment, in order."
        )
    for i, rate in enumerate(rates):
        check_rate("rates", str(i), rate)
    return tuple(rates)


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """One optimizer state of a row: one float per value, or one number for the segment."""

    name: str
    initial: float = 0.0
    per: Literal["value", "row"] = "value"
    dtype: Literal["float32", "int64"] = "float32"
    least: float | None = None  # a smaller saved value is damaged

    def floats(self, dim: int) -> int:
        """Returns its size for a segment of `dim`, in floats; an int64 takes two."""
        return dim if self.per == "value" else (2 if self.dtype == "int64" else 1)


@dataclass(frozen=True, slots=True)
class Rule:
    """An update rule of the native core: its settings and states, in the core's order."""

    name: str
    settings: tuple[float, ...] = ()
    states: tuple[OptimizerState, ...] = ()


class Optimizer(Record):
    """Base of every row optimizer."""

    def rule(self) -> Rule:
        """Returns the update rule for the core."""
        raise NotImplementedError

    def rate(self) -> Rate:
        """Returns the optimizer's own rate, which is used if a call gives none."""
        raise NotImplementedError

    @property
    def follows_step(self) -> bool:
        """Whether updates need the step, whatever the rate."""
        return False

    def check_dim(self, dim: int) -> None:
        """Raises if the optimizer does not support a segment of `dim`."""


def warmed_up(learning_rate: float, warmup_steps: int) -> Rate:
    """Returns a rate that rises linearly from 0 to `learning_rate` over `warmup_steps`."""
    if warmup_steps == 0:
        return learning_rate
    return Polynomial(initial=0.0, decay_steps=warmup_steps, end=learning_rate)


@dataclass(frozen=True)
class _TorchOptimizer(Optimizer):
    """Base of the optimizers that have a rate `lr`."""

    lr: Rate = 1e-3

    def __post_init__(self) -> None:
        check_rate(type(self).__name__, "lr", self.lr)

    def _check(self, name: str, *, least: float = 0.0, below: float = float("inf")) -> None:
        owner = type(self).__name__
        checks.setting(owner, name, getattr(self, name), least=least, below=below)

    def rate(self) -> Rate:
        """Returns `lr`."""
        return self.lr


@dataclass(frozen=True)
class Sgd(_TorchOptimizer):
    """Plain gradient descent.

    >>> Sgd(lr=0.1).rule().name
    'sgd'
    """

    kind = "Sgd"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("weight_decay")

    def rule(self) -> Rule:
        """Returns the rule, which has no state."""
        return Rule("sgd", (self.weight_decay,))


@dataclass(frozen=True)
class Momentum(_TorchOptimizer):
    """SGD with momentum, plain or Nesterov, as torch's SGD with `momentum`.

    >>> [state.name for state in Momentum().rule().states]
    ['momentum_buffer']
    """

    kind = "Momentum"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", below=1.0)
        self._check("weight_decay")
        checks.switch("Momentum", "nesterov", self.nesterov)

    def rule(self) -> Rule:
        """Returns the rule. Its buffer does not include the rate."""
        settings = (self.weight_decay, self.momentum, float(self.nesterov))
        return Rule("torch_momentum", settings, (OptimizerState("momentum_buffer"),))


@dataclass(frozen=True)
class Adagrad(_TorchOptimizer):
    """Adagrad with one sum of squares per value.

    >>> Adagrad(lr=0.1).eps
    1e-10
    """

    kind = "Adagrad"
    lr: Rate = 1e-2
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("initial_accumulator_value", "eps", "weight_decay"):
            self._check(name)

    def rule(self) -> Rule:
        """Returns the rule: w -= lr g / (sqrt(sum) + eps)."""
        states = (OptimizerState("sum", self.initial_accumulator_value, least=0),)
        return Rule("adagrad", (self.weight_decay, self.eps), states)


@dataclass(frozen=True)
class RowAdagrad(_TorchOptimizer):
    """Row-wise Adagrad, as in FBGEMM: one mean square per row.

    >>> RowAdagrad().rule().states[0].floats(dim=64)
    1
    """

    kind = "RowAdagrad"
    lr: Rate = 1e-2
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("eps")
        self._check("weight_decay")

    def rule(self) -> Rule:
        """Returns the rule: w -= lr g / (sqrt(sum of mean squares) + eps)."""
        states = (OptimizerState("sum", per="row", least=0),)
        return Rule("row_adagrad", (self.weight_decay, self.eps), states)


BiasCorrection = Literal["step", "row"]
_BY_ROW, _BY_STEP, _BY_STEP_SPARSE = 0.0, 1.0, 2.0  # the last setting of the core's Adam rules


@dataclass(frozen=True)
class Adam(_TorchOptimizer):
    """Adam for the rows that have a gradient, with the formula of torch's SparseAdam.

    `bias_correction` is what the corrections of the two moments count:

    - "step": all updates, which is `step` + 1 of `apply_gradients` for every row. A module passes
      the number of updates it has made. A call without `step` counts as "row" does.
    - "row": the updates of each row, with the formula of torch's dense Adam. The first update of a
      row then moves it by `lr`.

    `dense` approximates torch's dense Adam. When a row gets a gradient again, the updates that
    dense Adam would have made in between are applied first, at the present rate. Until then, reads
    return the row as of its last update. It needs `step`, and `betas[0]**2 < betas[1]`.

    The missed updates are applied in at most six pieces, each with the effect of `eps` at its
    middle. The row therefore differs from dense Adam by a fraction of `lr`, which grows as the
    gradients approach `eps`. The difference was measured at a fixed rate and default settings, over
    16 runs of 30 rows that have a gradient in one of twenty steps: at most 0.0001 `lr` for
    gradients with a standard deviation of 0.01, 0.001 `lr` at 1e-3, 0.01 `lr` at 1e-4 and 0.04 `lr`
    at 1e-5 to 1e-9. With `betas[0] == betas[1]` it is four times as large. A rate that changes over
    the gap adds to it.

    >>> Adam(betas=(0.8, 0.9)).rule().settings[:2]
    (0.8, 0.19999999999999996)
    >>> [state.name for state in Adam(dense=True).rule().states]
    ['exp_avg', 'exp_avg_sq', 'last_step']
    """

    kind = "Adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    bias_correction: BiasCorrection = "step"
    dense: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise ConfigError(
                f"{owner}.betas is {self.betas!r}; it must be a tuple of two numbers."
            )
        for i, beta in enumerate(self.betas):
            checks.setting(owner, f"betas[{i}]", beta, least=0, below=1)
        self._check("eps")
        self._check("weight_decay")
        checks.choice(owner, "bias_correction", self.bias_correction, get_args(BiasCorrection))
        checks.switch(owner, "dense", self.dense)
        if self.dense:
            self._check_dense(owner)

    def _check_dense(self, owner: str) -> None:
        if self.bias_correction != "step":
            raise ConfigError(
                f"{owner}.dense is True with bias_correction {self.bias_correction!r}; dense Adam "
                f"counts steps: use bias_correction='step'."
            )
        if self.weight_decay and not self._decoupled:
            raise ConfigError(
                f"{owner}.dense is True with weight_decay {self.weight_decay}; a decay that is "
                f"added to the gradient cannot be applied later. Use AdamW or weight_decay=0."
            )
        if self.betas[0] ** 2 >= self.betas[1]:
            raise ConfigError(
                f"{owner}.dense is True with betas {self.betas}; it needs betas[0]**2 < betas[1], "
                f"or rows without a gradient would move ever faster."
            )

    @classmethod
    def of_older_record(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the settings; a record of version 0.1 without bias_correction means "row"."""
        complete = {"lr", "betas", "eps", "weight_decay"} <= set(settings)
        if complete and not {"bias_correction", "dense"} & set(settings):
            return {**settings, "bias_correction": "row"}
        return settings

    @property
    def follows_step(self) -> bool:
        """Whether updates need the step, whatever the rate."""
        return self.dense

    @property
    def _decoupled(self) -> bool:
        return False

    def rule(self) -> Rule:
        """Returns the rule, which adds the decay to the gradient."""
        return self._rule("adam", ("exp_avg", "exp_avg_sq"), by_step=_BY_STEP_SPARSE)

    def _rule(self, name: str, states: tuple[str, ...], *, by_step: float = _BY_STEP) -> Rule:
        beta1, beta2 = self.betas
        counted = _BY_STEP if self.dense else by_step
        settings = (
            beta1,
            1 - beta1,
            beta2,
            1 - beta2,
            self.eps,
            self.weight_decay,
            float(self._decoupled),
            counted if self.bias_correction == "step" else _BY_ROW,
        )
        moments = tuple(OptimizerState(s, least=0 if "sq" in s else None) for s in states)
        if self.dense:
            last = OptimizerState("last_step", per="row", dtype="int64", least=0)
            return Rule(f"dense_{name}", settings, (*moments, last))
        return Rule(
            f"torch_{name}", settings, (*moments, OptimizerState("step", per="row", least=0))
        )


@dataclass(frozen=True)
class AmsGrad(Adam):
    """Adam with the largest second moment so far in the denominator.

    torch has no sparse version. Rows with a gradient follow torch's `Adam(amsgrad=True)`.

    >>> [state.name for state in AmsGrad().rule().states]
    ['exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'step']
    """

    kind = "AmsGrad"

    def rule(self) -> Rule:
        """Returns the rule, which has one more state than Adam's."""
        return self._rule("amsgrad", ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay that is separate from the gradient.

    torch has no sparse version. Rows with a gradient follow torch's `AdamW`.

    >>> AdamW().weight_decay
    0.01
    """

    kind = "AdamW"
    weight_decay: float = 1e-2

    @property
    def _decoupled(self) -> bool:
        return True

    def rule(self) -> Rule:
        """Returns the rule, which first shrinks the row by lr * weight_decay."""
        return self._rule("adam", ("exp_avg", "exp_avg_sq"))


@dataclass(frozen=True)
class RmsProp(_TorchOptimizer):
    """RMSprop, with a momentum buffer only if `momentum` is above 0.

    >>> len(RmsProp().rule().states), len(RmsProp(momentum=0.5).rule().states)
    (1, 2)
    """

    kind = "RmsProp"
    lr: Rate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("alpha", below=1.0)
        self._check("momentum", below=1.0)
        self._check("eps")
        self._check("weight_decay")

    def rule(self) -> Rule:
        """Returns the rule: w -= lr g / (sqrt(square_avg) + eps), or through the buffer."""
        settings = (self.alpha, 1 - self.alpha, self.eps, self.weight_decay, self.momentum)
        if self.momentum == 0:
            return Rule("torch_rmsprop", settings, (OptimizerState("square_avg", least=0),))
        states = (OptimizerState("square_avg", least=0), OptimizerState("momentum_buffer"))
        return Rule("torch_rmsprop_momentum", settings, states)


@dataclass(frozen=True)
class Ftrl(_TorchOptimizer):
    """Follow the regularized leader, with Monolith's formula and defaults; torch has no FTRL.

    >>> [state.name for state in Ftrl(l1=0.1).rule().states]
    ['norm', 'zero']
    """

    kind = "Ftrl"
    lr: Rate = 1e-2
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta", "initial_accumulator_value", "l1", "l2"):
            self._check(name)

    def rule(self) -> Rule:
        """Returns the rule. It sets a row to exact zeros where l1 outweighs the gradients."""
        states = (
            OptimizerState("norm", self.initial_accumulator_value, least=0),
            OptimizerState("zero"),
        )
        return Rule("ftrl", (self.beta, self.l1, self.l2), states)
