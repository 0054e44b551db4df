"""Random writes between the slices of a snapshot: it shows the rows of its start, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.tables import compressors, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.store import Entries

from ..support import EXTREME_IDS, bits, everything, table_config, twin_of

POOL = [*EXTREME_IDS, *range(2, 300)]
IDS = st.lists(st.sampled_from(POOL), max_size=40)
VERBS = ["assign", "assign_add", "erase", "restore", "apply_gradients", "reinitialize"]
WRITES = st.lists(st.tuples(st.sampled_from(VERBS), IDS), max_size=4)

CONFIGS = [
    table_config(optimizers.Adam(lr=0.1), dim=3, name="adam"),
    TableConfig(
        "serving",
        (Segment(3, compressor=compressors.Fp32()),),
        serving=True,
        skip_zero_embedding=True,
    ),
]


def _write(table: HostTable, verb: str, keys: list[int], step: int) -> None:
    ids = torch.tensor(keys, dtype=torch.int64)
    rows = torch.full((len(ids), table.layout.dim), float(step % 3))
    if verb == "restore":
        old = table.entries(ids[table.contains(ids)])
        table.restore(Entries(old.ids, old.found, old.rows + 1, old.states, old.ts + 1))
    elif verb == "erase":
        table.erase(ids)
    elif verb in ("apply_gradients", "reinitialize") and table.config.serving:
        table.assign(ids, rows, ts=step)
    elif verb == "reinitialize":
        table.reinitialize(ids)
    else:
        getattr(table, verb)(ids, rows, ts=step)


def _collect(parts: list[Entries]) -> dict[int, tuple[Any, ...]]:
    """In the form of `everything`."""
    found: dict[int, tuple[Any, ...]] = {}
    for part in parts:
        states = [(name, v) for segment in part.states for name, v in sorted(segment.items())]
        for i, key in enumerate(part.ids.tolist()):
            assert key not in found, f"id {key} was given twice"
            state = [(name, v[i].tolist()) for name, v in states]
            found[key] = (bits(part.rows[i]), state, int(part.ts[i]))
    return found


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
@pytest.mark.parametrize("make", [HostTable, twin_of], ids=["core", "twin"])
@settings(max_examples=40)
@given(
    before=WRITES,
    filled=st.integers(0, 300),
    between=st.lists(WRITES, max_size=12),
    rows=st.integers(1, 60),
)
def test_a_snapshot_read_in_steps_is_the_table_at_its_start(
    config: TableConfig,
    make: Any,
    before: list[tuple[str, list[int]]],
    filled: int,
    between: list[list[tuple[str, list[int]]]],
    rows: int,
) -> None:
    table = make(config)
    _write(table, "assign", POOL[:filled], 1)
    for step, (verb, keys) in enumerate(before):
        _write(table, verb, keys, step)
    expected, newest = everything(table), table.max_ts()
    parts: list[Entries] = []
    with table.snapshot() as view:
        slices = view.scan(rows)
        for step, writes in enumerate(between):
            for verb, keys in writes:
                _write(table, verb, keys, step + 10)
            parts += [part for part in [next(slices, None)] if part is not None]
        parts += slices
        assert _collect(parts) == expected
        assert (view.size, view.max_ts) == (len(expected), newest)


@settings(max_examples=30)
@given(between=st.lists(WRITES, max_size=8), rows=st.integers(1, 60))
def test_the_table_itself_is_the_same_with_and_without_a_snapshot(
    between: list[list[tuple[str, list[int]]]], rows: int
) -> None:
    watched = HostTable(CONFIGS[0], clock=_Clock())
    plain = twin_of(CONFIGS[0], clock=_Clock())
    for table in (watched, plain):
        _write(table, "assign", POOL, 1)
    with watched.snapshot() as view:
        slices = view.scan(rows)
        for step, writes in enumerate(between):
            for verb, keys in writes:
                _write(watched, verb, keys, step)
                _write(plain, verb, keys, step)
            next(slices, None)
    assert everything(watched) == everything(plain)


class _Clock:
    def now_s(self) -> int:
        return 123
