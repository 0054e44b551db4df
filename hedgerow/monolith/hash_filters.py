"""The original's hash filters: one a shard, each a rule with the counts it reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from ..core import checks
from ..core.errors import ConfigError, DtypeError, InputError
from ..core.protobuf import BYTES, VARINT, Reader, WireError
from ..tables.admission import Admission
from ..tables.config import TableConfig
from ..tables.filters import CAPACITY_IDS, SPLIT_NUM, SlidingFilter
from ..tables.original_admission import (
    OccurrenceThreshold,
    ProbabilisticThreshold,
    SlotThresholds,
)

SLIDING, PROBABILISTIC, NONE = "sliding_hash_filter", "probabilistic_filter", "no_filter"


@dataclass(frozen=True, eq=False)
class HashFilter:
    """Which absent ids the tables of a shard take in; `admit` None takes all."""

    admit: Admission | None = None
    counts: SlidingFilter | None = None


def create_hash_filters(
    ps_num: int,
    enable_hash_filter: bool,
    config: bytes = b"",
    filter_capacity: int = CAPACITY_IDS,
    filter_split_num: int = SPLIT_NUM,
    filter_equal_probability: bool = False,
    filter_type: str = SLIDING,
) -> list[HashFilter]:
    """One filter for every server, one if there is none; they take all ids where it is off.

    `config` is the original's message of thresholds by slot.

    >>> [f.admit for f in create_hash_filters(2, False)]
    [None, None]
    >>> len(create_hash_filters(0, True))
    1
    """
    count = max(checks.count("ps_num", ps_num), 1)
    if filter_type not in (SLIDING, PROBABILISTIC, NONE):
        raise InputError(
            f"filter_type is {filter_type!r}; it must be one of {SLIDING}, {PROBABILISTIC}, {NONE}."
        )
    if not checks.flag("enable_hash_filter", enable_hash_filter) or filter_type == NONE:
        return [HashFilter() for _ in range(count)]
    default, slots = read_thresholds(config)
    if filter_type == PROBABILISTIC:
        equal = checks.flag("filter_equal_probability", filter_equal_probability)
        chance = ProbabilisticThreshold(default, slots, "equal" if equal else "unequal")
        return [HashFilter(chance) for _ in range(count)]
    rule = OccurrenceThreshold(default, slots, filter_capacity, filter_split_num)
    return [HashFilter(rule, rule.own_filter(seed=0)) for _ in range(count)]


def filtered(
    configs: Mapping[str, TableConfig], hash_filter: HashFilter | SlidingFilter | None
) -> dict[str, TableConfig]:
    """Configs under a filter's rule; without a filter each keeps its own."""
    if not isinstance(hash_filter, HashFilter):
        return dict(configs)
    admit = hash_filter.admit
    return {slot: dataclasses.replace(one, admit=admit) for slot, one in configs.items()}


def counts_of(hash_filter: HashFilter | SlidingFilter | None) -> SlidingFilter | None:
    """What counts ids for the tables of a shard."""
    if hash_filter is None or isinstance(hash_filter, SlidingFilter):
        return hash_filter
    if isinstance(hash_filter, HashFilter):
        return hash_filter.counts
    raise DtypeError(
        f"hash filter {hash_filter!r}; give what create_hash_filters makes, or a SlidingFilter."
    )


def read_thresholds(message: bytes) -> tuple[int, SlotThresholds]:
    """The default threshold, and those of slots, of the original's message.

    >>> read_thresholds(b"")
    (0, ())
    """
    default, slots = 0, []
    try:
        reader = Reader(message)
        for number, wire_type in reader.fields():
            if number == 1:
                reader.expect(number, wire_type, BYTES)
                slots.append(_slot(reader.bytes()))
            elif number == 2:
                reader.expect(number, wire_type, VARINT)
                default = reader.int64()
            else:
                reader.skip(number, wire_type)
    except WireError as error:
        raise ConfigError(
            f"config holds no SlotOccurrenceThresholdConfig message ({error})."
        ) from error
    return default, tuple(slots)


def _slot(message: bytes) -> tuple[int, int]:
    found = {1: 0, 2: 0}
    reader = Reader(message)
    for number, wire_type in reader.fields():
        if number in found:
            reader.expect(number, wire_type, VARINT)
            found[number] = reader.int64()
        else:
            reader.skip(number, wire_type)
    return found[1], found[2]
