"""Random writes and evictions on the table, on its twin and on a dict: the same rows leave."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.hashing import make_fid, slot_of
from hedgerow.tables.eviction import Eviction
from hedgerow.tables.host import HostTable

from ..support import EXTREME_IDS, everything, table_config, twin_of

IDS = st.sampled_from(
    [*EXTREME_IDS, 2, 3, *(make_fid(2, slot, n) for slot in (1, 2, 2**15 - 1) for n in (1, 2))]
)
TIMES = st.integers(0, 20).map(lambda k: k * 43200)  # of half a day: many are equal
RULES: list[Eviction] = [
    hr.Ttl("3d"),
    hr.Ttl(4, slots={1: "12h", 2: 0, 2**15 - 1: 100}),
    hr.Lru(1),
    hr.Lru(5),
    hr.Lfu(1, half_life=10**9),
    hr.Lfu(5, half_life=10**9),
]
VERBS = st.sampled_from(["assign", "assign_add", "apply_gradients", "erase", "evict", "evict"])


@dataclass
class _Row:
    time: int
    uses: int
    call: int


class _Model:
    """What should be there."""

    def __init__(self, rule: Eviction) -> None:
        self.rule = rule
        self.rows: dict[int, _Row] = {}
        self.newest = self.calls = 0

    def write(self, ids: list[int], ts: int) -> None:
        self.calls += 1
        for key in set(ids):
            uses = self.rows[key].uses if key in self.rows else 0
            self.rows[key] = _Row(ts, uses + ids.count(key), self.calls)
        self.newest = max(self.newest, ts)

    def evict(self) -> set[int]:
        if isinstance(self.rule, hr.Ttl):
            days = dict(self.rule.slots)
            gone = {
                key
                for key, row in self.rows.items()
                if self.newest - row.time >= hr.Ttl(days.get(slot_of(key), self.rule.age)).age_s(0)
            }
        else:
            gone = self.beyond_the_budget()
        for key in gone:
            del self.rows[key]
        return gone

    def beyond_the_budget(self) -> set[int]:
        assert isinstance(self.rule, hr.Lru | hr.Lfu)
        excess = max(0, len(self.rows) - self.rule.rows)
        by_use = isinstance(self.rule, hr.Lfu)

        def order(key: int) -> tuple[int, int, int]:
            row = self.rows[key]
            return (row.uses, row.time, key) if by_use else (row.time, row.call, key)

        return set(sorted(self.rows, key=order)[:excess])


def _write(table: HostTable, verb: str, ids: list[int], ts: int) -> None:
    getattr(table, verb)(torch.tensor(ids, dtype=torch.int64), torch.ones(len(ids), 2), ts=ts)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@settings(max_examples=60)
@given(data=st.data())
def test_the_rows_of_the_model_leave(rule: Eviction, data: st.DataObject) -> None:
    config, clock = table_config(dim=2, evict=rule), ManualClock(10**9)
    tables = [HostTable(config, clock=clock), twin_of(config)]
    model = _Model(rule)
    for _ in range(data.draw(st.integers(1, 12))):
        verb = data.draw(VERBS)
        ids, ts = data.draw(st.lists(IDS, max_size=8)), data.draw(TIMES)
        if verb == "evict":
            gone = sorted(model.evict())
            for table in tables:
                evicted = table.evict(capture=True)
                assert evicted.ids is not None
                assert sorted(evicted.ids.tolist()) == gone
        elif verb == "erase":
            for table in tables:
                table.erase(torch.tensor(ids, dtype=torch.int64))
            for key in set(ids) & model.rows.keys():
                del model.rows[key]
        else:
            model.write(ids, ts)
            for table in tables:
                _write(table, verb, ids, ts)
        ours, twin = (everything(table) for table in tables)
        assert ours == twin
        assert {key: row[2] for key, row in ours.items()} == {
            key: row.time for key, row in model.rows.items()
        }
