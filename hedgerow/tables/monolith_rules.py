"""Monolith's optimizers and admission rules, which configurations and checkpoints may name.

Settings that Monolith accepts and ignores are accepted at their defaults and refused otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .. import native
from ..core import checks
from ..core.errors import ConfigError, NotSupportedError
from .admission import (
    CAPACITY_IDS,
    MAX_COUNT,
    SPLIT_NUM,
    AdmissionQuestion,
    AdmissionRule,
    check_sizes,
)
from .optimizers import Optimizer, OptimizerState, Rate, Rule, warmed_up


@dataclass(frozen=True)
class _MonolithOptimizer(Optimizer):
    """Base of the optimizers that have a rate."""

    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        self._check("learning_rate", least=0)
        warmup_steps = getattr(self, "warmup_steps", 0)
        checks.whole(self.kind, "warmup_steps", warmup_steps)

    def _check(self, *names: str, least: float = 0.0, below: float = math.inf) -> None:
        for name in names:
            checks.setting(self.kind, name, getattr(self, name), least=least, below=below)

    def _ignored(self, name: str, default: object) -> None:
        if getattr(self, name) != default:
            raise ConfigError(
                f"{self.kind}.{name} is {getattr(self, name)!r}; Monolith never reads it, so "
                f"only its default {default!r} is accepted."
            )

    def rate(self) -> Rate:
        """Returns `learning_rate`, with its warm-up if there is one."""
        return warmed_up(self.learning_rate, getattr(self, "warmup_steps", 0))


@dataclass(frozen=True)
class MonolithSgd(_MonolithOptimizer):
    """`sgd`: w -= rate g."""

    kind = "sgd"
    warmup_steps: int = 0

    def rule(self) -> Rule:
        """Returns the rule, which has no state."""
        return Rule("sgd", (0.0,))


@dataclass(frozen=True)
class MonolithAdagrad(_MonolithOptimizer):
    """`adagrad`: coupled decay, no epsilon."""

    kind = "adagrad"
    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    hessian_compression_times: int = 1
    weight_decay_factor: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("initial_accumulator_value", "weight_decay_factor")
        self._ignored("hessian_compression_times", 1)

    def rule(self) -> Rule:
        """Returns the rule, with one accumulator per value."""
        states = (OptimizerState("norm", self.initial_accumulator_value, least=0),)
        return Rule("adagrad", (self.weight_decay_factor, 0.0), states)


@dataclass(frozen=True)
class DynamicWdAdagrad(MonolithAdagrad):
    """`dynamic_wd_adagrad`: coupled or decoupled decay; the dynamic part has no formula."""

    kind = "dynamic_wd_adagrad"
    decouple_weight_decay: bool = False
    enable_dynamic_wd: bool = False
    dynamic_wd_temperature: float = 1.0
    flip_direction: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.enable_dynamic_wd:
            raise NotSupportedError(
                "dynamic_wd_adagrad.enable_dynamic_wd is True; Monolith has no code for it. Set it "
                "to False: decouple_weight_decay chooses between coupled and decoupled decay."
            )
        checks.switch(self.kind, "decouple_weight_decay", self.decouple_weight_decay)
        self._ignored("dynamic_wd_temperature", 1.0)
        self._ignored("flip_direction", False)

    def rule(self) -> Rule:
        """Returns the rule; the coupled form is that of `adagrad`."""
        if not self.decouple_weight_decay:
            return super().rule()
        states = (OptimizerState("norm", self.initial_accumulator_value, least=0),)
        return Rule("decoupled_adagrad", (self.weight_decay_factor,), states)


@dataclass(frozen=True)
class Adadelta(_MonolithOptimizer):
    """`adadelta`."""

    kind = "adadelta"
    weight_decay_factor: float = 0.0
    averaging_ratio: float = 0.9
    epsilon: float = 0.01
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("weight_decay_factor", "epsilon")
        self._check("averaging_ratio", below=1)

    def rule(self) -> Rule:
        """Returns the rule, with two averages per value."""
        ratio = self.averaging_ratio
        settings = (self.weight_decay_factor, ratio, 1 - ratio, self.epsilon)
        return Rule(
            "adadelta",
            settings,
            (OptimizerState("accum", least=0), OptimizerState("accum_update", least=0)),
        )


@dataclass(frozen=True)
class MonolithAmsGrad(_MonolithOptimizer):
    """`amsgrad`: adam with the largest second moment; epsilon .01 outside the root."""

    kind = "amsgrad"
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    epsilon: float = 0.01
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta1", "beta2", below=1)
        self._check("weight_decay_factor", "epsilon")
        checks.switch(self.kind, "use_nesterov", self.use_nesterov)

    def rule(self) -> Rule:
        """Returns the rule, with three averages per value and two powers per row."""
        return self._rule("amsgrad", ("m", "v", "vhat"))

    def _rule(self, name: str, moments: tuple[str, ...]) -> Rule:
        settings = (
            self.beta1,
            1 - self.beta1,
            self.beta2,
            1 - self.beta2,
            self.epsilon,
            self.weight_decay_factor,
            float(self.use_nesterov),
        )
        powers = (
            OptimizerState("beta1_power", self.beta1, per="row", least=0),
            OptimizerState("beta2_power", self.beta2, per="row", least=0),
        )
        return Rule(
            name,
            settings,
            (*(OptimizerState(m, least=0 if m[0] == "v" else None) for m in moments), *powers),
        )


@dataclass(frozen=True)
class MonolithAdam(MonolithAmsGrad):
    """`adam`: epsilon .01 outside the root, powers of beta kept a row."""

    kind = "adam"
    use_beta1_warmup: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ignored("use_beta1_warmup", False)

    def rule(self) -> Rule:
        """Returns the rule, with two averages per value and two powers per row."""
        return self._rule("adam", ("m", "v"))


@dataclass(frozen=True)
class MonolithFtrl(_MonolithOptimizer):
    """`ftrl`."""

    kind = "ftrl"
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta", "initial_accumulator_value")
        self._check("l1_regularization_strength", "l2_regularization_strength")

    def rule(self) -> Rule:
        """Returns the rule. `group_ftrl` has the same settings and states."""
        settings = (self.beta, self.l1_regularization_strength, self.l2_regularization_strength)
        states = (
            OptimizerState("norm", self.initial_accumulator_value, least=0),
            OptimizerState("zero"),
        )
        return Rule(self.kind, settings, states)


@dataclass(frozen=True)
class GroupFtrl(MonolithFtrl):
    """`group_ftrl`: l1 acts on the norm of the whole segment."""

    kind = "group_ftrl"
    beta: float = 1.0
    initial_accumulator_value: float = 0.0


@dataclass(frozen=True)
class GroupAdagrad(_MonolithOptimizer):
    """`group_adagrad`: one accumulator per segment; l2 acts on the norm of the segment."""

    kind = "group_adagrad"
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    l2_regularization_strength: float = 0.0
    weight_decay_factor: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta", "initial_accumulator_value")
        self._check("l2_regularization_strength", "weight_decay_factor")

    def rule(self) -> Rule:
        """Returns the rule. The largest square of a row is added to the accumulator."""
        settings = (self.beta, self.l2_regularization_strength, self.weight_decay_factor)
        states = (
            OptimizerState("grad_square_sum", self.initial_accumulator_value, per="row", least=0),
        )
        return Rule("group_adagrad", settings, states)


@dataclass(frozen=True)
class MonolithMomentum(_MonolithOptimizer):
    """`momentum`: the velocity contains the rate."""

    kind = "momentum"
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    momentum: float = 0.9
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("weight_decay_factor")
        self._check("momentum", below=1)
        checks.switch(self.kind, "use_nesterov", self.use_nesterov)

    def rule(self) -> Rule:
        """Returns the rule, with one velocity per value."""
        settings = (self.weight_decay_factor, self.momentum, float(self.use_nesterov))
        return Rule("momentum", settings, (OptimizerState("n"),))


@dataclass(frozen=True)
class MovingAverage(Optimizer):
    """`moving_average`: the row follows an observed value, which is passed as gradient.

    It has no rate.
    """

    kind = "moving_average"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        checks.setting(self.kind, "momentum", self.momentum, least=0, below=1)

    def rule(self) -> Rule:
        """Returns the rule, which has no state."""
        return Rule("moving_average", (self.momentum, 1 - self.momentum))

    def rate(self) -> Rate:
        """Returns 0; the rule does not use it."""
        return 0.0


@dataclass(frozen=True)
class MonolithRmsProp(_MonolithOptimizer):
    """`rmsprop`: 1 is added to the root."""

    kind = "rmsprop"
    weight_decay_factor: float = 0.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("weight_decay_factor")
        self._check("momentum", below=1)

    def rule(self) -> Rule:
        """Returns the rule, with a mean of squares."""
        settings = (self.weight_decay_factor, self.momentum, 1 - self.momentum)
        return Rule("rmsprop", settings, (OptimizerState("n", least=0),))


@dataclass(frozen=True)
class RmsPropV2(MonolithRmsProp):
    """`rmspropv2`: rmsprop with a fading sum instead of a mean."""

    kind = "rmspropv2"

    def rule(self) -> Rule:
        """Returns the rule, with a decaying sum of squares."""
        return Rule(
            "rmspropv2", (self.weight_decay_factor, self.momentum), (OptimizerState("n", least=0),)
        )


@dataclass(frozen=True)
class BatchSoftmax(_MonolithOptimizer):
    """`batch_softmax`: learns the mean interval between updates of an id, in steps.

    It ignores the values of gradients.
    """

    kind = "batch_softmax"
    learning_rate: float = 0.1

    def check_dim(self, dim: int) -> None:
        """Raises unless the segment has one column."""
        if dim != 1:
            raise ConfigError(f"batch_softmax has dim {dim}; it learns one number: use dim=1.")

    def rule(self) -> Rule:
        """Returns the rule, whose state is the last step at which the row was updated."""
        return Rule(
            "batch_softmax", (), (OptimizerState("global_step", per="row", dtype="int64", least=0),)
        )


_FOUR_BITS = 15
_SLOTS = 2**15
SlotThresholds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class OccurrenceThreshold(AdmissionRule):
    """Drops the first `default` occurrences of an absent id.

    `slots` sets other thresholds for single slots of v2 ids. A threshold of 0 admits every id and
    counts nothing. With `four_bit_counts`, as in Monolith, counts stop at 15, and higher thresholds
    never admit an id. Without it, counts go up to 255, and higher thresholds raise an error.

    >>> OccurrenceThreshold(default=2, slots=((1, 5),)).threshold_of(1)
    5
    """

    kind = "occurrence_threshold"
    default: int = 0
    slots: SlotThresholds = ()
    capacity_ids: int = CAPACITY_IDS
    split_num: int = SPLIT_NUM
    four_bit_counts: bool = False

    def __post_init__(self) -> None:
        owner = "OccurrenceThreshold"
        _check_thresholds(owner, self.default, self.slots)
        checks.switch(owner, "four_bit_counts", self.four_bit_counts)
        check_sizes(owner, self.capacity_ids, self.split_num)
        largest = max([self.default, *(value for _, value in self.slots)])
        if largest > MAX_COUNT and not self.four_bit_counts:
            raise ConfigError(
                f"{owner} has a threshold of {largest}; counts have 8 bits: at most {MAX_COUNT}."
            )

    def threshold_of(self, slot: int) -> int:
        """Returns the threshold of a slot."""
        return dict(self.slots).get(slot, self.default)

    def question(self) -> AdmissionQuestion | None:
        """Returns a check of the count before the call; None if every threshold is 0."""
        if self.default == 0 and not any(value for _, value in self.slots):
            return None
        return AdmissionQuestion(
            "count", self.default, self.slots, may_never_pass=self.four_bit_counts
        )

    def filter_settings(self) -> dict[str, int]:
        """Returns the settings of the rule's filter."""
        return {
            "capacity_ids": self.capacity_ids,
            "split_num": self.split_num,
            "max_count": _FOUR_BITS if self.four_bit_counts else MAX_COUNT,
        }


@dataclass(frozen=True)
class ProbabilisticThreshold(AdmissionRule):
    """Admits an absent id at random, on average about once in `default` occurrences.

    For an id that occurs n times in a call and a threshold t, the probability is min(1, n / t) in
    the form "unequal", and 1 - 0.05 ** (n / t) in the form "equal", which gives 95 % after t
    occurrences. A threshold of 0 admits every id. `slots` sets thresholds for single slots.

    >>> ProbabilisticThreshold(default=7, form="unequal").probability(occurrences=7)
    1.0
    """

    kind = "probabilistic_threshold"
    needs_step = True
    default: int = 0
    slots: SlotThresholds = ()
    form: str = "equal"

    def __post_init__(self) -> None:
        _check_thresholds("ProbabilisticThreshold", self.default, self.slots)
        checks.choice("ProbabilisticThreshold", "form", self.form, ("equal", "unequal"))

    def probability(self, *, occurrences: int, slot: int | None = None) -> float:
        """Returns the probability that an absent id of a slot is admitted.

        None is a slot without a threshold of its own.
        """
        threshold = self.default if slot is None else dict(self.slots).get(slot, self.default)
        n = checks.count("occurrences", occurrences, least=1)
        return native.admission_probability(self.form, float(threshold), n)

    def question(self) -> AdmissionQuestion | None:
        """Returns a check by one draw per id and call; None if every threshold is 0."""
        if self.default == 0 and not any(value for _, value in self.slots):
            return None
        return AdmissionQuestion(self.form, self.default, self.slots)


def _check_thresholds(owner: str, default: int, slots: SlotThresholds) -> None:
    checks.whole(owner, "default", default)
    pairs = isinstance(slots, tuple) and all(isinstance(s, tuple) and len(s) == 2 for s in slots)
    if not pairs:
        raise ConfigError(f"{owner}.slots is {slots!r}; give a tuple of (slot, threshold) pairs.")
    for slot, threshold in slots:
        checks.whole(owner, "slots' slot", slot)
        checks.whole(owner, f"slots' threshold of slot {slot}", threshold)
        if slot >= _SLOTS:
            raise ConfigError(f"{owner}.slots has slot {slot}; slots are 0..{_SLOTS - 1}.")
    if len({slot for slot, _ in slots}) < len(slots):
        raise ConfigError(f"{owner}.slots is {slots!r}; a slot has one threshold.")
