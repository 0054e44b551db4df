"""Touched keys: what counts as a change, overflow, several consumers, bad input, threads."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import DtypeError, InputError, NameTakenError, StateError
from hedgerow.tables.changes import TouchedBatch, TouchedKeys, TouchedSource
from hedgerow.tables.compressors import Fp32
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable

from ..support import EXTREME_IDS, entries_of, make_table, table_config, threads, twin_of

ONE = torch.tensor([7])
ROW = torch.ones(1, 4)


def _keys(touched: TouchedSource) -> list[int]:
    taken = touched.take()
    assert not taken.whole_table
    return sorted(taken.ids.tolist())


def _erase(table: HostTable) -> None:
    table.erase(ONE)


def _restore(table: HostTable) -> None:
    table.restore(table.entries(ONE))


CHANGES: dict[str, tuple[bool, Callable[[HostTable], object]]] = {
    "apply_gradients": (True, lambda t: t.apply_gradients(ONE, ROW)),
    "reinitialize": (True, lambda t: t.reinitialize(ONE)),
    "assign": (False, lambda t: t.assign(ONE, ROW)),
    "assign_add": (False, lambda t: t.assign_add(ONE, ROW)),
    "restore": (False, _restore),
    "erase": (False, _erase),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_learning_counts_for_all_and_other_changes_for_those_who_ask(verb: str) -> None:
    learns, change = CHANGES[verb]
    table = make_table()
    table.assign(ONE, ROW)
    learned, changed = table.touched("learned"), table.touched("all", all_changes=True)
    change(table)
    assert _keys(learned) == ([7] if learns else [])
    assert _keys(changed) == [7]
    assert _keys(learned) == _keys(changed) == []


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.lookup(ONE),
        lambda t: t.entries(ONE),
        lambda t: list(t.scan()),
        lambda t: t.erase(torch.tensor([8])),
    ],
    ids=["lookup", "entries", "scan", "erase of an absent id"],
)
def test_what_changes_nothing_touches_nothing(read: Callable[[HostTable], object]) -> None:
    table = make_table()
    table.assign(ONE, ROW)
    touched = table.touched("all", all_changes=True)
    read(table)
    assert _keys(touched) == []


def test_a_gradient_left_out_touches_nothing() -> None:
    table = make_table(not_finite="drop")
    touched = table.touched("all", all_changes=True)
    table.apply_gradients(ONE, ROW * float("nan"))
    assert _keys(touched) == []


def test_a_zero_row_left_out_by_a_serving_table_is_a_change_if_there_was_one() -> None:
    segments = (Segment(4, compressor=Fp32()),)
    table = HostTable(TableConfig("s", segments, serving=True, skip_zero_embedding=True))
    touched = table.touched("all", all_changes=True)
    table.assign(ONE, ROW * 0)
    assert _keys(touched) == []
    table.assign(ONE, ROW)
    assert _keys(touched) == [7]
    table.assign(ONE, ROW * 0)
    assert _keys(touched) == [7]
    assert not table.contains(ONE).any()


def test_clearing_makes_the_whole_table_dirty_for_consumers_of_all_changes() -> None:
    table = make_table()
    learned, changed = table.touched("learned"), table.touched("all", all_changes=True)
    table.apply_gradients(ONE, ROW)
    table.clear()
    taken = changed.take()
    assert taken.whole_table
    assert len(taken) == 0
    assert _keys(learned) == [7]
    assert _keys(changed) == []


def test_consumers_do_not_see_each_other_and_start_when_they_are_opened() -> None:
    table = make_table()
    first = table.touched("first")
    table.apply_gradients(ONE, ROW)
    second = table.touched("second")
    table.apply_gradients(torch.tensor([8]), ROW)
    assert (_keys(first), _keys(second)) == ([7, 8], [8])


def test_an_overflow_is_said_once_and_collecting_starts_anew() -> None:
    table = make_table()
    touched = table.touched("c", capacity=100)
    ids = torch.arange(101)
    table.apply_gradients(ids[:100], torch.ones(100, 4))
    assert touched.size() == 100
    table.apply_gradients(ids, torch.ones(101, 4))
    assert (touched.size(), touched.overflows()) == (0, 1)
    table.apply_gradients(ONE, ROW)  # nothing is collected until the next take
    taken = touched.take()
    assert (taken.whole_table, len(taken), taken.forgotten) == (True, 0, 0)
    table.apply_gradients(ONE, ROW)
    assert _keys(touched) == [7]
    table.apply_gradients(ids, torch.ones(101, 4))
    assert touched.take().whole_table
    assert touched.overflows() == 2


def test_keys_given_back_come_with_the_next_take() -> None:
    table = make_table()
    touched = table.touched("c")
    table.apply_gradients(torch.tensor(EXTREME_IDS), torch.ones(5, 4))
    taken = touched.take()
    touched.give_back(taken)
    table.apply_gradients(ONE, ROW)
    assert _keys(touched) == sorted([*EXTREME_IDS, 7])
    touched.give_back(torch.tensor([3, 3]))
    assert _keys(touched) == [3]
    touched.give_back(TouchedBatch(torch.empty(0, dtype=torch.int64), True, 0))
    assert touched.take().whole_table
    assert _keys(touched) == []


def test_a_take_that_fails_halfway_loses_nothing() -> None:
    table = make_table()
    touched = table.touched("c")
    table.apply_gradients(torch.arange(1000), torch.ones(1000, 4))
    with (
        mock.patch.object(touched, "size", return_value=600),  # so that it takes in two parts
        mock.patch("torch.cat", side_effect=MemoryError),
        pytest.raises(MemoryError),
    ):
        touched.take()
    assert _keys(touched) == list(range(1000))


def test_an_open_consumer_is_given_again_and_a_closed_name_is_free() -> None:
    table = make_table()
    touched = table.touched("c", capacity=10)
    assert table.touched("c", capacity=10) is touched
    with pytest.raises(NameTakenError, match=r"'c'.*capacity=10"):
        table.touched("c")
    table.apply_gradients(ONE, ROW)
    touched.close()
    touched.close()
    again = table.touched("c")
    assert _keys(again) == []
    for use in (touched.take, touched.size, lambda: touched.give_back(ONE)):
        with pytest.raises(StateError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"consumer": ""}, InputError),
        ({"consumer": 3}, InputError),
        ({"consumer": "c", "capacity": 0}, InputError),
        ({"consumer": "c", "capacity": 1.5}, DtypeError),
        ({"consumer": "c", "all_changes": 1}, DtypeError),
        ({"consumer": "c", "overflow": "drop"}, InputError),
        ({"consumer": "c", "overflow": "forget", "all_changes": True}, InputError),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make_table().touched(**arguments)


def test_bad_ids_cannot_be_given_back() -> None:
    touched = make_table().touched("c")
    with pytest.raises(DtypeError):
        touched.give_back(torch.ones(3))
    with pytest.raises(InputError):
        touched.give_back(torch.ones(3, 3, dtype=torch.int64))
    forgets = make_table().touched("c", overflow="forget")
    with pytest.raises(InputError):
        forgets.give_back(TouchedBatch(torch.empty(0, dtype=torch.int64), True, 0))


def test_keys_outlive_the_table_object() -> None:
    table = make_table()
    touched = table.touched("c")
    table.apply_gradients(ONE, ROW)
    del table
    gc.collect()
    assert _keys(touched) == [7]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from([*CHANGES, "take", "give_back", "clear"]),
        st.lists(st.sampled_from([*EXTREME_IDS, 2, 3, 5, 64]), max_size=6),
    ),
    max_size=25,
)


def _operate(table: HostTable, verb: str, keys: list[int], consumers: list[TouchedKeys]) -> Any:
    ids, rows = torch.tensor(keys, dtype=torch.int64), torch.ones(len(keys), 4)
    if verb in ("take", "give_back"):
        taken = [consumer.take() for consumer in consumers]
        if verb == "give_back":
            for consumer, each in zip(consumers, taken, strict=True):
                consumer.give_back(each)
        return [(sorted(t.ids.tolist()), t.whole_table, t.forgotten) for t in taken]
    if verb == "restore":
        there = ids[table.contains(ids)].unique()
        return repr(table.restore(table.entries(there)))
    if verb == "clear":
        return table.clear()
    if verb in ("erase", "reinitialize"):
        return getattr(table, verb)(ids).tolist()
    return repr(getattr(table, verb)(ids, rows))


@settings(max_examples=80)
@given(operations=OPERATIONS, capacity=st.integers(1, 9))
def test_any_sequence_gives_the_keys_of_the_model(
    operations: list[tuple[str, list[int]]], capacity: int
) -> None:
    tables = (make_table(), twin_of(table_config()))
    consumers = [
        [
            table.touched("learned", capacity=capacity),
            table.touched("all", capacity=capacity, all_changes=True),
            table.touched("roomy", all_changes=True),
        ]
        for table in tables
    ]
    for verb, keys in [*operations, ("take", [])]:
        ours, model = (
            _operate(table, verb, keys, mine) for table, mine in zip(tables, consumers, strict=True)
        )
        assert ours == model, verb
    ours, model = ([c.overflows() for c in mine] for mine in consumers)
    assert ours == model


@pytest.mark.parametrize("capacity", [2_000_000, 20_000])
def test_no_key_is_lost_between_takes_while_threads_write(capacity: int) -> None:
    table = make_table()
    touched = table.touched("c", capacity=capacity)
    n, writers = 30_000, 3
    ids = torch.arange(n * writers)

    def writes(part: int) -> None:
        for chunk in ids[part * n : (part + 1) * n].split(1000):
            table.apply_gradients(chunk, torch.ones(len(chunk), 4))

    seen: list[int] = []
    whole = False
    with threads(2), ThreadPoolExecutor(writers) as pool:
        jobs = [pool.submit(writes, part) for part in range(writers)]
        running = True
        while running:
            running = not all(job.done() for job in jobs)
            taken = touched.take()
            whole = whole or taken.whole_table
            seen += taken.ids.tolist()
        for job in jobs:
            job.result()
    assert len(seen) == len(set(seen))  # each was written once
    assert set(seen) <= set(ids.tolist())
    assert whole or len(seen) == n * writers
    assert whole == (touched.overflows() > 0)


def test_a_replica_that_follows_all_changes_ends_up_equal() -> None:
    table, replica = make_table(), make_table()
    touched = table.touched("replica", all_changes=True)
    random = torch.Generator().manual_seed(3)
    for _ in range(20):
        ids = torch.randint(0, 50, (30,), generator=random)
        table.apply_gradients(ids, torch.rand(30, 4, generator=random))
        table.erase(torch.randint(0, 50, (10,), generator=random))
        taken = touched.take().ids
        there = table.contains(taken)
        replica.restore(table.entries(taken[there]))
        replica.erase(taken[~there])
    ours, theirs = entries_of(table), entries_of(replica)
    order, other = ours.ids.argsort(), theirs.ids.argsort()
    assert torch.equal(ours.ids[order], theirs.ids[other])
    assert torch.equal(ours.rows[order], theirs.rows[other])
