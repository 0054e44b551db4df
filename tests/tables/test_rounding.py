from __future__ import annotations

import pytest
import torch

from hedgerow import native
from hedgerow.core.errors import InputError
from hedgerow.tables import initializers, monolith_rules, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable

from ..support import make_table, table_config, twin_of


def _is_half(rows: torch.Tensor) -> bool:
    return torch.equal(rows, rows.half().float())


def test_rounding_is_unbiased_over_ids_columns_and_steps() -> None:
    n, dim = 4000, 8
    table = make_table(optimizers.Sgd(), dim=dim, stochastic_rounding_float16=True)
    ids = torch.arange(n)
    value = 1.0 + 2**-12  # a quarter of the way between two halves
    means = []
    for step in range(4):
        table.assign(ids, torch.full((n, dim), value))
        table.apply_gradients(ids, torch.zeros(n, dim), step=step)
        rows = table.lookup(ids).rows_of()
        assert _is_half(rows)
        means.append((rows > 1).double())
    up = torch.stack(means)
    spread = (0.25 * 0.75 / up.numel()) ** 0.5
    assert abs(float(up.mean()) - 0.25) < 5 * spread
    for axis in (0, 2):  # steps and columns draw for themselves
        part = up.mean(dim=[d for d in range(3) if d != axis])
        assert bool(((part - 0.25).abs() < 0.03).all())
    assert not torch.equal(up[0], up[1])


def test_tiny_steps_survive_on_average() -> None:
    """Without unbiased rounding a step below half a unit would vanish every time."""
    n = 20_000
    table = make_table(
        optimizers.Sgd(lr=1.0), 1, initializers.Ones(), stochastic_rounding_float16=True
    )
    ids = torch.arange(n)
    for step in range(16):
        table.apply_gradients(ids, torch.full((n, 1), -(2.0**-14)), step=step)
    moved = float(table.lookup(ids).rows.double().mean()) - 1
    assert abs(moved - 16 * 2**-14) < 5 * (16 * 2**-24) ** 0.5 / n**0.5 * 4


def test_rounding_touches_only_its_own_segment_and_passes_the_step_on() -> None:
    segments = (
        Segment(2, initializers.Zeros(), optimizers.Adagrad(), None, True),
        Segment(2, initializers.Zeros(), optimizers.Adagrad()),
        Segment(1, initializers.Zeros(), monolith_rules.BatchSoftmax()),
    )
    table = HostTable(TableConfig("t", segments))
    key = torch.tensor([3])
    table.apply_gradients(key, torch.full((1, 5), 0.3), rates=[0.1, 0.1, 0.1], step=9)
    found = table.entries(key)
    assert _is_half(found.rows[:, :2])
    assert not _is_half(found.rows[:, 2:4])
    assert not _is_half(found.states[0]["sum"])
    assert found.states[2]["global_step"].tolist() == [9]


def test_rounding_repeats_itself_and_differs_between_occurrences() -> None:
    def run(**settings: bool) -> torch.Tensor:
        table = make_table(dim=64, stochastic_rounding_float16=True, init=initializers.Zeros())
        ids = torch.tensor([5, 5, 5])
        table.apply_gradients(ids, torch.full((3, 64), 0.1), step=2, **settings)
        return table.lookup(torch.tensor([5])).rows

    assert torch.equal(run(), run())
    assert torch.equal(run(per_occurrence=True), run(per_occurrence=True))


def test_forty_occurrences_of_an_id_draw_forty_times() -> None:
    config = table_config(dim=64, stochastic_rounding_float16=True, init=initializers.Zeros())
    ids, grads = torch.full((40,), 5), torch.full((40, 64), 0.1)
    rows = []
    for table in (HostTable(config), twin_of(config)):
        table.apply_gradients(ids, grads, step=2, per_occurrence=True)
        rows.append(table.lookup(torch.tensor([5])).rows)
    assert torch.equal(rows[0], rows[1])
    draws = torch.empty(40, 64)
    for number in range(40):
        draws[number] = 1 + 2**-11  # half way between two halves
        at = draws[number].data_ptr()
        native.round_to_half(7, torch.tensor([5]).data_ptr(), 1, 2, number, 0, 64, at)
    assert len(draws.unique(dim=0)) == 40


def test_values_beyond_half_are_cut_at_its_largest() -> None:
    table = make_table(dim=2, stochastic_rounding_float16=True)
    table.assign(torch.tensor([1]), torch.tensor([[1e6, -1e6]]))
    table.apply_gradients(torch.tensor([1]), torch.zeros(1, 2), step=0)
    assert table.lookup(torch.tensor([1])).rows.tolist() == [65504.0, -65504.0]


def test_rounding_without_a_step_is_refused() -> None:
    """It would repeat the same draw in every call: rows would move always or never."""
    table = make_table(dim=2, stochastic_rounding_float16=True)
    with pytest.raises(InputError, match="pass step="):
        table.apply_gradients(torch.tensor([1]), torch.zeros(1, 2))
