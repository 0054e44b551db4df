"""Vectors of row operations: traces on one table, what must raise, equal ids in a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hedgerow.tables.compressors import Fp32
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Constant, Zeros
from hedgerow.tables.optimizers import Sgd
from hedgerow.tables.store import Entries

from .monolith_files import SITUATIONS as OF_FILES
from .runner import Case, take
from .tables_area import (
    AREA,
    close,
    make_table,
    one_segment,
    original,
    row_and_state,
    same_state,
)
from .tables_servers import equal_ids_on_servers

# An erratum of the vectors: the first entry of this case shows norm 5.1, although 4.1 and the
# square of the gradient that follows make the 5.1 of the last one. That an assignment keeps the
# state is a test of its own (tests/tables/test_host.py).
ERRATUM = "assign-keeps-optimizer-state"


class _Clock:
    now = 2**40  # ahead of every stamp of a trace: none comes from the future

    def now_s(self) -> int:
        return self.now


class _Trace:
    """Runs the operations of one `tables` case."""

    def __init__(self, c: dict[str, Any]) -> None:
        self.case_id = c["id"]
        self.clock = _Clock()
        segments, self.rates = [], []
        for segment in c["segments"]:
            s = take(segment, ("dim", "opt", "opt_cfg", "lr", "init"))
            optimizer = original(s["opt"], s["opt_cfg"])
            segments.append(Segment(s["dim"], Constant(s["init"]), optimizer, Fp32()))
            self.rates.append(s["lr"])
        config = TableConfig(
            c["id"],
            tuple(segments),
            serving=c.get("serving", False),
            skip_zero_embedding=c.get("skip_zero_embedding", False),
        )
        self.table = make_table(config, clock=self.clock)
        self.changed = self.table.touched("golden")
        self.states_at_end: list[tuple[int, list[dict[str, Any]]]] = []

    def assign(self, op: dict[str, Any]) -> None:
        o = take(op, ("op", "ids", "values"), ("ts",))
        verb = {"assign": self.table.assign, "assign_add": self.table.assign_add}[o["op"]]
        verb(torch.tensor(o["ids"]), torch.tensor(o["values"]), ts=o.get("ts", 0))

    assign_add = assign

    def apply(self, op: dict[str, Any]) -> None:
        o = take(op, ("op", "ids", "grads"), ("lrs", "ts", "global_step"))
        self.table.apply_gradients(
            torch.tensor(o["ids"]),
            torch.tensor(o["grads"]),
            rates=o.get("lrs", self.rates),
            ts=o.get("ts", 0),
            step=o.get("global_step", 0),
        )

    def lookup(self, op: dict[str, Any]) -> None:
        o = take(op, ("op", "ids", "expect"))
        close(self.table.lookup(torch.tensor(o["ids"])).rows_of(), o["expect"])

    def contains(self, op: dict[str, Any]) -> None:
        o = take(op, ("op", "ids", "expect"))
        assert self.table.contains(torch.tensor(o["ids"])).tolist() == o["expect"]

    def size(self, op: dict[str, Any]) -> None:
        assert self.table.size() == take(op, ("op", "expect"))["expect"]

    def max_ts(self, op: dict[str, Any]) -> None:
        assert self.table.max_ts() == take(op, ("op", "expect"))["expect"]

    def entry(self, op: dict[str, Any]) -> None:
        o = take(op, ("op", "ids", "expect"))
        found = self.table.entries(torch.tensor(o["ids"]))
        assert found.found.tolist() == [e is not None for e in o["expect"]]
        for i, expected in enumerate(o["expect"]):
            if expected is None:
                continue
            e = take(expected, ("row", "state", "ts"))
            close(found.rows[i], e["row"])
            assert int(found.ts[i]) == e["ts"]
            try:
                self._same_states(found, i, e["state"])
            except AssertionError:
                if self.case_id != ERRATUM:
                    raise
                self.states_at_end.append((o["ids"][i], e["state"]))

    def _same_states(self, found: Entries, i: int, expected: list[dict[str, Any]]) -> None:
        for states, wanted in zip(found.states, expected, strict=True):
            same_state({name: value[i] for name, value in states.items()}, wanted)

    def finish(self) -> None:
        """A state of the erratum that did not hold at its place must hold at the trace's end."""
        for key, expected in self.states_at_end:
            self._same_states(self.table.entries(torch.tensor([key])), 0, expected)

    def reinitialize(self, op: dict[str, Any]) -> None:
        o = take(op, ("op", "ids", "expect"), ("now",))
        self.clock.now = o.get("now", 0)
        assert self.table.reinitialize(torch.tensor(o["ids"])).tolist() == o["expect"]
        self.clock.now = _Clock.now

    def clear(self, op: dict[str, Any]) -> None:
        take(op, ("op",))
        self.table.clear()

    def touched(self, op: dict[str, Any]) -> None:
        o = take(op, ("op", "expect"))
        assert sorted(self.changed.take().ids.tolist()) == sorted(o["expect"])

    def run(self, op: dict[str, Any]) -> None:
        verbs = (
            "assign assign_add apply lookup contains size max_ts entry reinitialize clear touched"
        )
        assert op["op"] in verbs.split(), f"unknown op {op['op']!r}"
        getattr(self, op["op"])(op)


@AREA.handles("tables", "cases")
def operation_trace(case: Case) -> None:
    c = case.take(("id", "segments", "ops"), ("serving", "skip_zero_embedding"))
    trace = _Trace(c)
    for op in c["ops"]:
        trace.run(op)
    trace.finish()


def _table(**settings: Any) -> HostTable:
    return make_table(TableConfig("golden", (Segment(2, Zeros(), Sgd()),)), **settings)


def _serving(compressor: Fp32 | None) -> HostTable:
    return make_table(TableConfig("golden", (Segment(2, compressor=compressor),), serving=True))


def _skip_zero_in_training() -> None:
    TableConfig("golden", (Segment(2, Zeros(), Sgd()),), skip_zero_embedding=True)


def _two_of_one_name() -> None:
    first = _table(shared_name="golden/taken")
    second = _table(shared_name="golden/taken")
    raise AssertionError((first, second))


SITUATIONS: dict[str, tuple[Callable[[], object], ...]] = {
    "skip_zero_embedding on a training table": (_skip_zero_in_training,),
    "training table with a segment that lacks optimizer or initializer": (
        lambda: TableConfig("golden", (Segment(2, Zeros()),)),
        lambda: TableConfig("golden", (Segment(2, optimizer=Sgd()),)),
    ),
    "serving table with a segment that lacks a compressor": (lambda: _serving(None),),
    "number of learning-rate functions differs from number of segments": (
        lambda: _table(rates=[0.1, 0.2]),
        lambda: _table(rates=[]),
        lambda: _table().apply_gradients(torch.tensor([1]), torch.ones(1, 2), rates=[0.1, 0.2]),
    ),
    "two tables with one shared name in one process": (_two_of_one_name,),
    "apply_gradients on a serving table": (
        lambda: _serving(Fp32()).apply_gradients(torch.tensor([1]), torch.ones(1, 2)),
    ),
    "lookup with a dim other than the table's": (
        lambda: _table().lookup(torch.tensor([1]), out=torch.empty(1, 3)),
    ),
    **OF_FILES,
}
ERRORS: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "RuntimeError": RuntimeError,
    "FileNotFoundError": FileNotFoundError,
}


@AREA.handles("tables", "must_raise")
def raises(case: Case) -> None:
    c = case.take(("why", "error"))
    for situation in SITUATIONS[c["why"]]:
        with pytest.raises(ERRORS[c["error"]]):
            situation()


@AREA.handles("duplicates", "cases")
def equal_ids(case: Case) -> None:
    if "worker_grads" in case.value:
        return two_workers(case)
    if "servers" in case.value:
        return equal_ids_on_servers(case)
    c = case.take(("id", "optimizer", "config", "lr", "ids", "grads", "expect"), ("init",))
    expected = take(c["expect"], ("per_occurrence", "summed"))
    for mode, wanted in expected.items():
        e = take(wanted, ("ids", "rows"), ("states",))
        optimizer = original(c["optimizer"], c["config"])
        table = one_segment(optimizer, len(c["grads"][0]), c.get("init", 0.0))
        table.apply_gradients(
            torch.tensor(c["ids"]),
            torch.tensor(c["grads"]),
            rates=[c["lr"]],
            per_occurrence=mode == "per_occurrence",
        )
        assert table.size() == len(set(c["ids"]))
        for i, key in enumerate(e["ids"]):
            row, state = row_and_state(table, key)
            close(row, e["rows"][i], what=mode)
            if "states" in e:
                same_state(state, e["states"][i])
    return None


def two_workers(case: Case) -> None:
    """Each worker's push is a step of its own, in the order of arrival."""
    c = case.take(("id", "optimizer", "config", "lr", "worker_grads", "rows_by_order"))
    for order, expected in c["rows_by_order"].items():
        table = one_segment(original(c["optimizer"], c["config"]), len(c["worker_grads"][0]))
        for worker in order:
            grad = c["worker_grads"]["ab".index(worker)]
            table.apply_gradients(torch.tensor([0]), torch.tensor([grad]), rates=[c["lr"]])
        close(row_and_state(table)[0], expected, what=order)
