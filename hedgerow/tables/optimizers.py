"""The optimizers that users write, their learning rates, and what an optimizer tells a table.

Bias corrections of the Adam family follow the step of the update, as torch's SparseAdam does, or
count the updates of each row.
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
    """A rate that follows the step, comparable and writable to a file."""

    def __call__(self, step: int) -> float:
        """The rate at `step`, counted before the step is taken."""
        raise NotImplementedError


@dataclass(frozen=True)
class Polynomial(RateSchedule):
    """From `initial` to `end` in `decay_steps`; it may fall or rise.

    With `cycle` the whole is stretched to the next multiple of `decay_steps` instead of ending.

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
        """The rate at `step`."""
        span = self.decay_steps
        if self.cycle:
            span *= max(1, math.ceil(step / self.decay_steps))
        left = 1 - min(step, span) / span
        return (self.initial - self.end) * left**self.power + self.end


Rate = float | RateSchedule | Callable[[int], float]


def check_rate(owner: str, name: str, rate: Rate) -> None:
    """Refuses what can never be a rate; a callable is checked each time it is asked."""
    if callable(rate):
        return
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real):
        raise ConfigError(f"{owner}.{name} is {rate!r}; it must be a number, schedule or callable.")
    checks.setting(owner, name, rate, least=0)  # pyright: ignore[reportArgumentType]


def rate_at(rate: Rate, step: int) -> float:
    """The rate at `step`, whatever its source; never negative, never NaN.

    >>> rate_at(0.1, 7), rate_at(lambda step: 1 / (1 + step), 4)
    (0.1, 0.2)
    """
    now = rate(step) if callable(rate) else rate
    if isinstance(now, Tensor) and now.numel() == 1:
        now = now.item()
    return checks.rate(f"the rate at step {step}", now)


def check_rates(rates: Sequence[Rate], segments: int) -> tuple[Rate, ...]:
    """One source a segment, or an error that states both numbers."""
    if isinstance(rates, str) or not isinstance(rates, Sequence):
        raise ConfigError(f"rates is {rates!r}; give a list with one rate a segment, in order.")
    if len(rates) != segments:
        raise ConfigError(
            f"{len(rates)} rates for {segments} segments; give one rate a segment, in order."
        )
    for i, rate in enumerate(rates):
        check_rate("rates", str(i), rate)
    return tuple(rates)


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """One state of a row: a float beside every value, or one number for the segment."""

    name: str
    initial: float = 0.0
    per: Literal["value", "row"] = "value"
    dtype: Literal["float32", "int64"] = "float32"
    least: float | None = None  # no update makes it smaller: a saved value below is damaged

    def floats(self, dim: int) -> int:
        """Room it takes behind a segment of `dim`, in floats; an int64 takes two."""
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
        """How the core runs it."""
        raise NotImplementedError

    def rate(self) -> Rate:
        """Its own rate, used when a call gives none."""
        raise NotImplementedError

    @property
    def follows_step(self) -> bool:
        """Whether an update cannot do without its step, whatever its rate."""
        return False

    def check_dim(self, dim: int) -> None:
        """Raises if it cannot serve a segment of `dim`."""


def warmed_up(learning_rate: float, warmup_steps: int) -> Rate:
    """`learning_rate`, reached along a straight line from 0 over `warmup_steps`."""
    if warmup_steps == 0:
        return learning_rate
    return Polynomial(initial=0.0, decay_steps=warmup_steps, end=learning_rate)


@dataclass(frozen=True)
class _TorchOptimizer(Optimizer):
    """Common to all: the rate `lr`."""

    lr: Rate = 1e-3

    def __post_init__(self) -> None:
        check_rate(type(self).__name__, "lr", self.lr)

    def _check(self, name: str, *, least: float = 0.0, below: float = float("inf")) -> None:
        owner = type(self).__name__
        checks.setting(owner, name, getattr(self, name), least=least, below=below)

    def rate(self) -> Rate:
        """`lr`."""
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
        """One product and one subtraction; no state."""
        return Rule("sgd", (self.weight_decay,))


@dataclass(frozen=True)
class Momentum(_TorchOptimizer):
    """Heavy ball: torch's SGD with `momentum`, plain or Nesterov.

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
        """The buffer does not contain the rate."""
        settings = (self.weight_decay, self.momentum, float(self.nesterov))
        return Rule("torch_momentum", settings, (OptimizerState("momentum_buffer"),))


@dataclass(frozen=True)
class Adagrad(_TorchOptimizer):
    """Adagrad with one sum of squares a value.

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
        """w -= lr g / (sqrt(sum) + eps)."""
        states = (OptimizerState("sum", self.initial_accumulator_value, least=0),)
        return Rule("adagrad", (self.weight_decay, self.eps), states)


@dataclass(frozen=True)
class RowAdagrad(_TorchOptimizer):
    """Row-wise Adagrad, as FBGEMM has it: one mean square a row.

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
        """w -= lr g / (sqrt(sum of mean squares) + eps)."""
        states = (OptimizerState("sum", per="row", least=0),)
        return Rule("row_adagrad", (self.weight_decay, self.eps), states)


BiasCorrection = Literal["step", "row"]
_BY_ROW, _BY_STEP, _BY_STEP_SPARSE = 0.0, 1.0, 2.0  # the last setting of the core's Adam rules


@dataclass(frozen=True)
class Adam(_TorchOptimizer):
    """Adam for the rows that have a gradient, with the formula of torch's SparseAdam.

    `bias_correction` says what the corrections of the two moments count. "step": all updates, the
    same number for every row: `step` + 1 of `apply_gradients`. A module passes the number of the
    updates that it has made. "row": the updates of each row, with the formula of torch's dense
    Adam; the first update of a row then moves it by `lr`. A call without `step` counts so, too.

    `dense` comes as near to torch's dense Adam as a table can: when a row gets a gradient again,
    the updates that dense Adam would have made without one are made up for first, at the present
    rate. Until then the row reads as its last update left it. It needs `step`, and
    `betas[0]**2 < betas[1]`.

    The missed updates are made up for in at most six pieces, with `eps` as it stands in the middle
    of each. So a row differs from dense Adam's by a part of `lr` that grows as gradients come near
    `eps`. Measured at a fixed rate and the default settings, over 16 runs of 30 rows that have a
    gradient in one step of twenty: at most 0.0001 `lr` where gradients have a deviation of 0.01,
    0.001 `lr` at 1e-3, 0.01 `lr` at 1e-4 and 0.04 `lr` at 1e-5 to 1e-9. With
    `betas[0] == betas[1]` it is four times as much. A rate that changes over a gap adds to it.

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
                f"added to the gradient cannot be made up for. Use AdamW or weight_decay=0."
            )
        if self.betas[0] ** 2 >= self.betas[1]:
            raise ConfigError(
                f"{owner}.dense is True with betas {self.betas}; it needs betas[0]**2 < betas[1], "
                f"or rows without a gradient would move ever faster."
            )

    @classmethod
    def of_older_record(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """A record of version 0.1 has all other settings and means "row"."""
        complete = {"lr", "betas", "eps", "weight_decay"} <= set(settings)
        if complete and not {"bias_correction", "dense"} & set(settings):
            return {**settings, "bias_correction": "row"}
        return settings

    @property
    def follows_step(self) -> bool:
        """Whether an update cannot do without its step."""
        return self.dense

    @property
    def _decoupled(self) -> bool:
        return False

    def rule(self) -> Rule:
        """The decay is added to the gradient."""
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

    torch has no sparse form of it: rows with a gradient follow torch's `Adam(amsgrad=True)`.

    >>> [state.name for state in AmsGrad().rule().states]
    ['exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'step']
    """

    kind = "AmsGrad"

    def rule(self) -> Rule:
        """As Adam, with one state more."""
        return self._rule("amsgrad", ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with the decay apart from the gradient.

    torch has no sparse form of it: rows with a gradient follow torch's `AdamW`.

    >>> AdamW().weight_decay
    0.01
    """

    kind = "AdamW"
    weight_decay: float = 1e-2

    @property
    def _decoupled(self) -> bool:
        return True

    def rule(self) -> Rule:
        """The row shrinks by lr * weight_decay before the step."""
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
        """w -= lr g / (sqrt(square_avg) + eps), through the buffer if there is one."""
        settings = (self.alpha, 1 - self.alpha, self.eps, self.weight_decay, self.momentum)
        if self.momentum == 0:
            return Rule("torch_rmsprop", settings, (OptimizerState("square_avg", least=0),))
        states = (OptimizerState("square_avg", least=0), OptimizerState("momentum_buffer"))
        return Rule("torch_rmsprop_momentum", settings, states)


@dataclass(frozen=True)
class Ftrl(_TorchOptimizer):
    """Follow the regularised leader; torch has none, so Monolith's formula and defaults.

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
        """A row of exact zeros where l1 wins."""
        states = (
            OptimizerState("norm", self.initial_accumulator_value, least=0),
            OptimizerState("zero"),
        )
        return Rule("ftrl", (self.beta, self.l1, self.l2), states)
