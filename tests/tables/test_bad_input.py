"""One test for each kind of input a table must refuse, and that refusing changes nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch

from hedgerow import native
from hedgerow.core.errors import (
    ConfigError,
    DtypeError,
    InputError,
    NotFiniteError,
    OutOfMemoryError,
)
from hedgerow.tables import initializers, monolith_rules, optimizers
from hedgerow.tables.host import HostTable
from hedgerow.tables.store import TableKeys

from ..support import everything, make_table

IDS = torch.tensor([1, 2])
ROWS = torch.ones(2, 4)


def _freed() -> torch.Tensor:
    rows = torch.ones(2, 4)
    rows.untyped_storage().resize_(0)
    return rows


@pytest.fixture
def table() -> HostTable:
    table = make_table(optimizers.Adagrad(lr=0.1))
    table.assign(IDS, ROWS)
    return table


Write = Callable[[HostTable, torch.Tensor, torch.Tensor], object]
WRITES: list[Write] = [HostTable.assign, HostTable.assign_add, HostTable.apply_gradients]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("ids", "rows", "error"),
    [
        (IDS.int(), ROWS, DtypeError),
        (IDS.float(), ROWS, DtypeError),
        ([1, 2], ROWS, DtypeError),
        (IDS, ROWS.double(), DtypeError),
        (IDS, ROWS.half(), DtypeError),
        (IDS, None, DtypeError),
        (IDS, torch.ones(2, 5), InputError),
        (IDS, torch.ones(3, 4), InputError),
        (IDS[:, None], ROWS, InputError),
        (torch.arange(4)[::2], ROWS, InputError),
        (IDS, torch.ones(4, 2).T, InputError),
        (IDS, torch.ones(1, 4).expand(2, 4), InputError),
        (IDS, ROWS.to_sparse(), InputError),
        (IDS, torch.ones(8).to_sparse(), InputError),
        (IDS, torch._neg_view(ROWS), InputError),
        (IDS, _freed(), InputError),
        (IDS.to("meta"), ROWS, InputError),
        (IDS, ROWS.to("meta"), InputError),
        (TableKeys(IDS, (0, 1, 2)), ROWS, InputError),
        (TableKeys(IDS, (0, 1)), ROWS, InputError),
        (TableKeys(IDS, torch.tensor([0, 2])), ROWS, DtypeError),
        (TableKeys(IDS, (0, 2), torch.tensor([1])), ROWS, InputError),
    ],
    ids=[
        "int32 ids",
        "float ids",
        "list of ids",
        "float64 rows",
        "half rows",
        "no rows",
        "wrong dim",
        "wrong count",
        "2-d ids",
        "strided ids",
        "transposed rows",
        "expanded rows",
        "sparse rows",
        "flat sparse rows",
        "negated view",
        "freed rows",
        "ids elsewhere",
        "rows elsewhere",
        "two tables",
        "splits that miss an id",
        "splits that may be on a device",
        "room after the ids",
    ],
)
def test_a_write_refuses_wrong_tensors_and_changes_nothing(
    table: HostTable,
    write: Write,
    ids: torch.Tensor,
    rows: torch.Tensor,
    error: type[Exception],
) -> None:
    before = everything(table)
    with pytest.raises(error):
        write(table, ids, rows)
    assert everything(table) == before


@pytest.mark.parametrize("read", [HostTable.lookup, HostTable.contains, HostTable.entries])
def test_a_read_refuses_wrong_ids(table: HostTable, read: Callable[..., object]) -> None:
    for ids, error in ((IDS.int(), DtypeError), (IDS[:, None], InputError)):
        with pytest.raises(error, match="ids"):
            read(table, ids)


@pytest.mark.parametrize(
    "out",
    [torch.empty(2, 5), torch.empty(3, 4), torch.empty(4, 2).T, torch.empty(2, 4).double()],
)
def test_a_lookup_refuses_an_output_that_does_not_fit(table: HostTable, out: torch.Tensor) -> None:
    with pytest.raises((InputError, DtypeError), match="out"):
        table.lookup(IDS, out=out)


def test_a_lookup_refuses_an_unknown_rule_for_missing_ids(table: HostTable) -> None:
    with pytest.raises(InputError, match="'random'"):
        table.lookup(IDS, missing="random")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("write", WRITES)
def test_values_that_are_not_finite_are_rejected_with_their_place(
    table: HostTable, write: Write, value: float
) -> None:
    before = everything(table)
    rows = ROWS.clone()
    rows[1, 2] = value
    with pytest.raises(NotFiniteError, match=r"\[1, 2\] is -?(nan|inf)"):
        write(table, IDS, rows)
    assert everything(table) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("write", WRITES)
def test_values_that_are_not_finite_are_dropped_and_counted_where_so_configured(
    write: Write, value: float
) -> None:
    table = make_table(not_finite="drop", dim=2)
    rows = torch.tensor([[1.0, value], [1.0, 1.0]])
    applied = write(table, IDS, rows)
    assert repr(applied) == "Applied(inserted=1, refused=0, dropped=1)"
    assert table.contains(IDS).tolist() == [False, True]
    assert bool(table.lookup(IDS).rows.isfinite().all())


def test_finite_gradients_whose_sum_overflows_are_dropped_and_counted(table: HostTable) -> None:
    ids = torch.tensor([1, 1])
    before = everything(table)
    applied = table.apply_gradients(ids, torch.full((2, 4), 3e38))
    assert repr(applied) == "Applied(inserted=0, refused=0, dropped=2)"
    assert everything(table) == before


@pytest.mark.parametrize(
    "rates", [[-0.1], [float("nan")], [float("inf")], [1e39], [0.1, 0.1], [], 0.1, "0", [None]]
)
def test_bad_rates_are_refused(table: HostTable, rates: list[float]) -> None:
    with pytest.raises((InputError, ConfigError)):
        table.apply_gradients(IDS, ROWS, rates=rates)


@pytest.mark.parametrize(
    "argument", [{"step": -1}, {"ts": -1}, {"step": 1.5}, {"step": 2**63 - 1}, {"ts": 2**63}]
)
def test_bad_steps_and_times_are_refused(table: HostTable, argument: dict[str, int]) -> None:
    with pytest.raises((InputError, DtypeError)):
        table.apply_gradients(IDS, ROWS, **argument)


def test_a_rate_too_small_to_divide_by_leaves_the_row_alone() -> None:
    for optimizer in (optimizers.Ftrl(), monolith_rules.GroupFtrl(), monolith_rules.GroupAdagrad()):
        table = make_table(optimizer)
        table.assign(IDS, ROWS)
        table.apply_gradients(IDS, ROWS, rates=[1e-39])
        assert bool((table.lookup(IDS).rows == 1).all())


def test_flags_are_true_or_false(table: HostTable) -> None:
    with pytest.raises(DtypeError, match="per_occurrence is 'yes'"):
        table.apply_gradients(IDS, ROWS, per_occurrence="yes")  # type: ignore[arg-type]


def test_first_values_outside_a_row_are_refused() -> None:
    init = initializers.Uniform(0.1)
    for argument in ({"first_column": 2**31 - 2}, {"first_column": 2**40}, {"seed": -1}):
        with pytest.raises(InputError):
            init.rows(IDS, **{"dim": 4, "seed": 1, **argument})


def test_a_refused_write_gives_its_memory_back() -> None:
    table, other = make_table(dim=64), make_table(dim=64)
    table.assign(IDS, torch.ones(2, 64))
    held = native.memory_used()
    native.set_memory_limit(held + 8 * 2**20)
    many = torch.arange(1000, 201_000)
    try:
        for _ in range(3):
            with pytest.raises(OutOfMemoryError, match="Nothing was changed"):
                table.assign(many, torch.ones(len(many), 64))
        assert native.memory_used() < held + 2**20
        other.assign(many[:10_000], torch.ones(10_000, 64))
    finally:
        native.set_memory_limit(0)


def test_counts_must_fit_the_ids(table: HostTable) -> None:
    table.apply_gradients(IDS, ROWS, counts=torch.tensor([1, 5]))
    for counts in (torch.tensor([1]), torch.tensor([1, 0]), torch.tensor([1.0, 1.0])):
        with pytest.raises((InputError, DtypeError), match="counts"):
            table.apply_gradients(IDS, ROWS, counts=counts)


def test_running_into_the_memory_limit_leaves_the_table_as_it_was() -> None:
    table = make_table(dim=64)
    table.assign(IDS, torch.ones(2, 64))
    many = torch.arange(1000, 201_000)
    native.set_memory_limit(native.memory_used() + 8 * 2**20)
    try:
        for write in WRITES:
            with pytest.raises(OutOfMemoryError, match="usable") as caught:
                write(table, many, torch.ones(len(many), 64))
            assert isinstance(caught.value, MemoryError)
        assert table.size() == 2
        assert not bool(table.contains(many).any())
        few = many[:1000]
        table.assign(few, torch.ones(1000, 64))
        table.apply_gradients(few, torch.ones(1000, 64))
    finally:
        native.set_memory_limit(0)
    assert table.size() == 1002
    table.assign(many, torch.ones(len(many), 64))
    assert table.size() == 2 + len(many)


def test_a_refusal_of_the_operating_system_leaves_the_table_as_it_was() -> None:
    """A real one: the process may not map more memory."""
    script = """
        import resource, torch
        from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
        from hedgerow.core.errors import OutOfMemoryError
        table = HostTable(TableConfig("t", (Segment(64, Zeros(), Sgd()),)))
        first, many = torch.arange(1000), torch.arange(1_000_000, 1_300_000)
        rows = torch.ones(len(many), 64)
        table.assign(first, rows[:1000])
        table.assign(many[:30_000], rows[:30_000])
        table.erase(many[:30_000])
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 40 * 2**20, -1))
        try:
            table.assign(many, rows)
        except OutOfMemoryError as error:
            print("refused:", "operating system" in str(error))
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        print("rows:", table.size(), bool(table.contains(many).any()))
        table.assign(many, rows)
        print("rows:", table.size(), bool((table.lookup(many).rows == 1).all()))
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300
    )
    assert run.stdout.splitlines() == ["refused: True", "rows: 1000 False", "rows: 301000 True"], (
        run.stderr
    )


def test_bad_settings_of_the_core_are_refused() -> None:
    with pytest.raises(ValueError, match="baseline"):
        native.set_isa("mmx")
    for count in (0, -1, 5000):
        with pytest.raises(ValueError, match=r"1\.\.1024"):
            native.set_threads(count)
