"""The original's admission rules: thresholds per slot, by count or by chance."""

from __future__ import annotations

from dataclasses import dataclass

from .. import native
from ..core import checks
from ..core.errors import ConfigError
from .admission import Admission, Question
from .filters import CAPACITY_IDS, MAX_COUNT, SPLIT_NUM, check_sizes

_FOUR_BITS = 15
_SLOTS = 2**15
SlotThresholds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class OccurrenceThreshold(Admission):
    """Drops the first `default` occurrences of an absent id, or those its slot (v2 ids) names.

    A threshold of 0 admits at once and counts nothing. `four_bit_counts` is the original's limit:
    counts stop at 15, and thresholds above never pass; without it they go to 255, and larger ones
    are refused here.

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
        """The threshold of a slot."""
        return dict(self.slots).get(slot, self.default)

    def question(self) -> Question | None:
        """By the count before."""
        if self.default == 0 and not any(value for _, value in self.slots):
            return None
        return Question("count", self.default, self.slots, may_never_pass=self.four_bit_counts)

    def filter_settings(self) -> dict[str, int]:
        """Of its capacity."""
        return {
            "capacity_ids": self.capacity_ids,
            "split_num": self.split_num,
            "max_count": _FOUR_BITS if self.four_bit_counts else MAX_COUNT,
        }


@dataclass(frozen=True)
class ProbabilisticThreshold(Admission):
    """Admits an absent id that occurs n times in a call by chance, about once in `default` times.

    The probability is min(1, n / t) in the form "unequal", 1 - 0.05 ** (n / t) in "equal": 95 %
    after t occurrences. A threshold t of 0 admits at once. Slots may have thresholds of their own.

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
        """How likely an absent id of a slot (None: one without a threshold of its own) passes."""
        threshold = self.default if slot is None else dict(self.slots).get(slot, self.default)
        n = checks.count("occurrences", occurrences, least=1)
        return native.admission_probability(self.form, float(threshold), n)

    def question(self) -> Question | None:
        """By a draw for the call's occurrences."""
        if self.default == 0 and not any(value for _, value in self.slots):
            return None
        return Question(self.form, self.default, self.slots)


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
