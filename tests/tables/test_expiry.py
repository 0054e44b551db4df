"""Rules of eviction: what they take, what they refuse, and which rows have expired."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow.core.errors import ConfigError, DtypeError, InputError
from hedgerow.core.hashing import make_fid
from hedgerow.tables.eviction import Eviction, expired
from tests.support import table_config

RULES: list[Eviction] = [
    hr.Ttl("7d"),
    hr.Ttl(7),
    hr.Ttl(1.5, slots={3: "36h", 1: 0}, reference="wall"),
    hr.Lru(100),
    hr.Lfu(100),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rules_go_to_json_and_back_inside_a_table(rule: Eviction) -> None:
    config = table_config(evict=rule)
    again = hr.TableConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.evict == rule
    assert hash(again.evict) == hash(rule)


def test_a_table_of_an_older_config_file_has_no_rule() -> None:
    values = table_config().to_dict()
    del values["evict"]
    assert hr.TableConfig.from_dict(values).evict is None


def test_ages_are_durations_or_days_and_fractions_of_a_second_count_as_one() -> None:
    ages = ["7d", 7, "2h", 0.5, "200ms", 0, 1 / 3, "1.5s", 36500]
    seconds = [604800, 604800, 7200, 43200, 1, 0, 28800, 2, 36500 * 86400]
    assert [hr.Ttl(age).age_s(0) for age in ages] == seconds


def test_a_rule_does_not_follow_a_dict_that_changes() -> None:
    slots: dict[int, str | float] = {2: 1, 1: 3}
    rule = hr.Ttl(5, slots=slots)
    slots[2] = 9
    assert rule.slots == ((1, 3), (2, 1))
    assert [rule.age_s(slot) // 86400 for slot in (0, 1, 2)] == [5, 3, 1]
    ages = rule.ages_s()
    assert len(ages) == 2**15
    assert [int(ages[slot]) for slot in (0, 1, 2, 2**15 - 1)] == [
        rule.age_s(slot) for slot in (0, 1, 2, 2**15 - 1)
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.Ttl("7 fortnights"), "Ttl.age: '7 fortnights' is not a duration"),
        (lambda: hr.Ttl(-1), "Ttl.age is -1; it must lie in 0"),
        (lambda: hr.Ttl(float("nan")), "Ttl.age is nan"),
        (lambda: hr.Ttl(float("inf")), "Ttl.age is inf"),
        (lambda: hr.Ttl(None), "Ttl.age is None; give a duration such as '7d'"),
        (lambda: hr.Ttl(True), "Ttl.age is True; give a duration"),
        (lambda: hr.Ttl(1, slots=[1, 2]), r"Ttl.slots is \[1, 2\]; give a dict"),
        (lambda: hr.Ttl(1, slots=((1, 2, 3),)), "give a dict from slot to age"),
        (lambda: hr.Ttl(1, slots={2**15: 1}), "Ttl.slots has slot 32768; slots lie in 0..32767"),
        (lambda: hr.Ttl(1, slots={-1: 1}), "Ttl.slots is -1"),
        (lambda: hr.Ttl(1, slots={"1": 1}), "Ttl.slots is '1'; it must be a whole number"),
        (lambda: hr.Ttl(1, slots={4: "soon"}), r"Ttl.slots\[4\]: 'soon' is not a duration"),
        (lambda: hr.Ttl(1, slots=((1, 2), (1, 3))), "it names a slot twice"),
        (lambda: hr.Ttl(1, reference="now"), "Ttl.reference is 'now'; it must be one of newest"),
        (lambda: hr.Lru(0), "Lru.rows is 0; it must be at least 1"),
        (lambda: hr.Lru(1.5), "Lru.rows is 1.5; it must be a whole number"),
        (lambda: hr.Lfu(-3), "Lfu.rows is -3"),
        (lambda: table_config(evict="7d"), "TableConfig.evict is '7d'; it must be one of Lfu"),
    ],
)
def test_what_is_no_rule_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_row_of_exactly_the_age_has_expired() -> None:
    ids, ts = torch.tensor([1, 2, 3]), torch.tensor([99, 100, 101])
    assert expired(ids, ts, 100 + 86400, hr.Ttl("1d")).tolist() == [True, True, False]
    assert expired(ids, torch.zeros(3, dtype=torch.int64), 0, hr.Ttl(0)).tolist() == [True] * 3
    assert expired(ids, ts, 0, hr.Ttl("1d")).tolist() == [False] * 3


@pytest.mark.parametrize("rule", [None, hr.Lru(1), hr.Lfu(1)], ids=repr)
def test_nothing_expires_without_a_rule_of_age(rule: Eviction | None) -> None:
    ids = torch.tensor([1, 2])
    assert expired(ids, torch.zeros_like(ids), 2**60, rule).tolist() == [False, False]


def test_bad_arguments_of_expired_are_named() -> None:
    ids = torch.tensor([1, 2])
    with pytest.raises(InputError, match="ts has shape"):
        expired(ids, ids[:1], 0, hr.Ttl(1))
    with pytest.raises(DtypeError, match="ids has dtype"):
        expired(ids.float(), ids, 0, hr.Ttl(1))
    with pytest.raises(InputError, match="reference_s is -1"):
        expired(ids, ids, -1, hr.Ttl(1))


@given(
    slot=st.integers(0, 2**15 - 1),
    signature=st.integers(0, 2**48 - 1),
    sign=st.booleans(),
    days=st.integers(0, 40000),
    other=st.integers(0, 40000),
    ts=st.integers(0, 2**40),
    after=st.integers(-5, 5),
)
def test_the_slot_decides(
    slot: int, signature: int, sign: bool, days: int, other: int, ts: int, after: int
) -> None:
    """Also of negative ids, whose top bit is no part of the slot."""
    key = make_fid(2, slot, signature) - (2**63 if sign else 0)
    reference = max(0, ts + days * 86400 + after)
    ids, stamps = torch.tensor([key]), torch.tensor([ts])
    rule = hr.Ttl(other, slots={slot: days})
    assert expired(ids, stamps, reference, rule).item() == (reference - ts >= days * 86400)
