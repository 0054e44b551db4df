"""Random operations on the table and on its plain twin: every answer, every row, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.tables import compressors, initializers, monolith_rules, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.host_core import RowFile

from ..support import EXTREME_IDS, OPTIMIZERS, everything, table_config, threads, twin_of

IDS = st.sampled_from([*EXTREME_IDS, 2, 3, 64, 2**40, 0x5851F42D4C957F2D])
# Exact in float32 and small: sums, products and squares then differ only if the code does.
VALUES = st.integers(-64, 64).map(lambda k: k / 16)


def _configs() -> list[TableConfig]:
    configs = [table_config(o, dim=3, name=f"{o.kind}-{i}") for i, o in enumerate(OPTIMIZERS)]
    wide = (
        Segment(1, initializers.Zeros(), monolith_rules.MonolithFtrl(beta=1.0)),
        Segment(5, initializers.Normal(0.1), optimizers.Adam(lr=0.1)),
        Segment(
            2,
            initializers.TruncatedNormal(0.1),
            optimizers.Sgd(lr=0.1),
            stochastic_rounding_float16=True,
        ),
        Segment(1, initializers.BatchSoftmaxInitializer(1.0), monolith_rules.BatchSoftmax()),
        Segment(3, initializers.Uniform(1.0), optimizers.Adagrad(lr=0.1), compressors.FixedR8()),
    )
    serving = tuple(
        Segment(2, compressor=c)
        for c in (
            compressors.Fp32(),
            compressors.Fp16(),
            compressors.Bf16(),
            compressors.FixedR8(2.0),
            compressors.OneBit(),
        )
    )
    return [
        *configs,
        TableConfig("wide", wide, seed=3),
        TableConfig("drops", wide[:2], seed=3, not_finite="drop"),
        TableConfig("serving", serving, serving=True),
        TableConfig("skips", serving[:2], serving=True, skip_zero_embedding=True),
    ]


class _Pair:
    """The table and its twin; every call goes to both and must answer alike."""

    def __init__(self, config: TableConfig, rows_in: RowFile | None = None) -> None:
        self.config = config
        clock = _Clock()
        self.tables = (
            HostTable(config, clock=clock, rows_in=rows_in),
            twin_of(config, clock=clock),
        )

    def both(self, call: Callable[[HostTable], Any]) -> None:
        ours, model = (call(table) for table in self.tables)
        assert ours == model

    def move(self) -> None:
        for table in self.tables:
            parts = list(table.scan(3))
            table.clear()
            for part in parts:
                table.restore(part)

    def same_rows(self) -> None:
        ours, model = (everything(table) for table in self.tables)
        assert ours == model
        self.both(lambda t: (t.size(), t.max_ts(), t.core.native_table.counted()))


class _Clock:
    def now_s(self) -> int:
        return 123


def _rows(data: st.DataObject, config: TableConfig, n: int) -> torch.Tensor:
    flat = data.draw(st.lists(VALUES, min_size=n * config.dim, max_size=n * config.dim))
    rows = torch.tensor(flat, dtype=torch.float32).view(n, config.dim)
    if config.not_finite == "drop" and n and data.draw(st.booleans()):
        rows[data.draw(st.integers(0, n - 1)), 0] = data.draw(
            st.sampled_from([float("nan"), float("inf"), float("-inf")])
        )
    return rows


def _one_operation(pair: _Pair, data: st.DataObject, step: int) -> None:
    verbs = ["assign", "assign_add", "erase", "lookup", "entries", "contains", "move", "clear"]
    if not pair.config.serving:
        verbs += ["apply", "apply", "apply_each", "reinitialize", "first"]
    verb = data.draw(st.sampled_from(verbs))
    ids = torch.tensor(data.draw(st.lists(IDS, max_size=12)), dtype=torch.int64)
    rows = _rows(data, pair.config, len(ids))
    if verb in ("assign", "assign_add"):
        pair.both(lambda t: repr(getattr(t, verb)(ids, rows, ts=step)))
    elif verb in ("apply", "apply_each"):
        each = verb == "apply_each"
        pair.both(
            lambda t: repr(t.apply_gradients(ids, rows, step=step, ts=step, per_occurrence=each))
        )
    elif verb == "lookup":
        pair.both(lambda t: t.lookup(ids).rows.tolist())
    elif verb == "first":
        pair.both(lambda t: t.lookup(ids, missing="initializer").rows.tolist())
    elif verb == "entries":
        pair.both(lambda t: t.entries(ids).rows.tolist())
    elif verb == "move":  # everything out in slices, and back into an emptied table
        pair.move()
    elif verb == "clear":
        pair.both(lambda t: t.clear())
    else:
        pair.both(lambda t: getattr(t, verb)(ids).tolist())


@pytest.mark.parametrize("config", _configs(), ids=lambda c: c.name)
@settings(max_examples=25)
@given(data=st.data())
def test_any_sequence_of_operations_gives_the_rows_of_the_model(
    config: TableConfig, data: st.DataObject
) -> None:
    pair = _Pair(config)
    for step in range(data.draw(st.integers(1, 8))):
        _one_operation(pair, data, step)
    pair.same_rows()


@pytest.mark.parametrize(
    "config", [c for c in _configs() if c.name in ("wide", "serving")], ids=lambda c: c.name
)
@settings(max_examples=10)
@given(data=st.data(), budget_bytes=st.sampled_from([0, 8192, 2**20]))
def test_rows_in_a_file_are_those_of_the_model(
    config: TableConfig, data: st.DataObject, budget_bytes: int
) -> None:
    pair = _Pair(config, RowFile(Path(__file__).parent, budget_bytes))  # a file without a name
    for step in range(data.draw(st.integers(1, 8))):
        _one_operation(pair, data, step)
    pair.same_rows()


def _drive(table: HostTable, seed: int) -> list[Any]:
    """Large batches, so that several threads and several blocks of a shard take part."""
    random = np.random.default_rng(seed)
    pool = torch.from_numpy(random.integers(-(2**63), 2**63, 3000, dtype=np.int64))
    pool[: len(EXTREME_IDS)] = torch.tensor(EXTREME_IDS)
    answers: list[Any] = []
    for step in range(6):
        ids = pool[torch.from_numpy(random.integers(0, len(pool), 9000))]
        rows = torch.from_numpy(random.normal(size=(len(ids), table.layout.dim)).astype("float32"))
        each = bool(step % 2)
        answers.append(repr(table.apply_gradients(ids, rows, step=step, per_occurrence=each)))
        answers.append(table.lookup(ids[:5000]).rows.tolist())
        answers.append(repr(table.assign_add(ids[:5000], rows[:5000], ts=step)))
        answers.append(table.erase(ids[::9].contiguous()).tolist())
        answers.append(table.contains(ids).tolist())
    return answers


@pytest.mark.parametrize("optimizer", [optimizers.Adagrad(lr=0.1), optimizers.Adam(lr=0.01)])
def test_large_batches_give_the_rows_of_the_model_with_1_2_and_4_threads(
    optimizer: optimizers.Optimizer,
) -> None:
    config = table_config(optimizer, dim=2)  # 9,000 ids: several tiles, whatever the threads
    model = twin_of(config)
    expected = _drive(model, seed=5)
    rows = everything(model)
    assert len(rows) > 1000
    for count in (1, 2, 4):
        with threads(count):
            table = HostTable(config)
            assert _drive(table, seed=5) == expected, f"{count} threads"
            assert everything(table) == rows, f"{count} threads"
    with threads(2):
        table = HostTable(config, rows_in=RowFile(Path(__file__).parent, 2**14))
        assert _drive(table, seed=5) == expected, "rows in a file"
        assert everything(table) == rows, "rows in a file"
