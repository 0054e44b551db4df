"""Vectors of expiry: what a save leaves out, what leaves a table, slots of ids, the schedule."""

from __future__ import annotations

import tempfile
import threading
from typing import Any

import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.hashing import fid_v1_to_v2, signed64, slot_of
from hedgerow.monolith.tables.evictor import Evictor
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.eviction import Lru, Ttl, expired
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Sgd

from .runner import Case, take
from .tables_area import AREA, close, make_table

DAY_S = 86400


def _table(rule: Ttl | Lru, dim: int = 1, clock: ManualClock | None = None) -> HostTable:
    config = TableConfig("golden", (Segment(dim, Zeros(), Sgd(lr=1.0)),), evict=rule)
    return make_table(config, clock=clock)


@AREA.handles("eviction", "cases")
def eviction(case: Case) -> None:
    if "saved_ids" in case.value:
        return save(case)
    if "default_days" in case.value:
        return by_slot(case)
    return by_newest_update(case)


def save(case: Case) -> None:
    """A save keeps what has not expired at the newest update; memory keeps everything."""
    sizes = ("size_in_memory_after_save", "size_after_restore")
    c = case.take(("id", "expire_days", "timestamps", "saved_ids"), ("values_before", *sizes))
    values = c.get("values_before", [[1.0]] * len(c["timestamps"]))
    table = _table(Ttl(c["expire_days"]), len(values[0]))
    for key, (ts, row) in enumerate(zip(c["timestamps"], values, strict=True)):
        ids, rows = torch.tensor([key]), torch.tensor([row])
        if c["id"].endswith("-apply"):
            table.apply_gradients(ids, -rows, ts=ts)
        else:
            table.assign_add(ids, rows, ts=ts)
    close(table.lookup(torch.arange(len(values))).rows_of(), values)

    copy = _table(Ttl(c["expire_days"]), len(values[0]))
    with tempfile.TemporaryDirectory() as folder:
        hr.save([table], folder)
        hr.load([copy], folder)
    saved = [key for part in copy.scan() for key in part.ids.tolist()]
    assert sorted(saved) == sorted(c["saved_ids"])
    assert table.size() == c.get("size_in_memory_after_save", len(values))
    assert copy.size() == c.get("size_after_restore", len(saved))
    for key in saved:
        close(copy.lookup(torch.tensor([key])).rows, values[key])
    # An eviction takes from memory what the save left out.
    table.evict()
    assert table.size() == len(saved)


def by_slot(case: Case) -> None:
    c = case.take(
        ("id", "default_days", "slot_days", "ids", "update_ts", "now", "removed", "values")
    )
    ids, values = torch.tensor([signed64(i) for i in c["ids"]]), torch.tensor(c["values"])
    removed = [signed64(i) for i in c["removed"]]
    gone = torch.tensor([int(i) in removed for i in ids])
    rule = Ttl(c["default_days"], slots={int(k): v for k, v in c["slot_days"].items()})
    table = _table(rule, values.shape[1])
    # The vector shows the rows as they are afterwards; the removed ones had values too.
    table.assign(ids, torch.where(gone[:, None], 1.0, values), ts=c["update_ts"])
    stamps = table.entries(ids).ts
    assert expired(ids, stamps, c["now"], rule).tolist() == gone.tolist()
    _evicts(table, removed, now_s=c["now"])
    close(table.lookup(ids).rows_of(), c["values"])
    assert table.contains(ids).tolist() == (~gone).tolist()


def by_newest_update(case: Case) -> None:
    c = case.take(("id", "expire_days", "timestamps", "reference_time", "removed"))
    table = _table(Ttl(c["expire_days"]))
    for key, ts in c["timestamps"].items():
        table.assign(torch.tensor([int(key)]), torch.ones(1, 1), ts=ts)
    assert table.max_ts() == c["reference_time"]
    _evicts(table, c["removed"])
    assert table.size() == len(c["timestamps"]) - len(c["removed"])


def _evicts(table: HostTable, removed: list[int], **settings: Any) -> None:
    evicted = table.evict(capture=True, **settings)
    assert evicted.ids is not None
    assert sorted(evicted.ids.tolist()) == sorted(removed)
    assert evicted.rows == len(removed)


@AREA.handles("eviction", "feature_ids")
def feature_id(case: Case) -> None:
    c = case.take(("fid", "slot_v1", "slot_v2", "as_v2"))
    fid = signed64(c["fid"])
    for ids in (fid, torch.tensor([fid])):
        assert slot_of(ids, 1) == c["slot_v1"]
        assert slot_of(ids, 2) == c["slot_v2"]
        assert fid_v1_to_v2(ids) == signed64(c["as_v2"])


@AREA.handles("eviction", "background_schedule")
def schedule(case: Case) -> None:
    """The thread's own schedule, on a clock that moves with its waits."""
    c = take(
        case.value,
        ("poll_seconds", "first_poll_only_records_the_time", "period_hours_default", "condition"),
    )
    assert c["condition"] == "now - last >= hours*3600"
    assert c["first_poll_only_records_the_time"] is True
    start, period = 1_000_000, round(c["period_hours_default"] * 3600)
    clock, evicted_at = ManualClock(start), list[int]()
    table = _table(Lru(1))
    waited, reached, released = set[float](), threading.Event(), threading.Event()

    def wait(seconds: float) -> None:
        waited.add(seconds)
        if clock.now_s() - start >= 2 * period + c["poll_seconds"]:
            reached.set()
            released.wait()
        else:
            clock.advance(round(seconds))

    def refill(*_: object) -> None:
        evicted_at.append(clock.now_s())
        table.assign(torch.tensor([1, 2]), torch.ones(2, 1))  # one row too many, again

    table.assign(torch.tensor([1, 2]), torch.ones(2, 1))
    with Evictor([table], clock=clock, wait=wait, on_evicted=refill) as evictor:
        assert reached.wait(300)
        released.set()
    assert waited == {c["poll_seconds"]}
    polls = -(-period // c["poll_seconds"])  # the first poll at which the period has passed
    first = start + polls * c["poll_seconds"]
    assert evicted_at[0] == first
    assert evicted_at[1] == first + polls * c["poll_seconds"]
    assert evictor.counts()["evictions"] == len(evicted_at)
