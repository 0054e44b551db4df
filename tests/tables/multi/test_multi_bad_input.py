"""One test for each kind of input a call on many tables must refuse; refusing changes no table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hedgerow.core.errors import (
    ConfigError,
    DtypeError,
    HedgerowError,
    InputError,
    NotFiniteError,
    ServingTableError,
    UnknownNameError,
)
from hedgerow.core.ids import Ragged
from hedgerow.monolith.tables.multi_type import MultiTypeTable, NativeMultiTable
from hedgerow.tables import compressors, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.optimizers import Polynomial
from hedgerow.tables.store import TableKeys

from ...support import table_config
from .many import CONFIGS, all_rows

IDS = torch.tensor([1, 2, 1])  # one key a table: item (1), user (3), Ü (3)
SPLITS = (0, 1, 2, 3)
KEYS = TableKeys(IDS, SPLITS)
ROWS = torch.ones(7)
LAST_NAN = torch.tensor([1.0] * 6 + [float("nan")])


def _refused(
    store: HostTables, call: Callable[[], object], error: type[HedgerowError], words: str = "."
) -> None:
    before = all_rows(store), [table.max_ts() for table in store.tables]
    with pytest.raises(error, match=words):
        call()
    assert (all_rows(store), [table.max_ts() for table in store.tables]) == before


@pytest.fixture
def store() -> HostTables:
    store = HostTables(CONFIGS)
    store.assign(KEYS, ROWS, ts=3)
    return store


BAD_BATCHES: dict[str, tuple[Any, Any, type[HedgerowError]]] = {
    "plain ids": (IDS, ROWS, InputError),
    "int32 ids": (TableKeys(IDS.int(), SPLITS), ROWS, DtypeError),
    "2-d ids": (TableKeys(IDS[:, None], SPLITS), ROWS, InputError),
    "ids elsewhere": (TableKeys(IDS.to("meta"), SPLITS), ROWS, InputError),
    "two tables": (TableKeys(IDS, (0, 1, 3)), ROWS, InputError),
    "splits that fall": (TableKeys(IDS, (0, 2, 1, 3)), ROWS, InputError),
    "splits that miss an id": (TableKeys(IDS, (0, 1, 2, 2)), ROWS, InputError),
    "splits past the ids": (TableKeys(IDS, (0, 1, 2, 4)), ROWS, InputError),
    "splits that start late": (TableKeys(IDS, (1, 1, 2, 3)), ROWS, InputError),
    "splits of another type": (TableKeys(IDS, torch.tensor(SPLITS)), ROWS, DtypeError),  # type: ignore[arg-type]
    "room after the ids": (TableKeys(IDS, SPLITS, torch.ones(3).long()), ROWS, InputError),
    "too few floats": (KEYS, torch.ones(6), InputError),
    "too many floats": (KEYS, torch.ones(8), InputError),
    "rows that are not flat": (KEYS, torch.ones(1, 7), InputError),
    "float64 rows": (KEYS, ROWS.double(), DtypeError),
    "no rows": (KEYS, None, DtypeError),
    "strided rows": (KEYS, torch.ones(14)[::2], InputError),
    "sparse rows": (KEYS, ROWS.to_sparse(), InputError),
    "not finite in the last table": (KEYS, LAST_NAN, NotFiniteError),
}


@pytest.mark.parametrize("write", ["assign", "assign_add", "apply_gradients"])
@pytest.mark.parametrize(("keys", "rows", "error"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_a_write_to_the_store(
    store: HostTables, write: str, keys: Any, rows: Any, error: type[HedgerowError]
) -> None:
    _refused(store, lambda: getattr(store, write)(keys, rows, ts=9), error)


@pytest.mark.parametrize("ts", [-1, 1.5, None, True, 2**63])
@pytest.mark.parametrize("write", ["assign", "assign_add", "apply_gradients"])
def test_a_time_that_is_none(store: HostTables, write: str, ts: Any) -> None:
    _refused(store, lambda: getattr(store, write)(KEYS, ROWS, ts=ts), HedgerowError, "ts")


BAD_UPDATES: dict[str, tuple[dict[str, Any], str]] = {
    "too few rates": ({"rates": [0.1]}, "1 rates for 4"),
    "rates that are no list": ({"rates": 0.1}, "rates"),
    "a bad rate of the last table": ({"rates": [0.1, 0.1, 0.1, -1.0]}, "-1.0"),
    "a last rate that turns out negative": (
        {"rates": [0.1, 0.1, 0.1, lambda step: -1.0], "step": 1},
        "-1.0",
    ),
    "a schedule without a step": ({"rates": [0.1, 0.1, 0.1, Polynomial(0.1, 10)]}, "step"),
    "a step below 0": ({"step": -1}, "step"),
    "counts of another length": ({"counts": torch.ones(2).long()}, "counts"),
    "counts of another type": ({"counts": torch.ones(3)}, "counts"),
    "a last count of 0": ({"counts": torch.tensor([1, 1, 0])}, "counts has 0"),
    "a flag that is a number": ({"per_occurrence": 1}, "per_occurrence"),
}


@pytest.mark.parametrize(("settings", "words"), BAD_UPDATES.values(), ids=BAD_UPDATES)
def test_settings_of_an_update(store: HostTables, settings: dict[str, Any], words: str) -> None:
    _refused(store, lambda: store.apply_gradients(KEYS, ROWS, **settings), HedgerowError, words)


@pytest.mark.parametrize(
    "out",
    [torch.empty(6), torch.empty(1, 7), torch.empty(7).double(), torch.empty(7).requires_grad_()],
    ids=["short", "2-d", "float64", "requires grad"],
)
def test_an_output_that_does_not_fit(store: HostTables, out: torch.Tensor) -> None:
    _refused(store, lambda: store.lookup(KEYS, out=out), HedgerowError, "out")


def test_an_unknown_rule_for_missing_ids(store: HostTables) -> None:
    _refused(store, lambda: store.lookup(KEYS, missing="x"), InputError, "'x'")  # type: ignore[arg-type]


def test_a_serving_table_among_others_stops_the_whole_update() -> None:
    serving = TableConfig("s", (Segment(1, compressor=compressors.Fp32()),), serving=True)
    store = HostTables({"a": table_config(dim=1), "b": serving})
    keys = TableKeys(torch.tensor([1, 1]), (0, 1, 2))
    update = lambda: store.apply_gradients(keys, torch.ones(2))  # noqa: E731
    _refused(store, update, ServingTableError, "'b'")
    _refused(store, lambda: store.reinitialize(keys), ServingTableError, "'b'")
    store.reinitialize(TableKeys(torch.tensor([1]), (0, 1, 1)))
    assert store.size() == 1


ONE = torch.tensor([1])
GOOD = {"item": (ONE, torch.ones(1, 1))}
BAD_SLOTS: dict[str, tuple[Any, type[HedgerowError], str]] = {
    "unknown slot": ({**GOOD, "usr": (ONE, torch.ones(1, 3))}, UnknownNameError, "'user'"),
    "slot that is a number": ({**GOOD, 3: (ONE, torch.ones(1, 3))}, UnknownNameError, "'3'"),
    "no dict": ([ONE], DtypeError, "dict"),
    "no pair": ({**GOOD, "user": ONE}, DtypeError, "'user'"),
    "three in a pair": ({**GOOD, "user": (ONE, ONE, ONE)}, DtypeError, "'user'"),
    "int32 ids": ({**GOOD, "user": (ONE.int(), torch.ones(1, 3))}, DtypeError, "'user'"),
    "list of ids": ({**GOOD, "user": ([1], torch.ones(1, 3))}, DtypeError, "'user'"),
    "wrong width": ({**GOOD, "user": (ONE, torch.ones(1, 4))}, InputError, "'user'"),
    "wrong count": ({**GOOD, "user": (ONE, torch.ones(2, 3))}, InputError, "'user'"),
    "half rows": ({**GOOD, "user": (ONE, torch.ones(1, 3).half())}, DtypeError, "'user'"),
    "not finite": (
        {**GOOD, "user": (ONE, torch.full((1, 3), float("inf")))},
        NotFiniteError,
        "'user'",
    ),
}


@pytest.mark.parametrize("front", [MultiTypeTable, NativeMultiTable])
@pytest.mark.parametrize("write", ["assign", "assign_add", "apply_gradients"])
@pytest.mark.parametrize(("batch", "error", "words"), BAD_SLOTS.values(), ids=BAD_SLOTS)
def test_a_write_by_slot(
    front: type[MultiTypeTable] | type[NativeMultiTable],
    write: str,
    batch: Any,
    error: type[HedgerowError],
    words: str,
) -> None:
    table = front(CONFIGS)
    _refused(table.store, lambda: getattr(table, write)(batch, ts=5), error, words)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"rates": {"usr": [0.1]}}, UnknownNameError),
        ({"rates": {"item": [0.1, 0.2]}}, ConfigError),
        ({"rates": {"user": [0.1, 0.2]}}, ConfigError),
        ({"rates": [0.1]}, DtypeError),
        ({"counts": {"user": ONE}}, InputError),
        ({"counts": {"item": torch.tensor([0])}}, InputError),
        ({"counts": ONE}, DtypeError),
    ],
    ids=[
        "rates of nobody",
        "too many rates",
        "too many rates of a slot without ids",
        "rates without slots",
        "counts without ids",
        "count 0",
        "counts without slots",
    ],
)
def test_settings_of_an_update_by_slot(settings: Any, error: type[HedgerowError]) -> None:
    table = MultiTypeTable(CONFIGS)
    _refused(table.store, lambda: table.apply_gradients(GOOD, **settings), error)


@pytest.mark.parametrize("ids", [{"usr": ONE}, {"user": [1]}, {"user": ONE.float()}, [ONE], ONE])
@pytest.mark.parametrize("verb", ["lookup", "dict_to_ragged"])
def test_a_read_by_slot(verb: str, ids: Any) -> None:
    table = NativeMultiTable(CONFIGS)
    _refused(table.store, lambda: getattr(table, verb)(ids), HedgerowError)


BAD_FUSED: dict[str, tuple[Any, Any, Any, type[HedgerowError]]] = {
    "sizes of another number": (IDS, torch.ones(4).long(), 1, InputError),
    "sizes of another type": (IDS, torch.ones(3), 1, DtypeError),
    "negative size": (IDS, torch.tensor([2, -1, 2]), 1, InputError),
    "more than the ids": (IDS, torch.tensor([1, 1, 2]), 1, InputError),
    "fewer than the ids": (IDS, torch.tensor([1, 1, 0]), 1, InputError),
    "sizes that overflow": (IDS, torch.tensor([2**62, 2**62, 2**62]), 1, InputError),
    "shards 0": (IDS, torch.ones(3).long(), 0, InputError),
    "shards that are no number": (IDS, torch.ones(3).long(), "1", DtypeError),
    "int32 ids": (IDS.int(), torch.ones(3).long(), 1, DtypeError),
}


@pytest.mark.parametrize(("ids", "sizes", "shards", "error"), BAD_FUSED.values(), ids=BAD_FUSED)
def test_a_fused_call(ids: Any, sizes: Any, shards: Any, error: type[HedgerowError]) -> None:
    table = MultiTypeTable(CONFIGS)
    _refused(table.store, lambda: table.fused_lookup(ids, sizes, shards), error)
    _refused(table.store, lambda: table.fused_apply(ids, sizes, shards, ROWS), error)


@pytest.mark.parametrize("grads", [torch.ones(6), torch.ones(7, 1), ROWS.half(), LAST_NAN])
def test_gradients_of_a_fused_call(grads: torch.Tensor) -> None:
    table = MultiTypeTable(CONFIGS)
    sizes = torch.ones(3, dtype=torch.int64)
    _refused(table.store, lambda: table.fused_apply(IDS, sizes, 1, grads), HedgerowError, "grads")


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([1, 1, 1], "list"),
        (torch.ones(3), "float32"),
        (torch.ones(2).long(), "shape"),
        (torch.arange(1, 7)[::2], "not contiguous"),
        (torch.tensor([1, 1, 0]), "has 0"),
    ],
    ids=["list", "float", "too few", "strided", "a last count of 0"],
)
def test_counts_of_a_fused_call(counts: Any, words: str) -> None:
    table, sizes = MultiTypeTable(CONFIGS), torch.ones(3, dtype=torch.int64)
    update = lambda: table.fused_apply(IDS, sizes, 1, ROWS, counts=counts)  # noqa: E731
    _refused(table.store, update, HedgerowError, f"counts .*{words}")


RAGGED = Ragged(IDS, torch.tensor(SPLITS))
BAD_RAW: dict[str, tuple[Any, Any, type[HedgerowError]]] = {
    "no ragged": (IDS, ROWS, DtypeError),
    "float ids": (Ragged(IDS.float(), torch.tensor(SPLITS)), ROWS, DtypeError),
    "splits of no whole request": (Ragged(IDS, torch.tensor([0, 1, 2, 3, 3])), ROWS, InputError),
    "too few floats": (RAGGED, torch.ones(6), InputError),
    "rows that are not flat": (RAGGED, torch.ones(7, 1), InputError),
    "not finite": (RAGGED, LAST_NAN, NotFiniteError),
}


@pytest.mark.parametrize("write", ["raw_assign", "raw_assign_add", "raw_apply_gradients"])
@pytest.mark.parametrize(("ids", "rows", "error"), BAD_RAW.values(), ids=BAD_RAW)
def test_a_raw_write(write: str, ids: Any, rows: Any, error: type[HedgerowError]) -> None:
    table = NativeMultiTable(CONFIGS)
    _refused(table.store, lambda: getattr(table, write)(ids, rows, ts=2), error)


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.raw_lookup(Ragged(IDS, torch.tensor([0, 3]))),
        lambda table: table.raw_lookup(RAGGED, out=torch.empty(6)),
        lambda table: table.raw_apply_gradients(RAGGED, ROWS, rates=[0.1]),
        lambda table: table.raw_apply_gradients(RAGGED, ROWS, counts=ONE),
        lambda table: table.flat_to_dict(RAGGED, torch.ones(6)),
        lambda table: table.flat_to_dict(RAGGED, ROWS, request=1),
        lambda table: table.dict_to_flat({"user": (ONE, torch.ones(1, 2))}),
        lambda table: table.dict_to_flat({"usr": (ONE, torch.ones(1, 3))}),
        lambda table: table.reinitialize("user", ONE.int()),
        lambda table: table.reinitialize("usr", [1]),
    ],
)
def test_other_raw_calls(call: Callable[[NativeMultiTable], object]) -> None:
    table = NativeMultiTable(CONFIGS)
    _refused(table.store, lambda: call(table), HedgerowError)


@pytest.mark.parametrize("splits", [[0, 2, 1, 3], [1, 1, 2, 3], [0, 1, 2, 2]])
def test_row_splits_that_fall_or_miss_ids_make_no_ragged(splits: list[int]) -> None:
    with pytest.raises(InputError, match="row_splits"):
        Ragged(IDS, torch.tensor(splits))


def test_optimizers_that_need_a_step_are_asked_only_where_there_are_ids() -> None:
    warm = table_config(optimizers.Sgd(lr=Polynomial(0.0, 10, end=0.1)), dim=1)
    store = HostTables({"a": table_config(dim=1), "b": warm})
    store.apply_gradients(TableKeys(ONE, (0, 1, 1)), torch.ones(1))
    keys = TableKeys(torch.tensor([5, 5]), (0, 1, 2))
    _refused(store, lambda: store.apply_gradients(keys, torch.ones(2)), InputError, "'b'.*step")
