"""Admission rules in a table: who gets a row, what a refused id costs, and what is asked."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow import native
from hedgerow.core.errors import ConfigError, DtypeError, InputError
from hedgerow.core.hashing import make_fid
from hedgerow.monolith.tables.hash_filters import GradientMask
from hedgerow.tables.admission import AdmissionRule, Chance, Count, SlidingFilter, Within
from hedgerow.tables.config import TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.monolith_rules import OccurrenceThreshold, ProbabilisticThreshold
from hedgerow.tables.optimizers import Sgd
from tests.support import everything, table_config, threads, twin_of
from tests.twins import native_core

ONE = torch.tensor([5])


def _table(admit: AdmissionRule | None, **settings: Any) -> HostTable:
    filter = settings.pop("filter", None)
    cfg = table_config(Sgd(lr=1.0), dim=2, init=Zeros(), admit=admit, **settings)
    return HostTable(cfg, filter=filter)


def _push(table: HostTable, ids: torch.Tensor, **settings: Any) -> tuple[int, int]:
    done = table.apply_gradients(ids, torch.ones(len(ids), 2), **settings)
    return done.inserted, done.refused


@pytest.mark.parametrize("n", [1, 2, 3, 7, 256])
def test_an_id_gets_its_row_on_its_nth_sighting(n: int) -> None:
    table = _table(Count(n))
    for _ in range(n - 1):
        assert _push(table, ONE) == (0, 1)
    assert table.size() == 0
    assert _push(table, ONE) == (1, 0)
    assert table.lookup(ONE).rows_of().tolist() == [[-1.0, -1.0]]
    assert table.stats()["refused"] == n - 1


def test_a_row_that_is_there_is_never_asked_about() -> None:
    table = _table(Count(2))
    _push(table, ONE), _push(table, ONE), _push(table, ONE)
    assert table.filter is not None
    assert table.filter.counts(ONE, table="test").tolist() == [2]
    assert table.lookup(ONE).rows_of().tolist() == [[-2.0, -2.0]]
    table.erase(ONE)  # its count is still there
    assert _push(table, ONE) == (1, 0)


def test_counts_of_a_caller_that_removed_duplicates_are_honoured() -> None:
    table, plain = _table(Count(6)), _table(Count(6))
    assert _push(table, ONE, counts=torch.tensor([5])) == (0, 1)
    assert _push(table, ONE, counts=torch.tensor([1])) == (1, 0)
    assert _push(plain, ONE.repeat(5)) == (0, 5)
    assert _push(plain, ONE) == (1, 0)
    mixed = _table(Count(6))
    assert _push(mixed, ONE.repeat(2), counts=torch.tensor([2, 3])) == (0, 2)
    assert _push(mixed, ONE) == (1, 0)


def test_with_per_occurrence_the_occurrences_before_admission_are_cut() -> None:
    table = _table(Count(3))
    ids = torch.tensor([5, 6, 5, 5, 5, 6])
    grads = torch.tensor([[1.0], [10], [2], [4], [8], [20]]).repeat(1, 2)
    done = table.apply_gradients(ids, grads, per_occurrence=True)
    assert (done.inserted, done.refused) == (1, 4)
    assert table.lookup(ids[:2]).rows_of().tolist() == [[-12.0, -12.0], [0.0, 0.0]]
    assert table.filter is not None
    assert table.filter.counts(ids[:2], table="test").tolist() == [3, 2]


def test_assign_and_assign_add_are_filtered_restore_reinitialize_and_erase_are_not() -> None:
    table, rows = _table(Count(2)), torch.ones(1, 2)
    for write in (table.assign, table.assign_add):
        assert write(ONE, rows).refused == 1
        assert write(ONE, rows).inserted == 1
        entries = table.entries(ONE)
        table.clear()
        assert table.filter is not None
        table.filter.restore(SlidingFilter(seed=7).dump())  # forgets
    assert table.erase(ONE).tolist() == [False]
    assert table.restore(entries).inserted == 1
    assert table.reinitialize(torch.tensor([8])).tolist() == [0]
    assert table.size() == 2


def test_refused_ids_take_no_memory_of_the_table() -> None:
    table = _table(Within(20_000_000, 2), slot_key=0)  # a key for which no two ids look alike
    before, used = table.memory(), native.memory_used()
    ids = torch.arange(1_000_000)
    assert _push(table, ids) == (0, 1_000_000)
    assert replace(table.memory(), other_bytes=before.other_bytes) == before  # others: the filter
    assert table.filter is not None
    grown = native.memory_used() - used
    assert 0 < grown <= table.filter.memory_bytes() + 4096 <= 34_000_000


def test_refused_and_admitted_ids_of_a_large_call_end_as_in_small_ones() -> None:
    random = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 30_000, (60_000,), generator=random)
    grads = torch.rand(60_000, 2, generator=random)
    answers = []
    for count in (1, 4):
        for each in (False, True):
            table = _table(Count(3))
            _push(table, torch.arange(0, 30_000, 3))  # some are known, some half known
            _push(table, torch.arange(0, 30_000, 3))
            _push(table, torch.arange(0, 30_000, 3))
            with threads(count):
                done = [
                    repr(table.apply_gradients(ids, grads, per_occurrence=each)) for _ in range(3)
                ]
            answers.append((each, done, everything(table)))
    assert answers[0] == answers[2]
    assert answers[1] == answers[3]
    twin = twin_of(table_config(Sgd(lr=1.0), dim=2, init=Zeros(), admit=Count(3)))
    for _ in range(3):
        _push(twin, torch.arange(0, 30_000, 3))
    assert [repr(twin.apply_gradients(ids, grads)) for _ in range(3)] == answers[0][1]
    assert everything(twin) == answers[0][2]


RULES: list[AdmissionRule] = [
    Count(3),
    Within(300, 2),
    Chance(0.3),
    OccurrenceThreshold(1, ((1, 3), (2, 0)), 300, 9, four_bit_counts=True),
    ProbabilisticThreshold(4, ((1, 0),), form="equal"),
    ProbabilisticThreshold(4, form="unequal"),
]
KEY = st.one_of(st.integers(-2, 6), st.sampled_from([make_fid(2, slot, 9) for slot in (1, 2, 3)]))
CALL = st.tuples(
    st.sampled_from(["apply", "each", "counts", "assign", "assign_add", "erase", "restore"]),
    st.lists(st.tuples(KEY, st.integers(1, 4)), min_size=1, max_size=12),
)


@pytest.mark.parametrize("admit", RULES, ids=lambda r: f"{r.kind}-{r.to_dict().get('form', '')}")
@settings(max_examples=25)
@given(calls=st.lists(CALL, max_size=12))
def test_random_writes_agree_with_the_twin(
    admit: AdmissionRule, calls: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    cfg = table_config(dim=2, admit=admit)
    tables = [HostTable(cfg), twin_of(cfg)]
    for step, (verb, batch) in enumerate(calls):
        ids, counts = (torch.tensor(part) for part in zip(*batch, strict=True))
        rows = torch.arange(2.0 * len(ids)).view(-1, 2)
        answers = []
        for table in tables:
            if verb in ("apply", "each", "counts"):
                done: Any = table.apply_gradients(
                    ids,
                    rows,
                    step=step,
                    counts=None if verb == "apply" else counts,
                    per_occurrence=verb == "each",
                )
            elif verb == "restore":
                there = table.entries(ids)
                table.erase(ids)
                done = table.restore(there) if bool(there.found.all()) else None
            elif verb == "erase":
                done = table.erase(ids).tolist()
            else:
                done = getattr(table, verb)(ids, rows, ts=step)
            answers.append(repr(done))
        assert answers[0] == answers[1]
    assert everything(tables[0]) == everything(tables[1])


def test_two_tables_share_a_filter_without_mixing() -> None:
    first = _table(Count(2), name="first")
    second = _table(Count(3), name="second", filter=first.filter)
    assert second.filter is first.filter
    assert _push(first, ONE) == (0, 1)
    assert _push(second, ONE) == (0, 1)
    assert _push(first, ONE) == (1, 0)
    assert _push(second, ONE) == (0, 1)
    assert _push(second, ONE) == (1, 0)


def test_a_table_without_a_counting_rule_makes_no_filter() -> None:
    for admit in (None, Count(1), Chance(0.5), OccurrenceThreshold(0, ((3, 0),))):
        assert _table(admit).filter is None
    assert _push(_table(Count(1)), ONE) == (1, 0)


def test_threads_that_push_the_same_ids_admit_each_once_and_lose_no_count() -> None:
    table, ids = _table(Count(41)), torch.arange(3000)
    done: list[tuple[int, int]] = []
    start = threading.Barrier(4)

    def push() -> None:
        start.wait()
        for _ in range(20):
            done.append(_push(table, ids))

    workers = [threading.Thread(target=push) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(inserted for inserted, _ in done) == table.size() == 3000
    refused = sum(n for _, n in done)
    assert refused == 40 * 3000
    rows = table.lookup(ids).rows_of()
    assert rows.tolist() == [[-40.0, -40.0]] * 3000


def test_an_id_seen_again_within_the_window_is_admitted_and_a_rarer_one_is_not() -> None:
    table = _table(Within(600, 2))
    rare, common = torch.tensor([-1]), torch.tensor([-2])
    _push(table, rare), _push(table, common)
    for start in range(0, 300, 100):
        _push(table, torch.arange(start, start + 100))
    assert _push(table, common) == (1, 0)
    for start in range(300, 1000, 100):
        _push(table, torch.arange(start, start + 100))
    assert _push(table, rare) == (0, 1)


def test_thresholds_follow_the_slot_of_the_id() -> None:
    table = _table(OccurrenceThreshold(2, ((1, 1), (7, 0))))
    ids = torch.tensor([make_fid(2, slot, 3) for slot in (0, 1, 7, 9)])
    assert [table.contains(ids).tolist() for _ in range(3) if _push(table, ids)] == [
        [False, False, True, False],
        [False, True, True, False],
        [True, True, True, True],
    ]


def test_chance_admits_about_its_share_and_in_the_end_everyone() -> None:
    table, ids = _table(Chance(0.25)), torch.arange(40_000)
    inserted, refused = _push(table, ids, step=1)
    assert inserted + refused == 40_000
    assert abs(inserted / 40_000 - 0.25) < 0.01
    again = _table(Chance(0.25))
    for part in ids.flip(0).split(7777):  # nobody else matters
        _push(again, part, step=1)
    assert torch.equal(again.contains(ids), table.contains(ids))
    for step in range(2, 60):
        _push(table, ids, step=step)
    assert table.size() == 40_000


@pytest.mark.parametrize(
    ("admit", "n", "expected"),
    [
        (Chance(0.1), 3, 1 - 0.9**3),
        (ProbabilisticThreshold(7, form="unequal"), 3, 3 / 7),
        (ProbabilisticThreshold(7, form="unequal"), 9, 1.0),
        (ProbabilisticThreshold(7, form="equal"), 7, 0.95),
    ],
)
def test_occurrences_raise_the_chance(admit: AdmissionRule, n: int, expected: float) -> None:
    table, ids = _table(admit), torch.arange(40_000)
    inserted, _ = _push(table, ids, step=3, counts=torch.full((40_000,), n))
    assert abs(inserted / 40_000 - expected) < 0.011


def test_chance_needs_the_step_and_says_so() -> None:
    with pytest.raises(InputError, match=r"step is missing: .* admits ids according to the step"):
        _push(_table(Chance(0.5)), ONE)


def test_probabilities_agree_with_the_twin_and_reject_an_unknown_form() -> None:
    for form, parameter, n in (("each", 0.3, 4), ("equal", 7.0, 2), ("unequal", 7.0, 2)):
        ours = native.admission_probability(form, parameter, n)
        assert ours == pytest.approx(
            native_core.admission_probability(form, parameter, n), rel=1e-14
        )
    for core in (native, native_core):
        with pytest.raises(ValueError, match="form is 'other'"):
            core.admission_probability("other", 1.0, 1)


def test_a_config_with_a_rule_survives_json() -> None:
    for admit in RULES:
        cfg = table_config(admit=admit)
        assert TableConfig.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg


BAD_RULES: list[tuple[Any, str]] = [
    (lambda: Count(0), "Count.n is 0; it must be at least 1"),
    (lambda: Count(257), "Count.n is 257; counts have 8 bits"),
    (lambda: Count(2.5), "Count.n is 2.5; it must be a whole number"),  # pyright: ignore[reportArgumentType]
    (lambda: Within(299, 2), "Within.window_ids is 299"),
    (lambda: Within(300, 257), "Within.n is 257"),
    (lambda: Chance(0.0), "Chance.p is 0.0"),
    (lambda: Chance(1.5), "Chance.p is 1.5; a probability is at most 1"),
    (lambda: OccurrenceThreshold(256), "a threshold of 256; counts have 8 bits: at most 255"),
    (lambda: OccurrenceThreshold(0, ((3, 256),)), "a threshold of 256"),
    (lambda: OccurrenceThreshold(-1), "default is -1"),
    (lambda: OccurrenceThreshold(1, ((2**15, 1),)), "slot 32768; slots are 0..32767"),
    (lambda: OccurrenceThreshold(1, ((3, 1), (3, 2))), "a slot has one threshold"),
    (lambda: OccurrenceThreshold(1, {3: 1}), "tuple of \\(slot, threshold\\) pairs"),  # pyright: ignore[reportArgumentType]
    (lambda: OccurrenceThreshold(1, split_num=4), "split_num is 4"),
    (lambda: ProbabilisticThreshold(1, form="other"), "form is 'other'"),
    (lambda: table_config(admit=3), "TableConfig.admit is 3; it must be one of Chance, Count"),
    (
        lambda: TableConfig(
            "t", (hr.Segment(2, compressor=hr.Fp32()),), serving=True, admit=Count(2)
        ),
        "serving table with an admission rule",
    ),
    (
        lambda: _table(Count(100), filter=SlidingFilter(max_count=15)),
        "admits after 99 occurrences, but the counts of its filter stop at 15",
    ),
]


@pytest.mark.parametrize(("make", "named"), BAD_RULES, ids=lambda v: v if type(v) is str else "")
def test_a_rule_that_cannot_be_built_is_refused(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()


def test_a_filter_of_another_type_is_refused() -> None:
    with pytest.raises(DtypeError, match="pass a SlidingFilter"):
        _table(Count(2), filter=3)


def test_thresholds_above_fifteen_pass_by_our_rule_and_never_by_monolith() -> None:
    ours = _table(OccurrenceThreshold(16))
    theirs = _table(OccurrenceThreshold(16, four_bit_counts=True))
    for _ in range(40):
        _push(ours, ONE), _push(theirs, ONE)
    assert (ours.size(), theirs.size()) == (1, 0)


def test_a_filter_and_its_table_restored_together_go_on_as_before() -> None:
    first, second = _table(Count(3)), _table(Count(3))
    ids = torch.tensor([1, 1, 1, 2, 2, 3])
    _push(first, ids, per_occurrence=True)
    assert first.filter is not None
    assert second.filter is not None
    for part in first.scan():
        second.restore(part)
    second.filter.restore(first.filter.dump())
    for _ in range(3):
        assert _push(first, ids, per_occurrence=True) == _push(second, ids, per_occurrence=True)
        assert everything(first) == everything(second)


def test_a_mask_zeroes_gradients_of_ids_that_the_filter_drops() -> None:
    mask = GradientMask(OccurrenceThreshold(3), name="user")
    ids, kept = torch.tensor([1, 3 << 17, 1]), []
    for _ in range(4):
        rows = torch.rand(3, 2, requires_grad=True)
        out = mask(rows, ids)
        assert torch.equal(out, rows)
        (out * 2).sum().backward()
        assert rows.grad is not None
        kept.append("".join(str(int(g[0]) // 2) for g in rows.grad))
    assert kept == ["000", "001", "101", "111"]


def test_a_mask_counts_at_backward_only_and_a_nan_does_not_get_through() -> None:
    mask = GradientMask(Count(2), name="user")
    rows = torch.ones(1, 2, requires_grad=True)
    for _ in range(5):
        mask(rows, ONE)
    assert mask.filter is not None
    assert mask.filter.counts(ONE, table="user").tolist() == [0]
    mask(rows, ONE).backward(torch.full((1, 2), float("nan")))
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.0, 0.0]]


def test_a_mask_by_chance_lets_everything_through_since_it_knows_no_table() -> None:
    mask = GradientMask(Chance(0.01), name="user")
    assert mask.admitted(torch.arange(100)).all()


def test_a_mask_refuses_what_is_no_rule_and_rows_that_do_not_fit() -> None:
    with pytest.raises(DtypeError, match="admit is 3"):
        GradientMask(3, name="user")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"rows is \(2, 2\) for 1 ids"):
        GradientMask(Count(2), name="user")(torch.ones(2, 2), ONE)


@pytest.mark.parametrize("rule", [Count(2), Chance(0.5)], ids=["counting", "masking nothing"])
@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([5], DtypeError, "list"),
        (ONE.int(), DtypeError, "int32"),
        (ONE.double(), DtypeError, "float64"),
        (torch.arange(6)[::2], InputError, "not contiguous"),
        (ONE.view(1, 1), InputError, "shape"),
        (ONE.to("meta"), InputError, "on meta"),
    ],
    ids=["list", "int32", "float64", "strided", "2-d", "another device"],
)
def test_a_mask_asked_about_what_are_no_ids_counts_nothing(
    rule: AdmissionRule, ids: Any, error: type[Exception], words: str
) -> None:
    mask = GradientMask(rule, name="user")
    with pytest.raises(error, match=f"ids .*{words}"):
        mask.admitted(ids)
    if mask.filter is not None:
        assert mask.filter.counts(ONE, table="user").tolist() == [0]


@pytest.mark.parametrize("admit", [Count(2), Within(20_000_000, 2)])
def test_a_cleared_table_forgets_what_it_counted_and_gives_that_memory_back(
    admit: AdmissionRule,
) -> None:
    table, before = _table(admit), native.memory_used()
    ids = torch.arange(1_500_000)
    for part in (ids, ids[:100]):
        _push(table, part)
    assert native.memory_used() - before > 2**22
    table.clear()
    assert native.memory_used() == before
    assert _push(table, ids[:100]) == (0, 100)
    assert _push(table, ids[:100]) == (100, 0)


def test_counts_that_a_table_shares_or_was_given_outlast_its_clear() -> None:
    given = SlidingFilter(seed=7)
    first = _table(Count(2), filter=given)
    owner = _table(Count(2))
    other = HostTable(replace(owner.config, name="other"), filter=owner.filter)
    for table in (first, owner, other):
        assert _push(table, ONE) == (0, 1)
        table.clear()
        assert _push(table, ONE) == (1, 0)


def test_rows_that_are_loaded_into_a_table_leave_its_counts_alone() -> None:
    table = _table(Count(2))
    assert _push(table, ONE) == (0, 1)
    table.beside(10).clear()
    assert _push(table, ONE) == (1, 0)
