"""Vectors of admission: thresholds, windows, chances, and a filter's checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hedgerow.monolith.tables.hash_filters import GradientMask
from hedgerow.tables.admission import SlidingFilter
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.monolith_rules import OccurrenceThreshold, ProbabilisticThreshold

from .runner import Case, take
from .tables_area import AREA, close, make_table, original

CAPACITY = 10_000  # more than any vector has ids


def _rule(default: int, slots: tuple[tuple[int, int], ...] = ()) -> OccurrenceThreshold:
    """Monolith's counters; a vector of larger thresholds needs its four bits."""
    return OccurrenceThreshold(default, slots, CAPACITY, four_bit_counts=True)


def _table(threshold: int, optimizer: str = "sgd") -> HostTable:
    segment = Segment(1, Zeros(), original(optimizer, {}))
    return make_table(TableConfig("golden", (segment,), admit=_rule(threshold)))


def gradients(c: dict[str, Any], *, dedup: bool) -> None:
    c = take(
        c,
        (
            *("id", "threshold", "lr", "optimizer", "batch"),
            *("grad", "ids", "rows_after_each_batch"),
        ),
        ("note",),
    )
    table = _table(c["threshold"], c["optimizer"])
    batch = torch.tensor(c["batch"])
    for rows in c["rows_after_each_batch"]:
        grads = torch.full((len(batch), 1), c["grad"])
        table.apply_gradients(batch, grads, rates=[c["lr"]], per_occurrence=not dedup)
        close(table.lookup(torch.tensor(c["ids"])).rows_of(), rows)


def gradients_deduplicated_by_the_caller(c: dict[str, Any]) -> None:
    """The table groups equal ids itself; a caller that did so sends their counts."""
    gradients(c, dedup=True)
    table = _table(c["threshold"], c["optimizer"])
    ids, counts = torch.tensor(c["batch"]).unique(return_counts=True)
    for rows in c["rows_after_each_batch"]:
        grads = c["grad"] * counts[:, None].float()
        table.apply_gradients(ids, grads, rates=[c["lr"]], counts=counts)
        close(table.lookup(torch.tensor(c["ids"])).rows_of(), rows)


def per_slot(c: dict[str, Any]) -> None:
    c = take(c, ("id", "default", "slots", "ids", "dropped"))
    rule = _rule(c["default"], tuple((int(slot), t) for slot, t in c["slots"].items()))
    mask = GradientMask(rule, name="golden")
    asked = torch.tensor(c["ids"], device="cpu")  # a mask counts on the host
    assert (~mask.admitted(asked)).tolist() == c["dropped"]
    table = make_table(
        TableConfig("golden", (Segment(1, Zeros(), original("sgd", {})),), admit=rule)
    )
    for key, dropped in zip(c["ids"], c["dropped"], strict=True):
        done = table.assign(torch.tensor([key]), torch.ones(1, 1))
        assert done.refused == dropped
        assert bool(table.contains(torch.tensor([key]))) is not dropped


def saturation(c: dict[str, Any]) -> None:
    c = take(c, ("id", "adds", "returned_old_counts", "final"))
    seen = SlidingFilter(capacity_ids=CAPACITY, max_count=15)  # Monolith's four bits
    key = torch.tensor([1])
    before = [int(seen.add(key, table="", counts=torch.tensor([n]))) for n in c["adds"]]
    assert before == c["returned_old_counts"]
    assert int(seen.counts(key, table="")) == c["final"]


def never_admits(c: dict[str, Any]) -> None:
    c = take(c, ("id", "threshold", "calls", "admitted", "product_rule"))
    table, mask = _table(c["threshold"]), GradientMask(_rule(c["threshold"]), name="golden")
    key, admitted = torch.tensor([1]), 0
    for _ in range(c["calls"]):
        admitted += int(mask.admitted(key.cpu()))
        table.apply_gradients(key, torch.ones(1, 1))
    assert admitted == c["admitted"]
    assert table.size() == (admitted > 0)


def sliding_window(c: dict[str, Any]) -> None:
    c = take(
        c,
        (
            *("id", "capacity", "split_num", "split_capacity", "threshold", "ids"),
            *("admitted_per_pass", "head", "head_increment", "window_sizes", "model"),
        ),
    )
    assert c["model"] == "collision-free"
    rule = OccurrenceThreshold(
        c["threshold"], capacity_ids=c["capacity"], split_num=c["split_num"], four_bit_counts=True
    )
    mask = GradientMask(rule, name="golden")
    assert mask.filter is not None
    for admitted in c["admitted_per_pass"]:
        assert mask.admitted(torch.tensor(c["ids"])).tolist() == admitted
    assert c["split_capacity"] == c["capacity"] // (c["split_num"] - 1)
    assert (mask.filter.head, mask.filter.head_increment) == (c["head"], c["head_increment"])
    assert list(mask.filter.sizes[: len(c["window_sizes"])]) == c["window_sizes"]
    assert mask.filter.failures == 0


def assigns(c: dict[str, Any]) -> None:
    afters = ("after_first_assign", "after_second_assign", "after_assign_add")
    c = take(c, ("id", "threshold", "row_id", "calls", *afters))
    table, key = _table(c["threshold"]), torch.tensor([c["row_id"]])
    for call, after in zip(c["calls"], afters, strict=True):
        verb, value = call.split()
        verbs = {"assign": table.assign, "assign_add": table.assign_add}
        verbs[verb](key, torch.tensor([[float(value)]]))
        close(table.lookup(key).rows_of(), c[after])


RESTORE = "restore checkpoint taken after the first call"


def checkpoint(c: dict[str, Any]) -> None:
    c = take(c, ("id", "threshold", "value_added", "ops"))
    table, key = _table(c["threshold"]), torch.tensor([9])
    assert table.filter is not None
    saved = None
    for op in c["ops"]:
        o = take(op, ("do", "value", "count"))
        if o["do"] == RESTORE:
            assert saved is not None
            table.clear()
            for part in saved[0]:
                table.restore(part)
            table.filter.restore(saved[1])
        else:
            assert o["do"] == "assign_add", f"unknown op {o['do']!r}"
            table.assign_add(key, torch.tensor([[c["value_added"]]]))
        close(table.lookup(key).rows_of(), [[o["value"]]])
        assert int(table.filter.counts(key, table="golden")) == o["count"]
        saved = saved or (list(table.scan()), table.filter.dump())


CASES: dict[str, Callable[[dict[str, Any]], None]] = {
    "gradient-admission": lambda c: gradients(c, dedup=False),
    "gradient-admission-with-dedup": gradients_deduplicated_by_the_caller,
    "per-slot-thresholds": per_slot,
    "counter-saturates-at-15": saturation,
    "threshold-above-15-upstream-never-admits": never_admits,
    "sliding-window": sliding_window,
    "assign-passes-the-filter-too-existing-rows-skip-it": assigns,
    "filter-checkpoint": checkpoint,
}


@AREA.handles("filters", "cases")
def admission(case: Case) -> None:
    name = case.value["id"]
    assert name in CASES, f"unknown case {name!r}"
    CASES[name](case.value)


@AREA.handles("filters", "probabilistic")
def probability(case: Case) -> None:
    c = case.take(("count", "threshold", "unequal", "equal"))
    for form in ("unequal", "equal"):
        rule = ProbabilisticThreshold(c["threshold"], form=form)
        found = rule.probability(occurrences=c["count"])
        close(torch.tensor(found), c[form], atol=1e-7, rtol=1e-7)
