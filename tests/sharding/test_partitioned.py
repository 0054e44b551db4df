"""The partitioned flow: shards of one process, ranks, and one plain table agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import ConfigError, InputError, NotSupportedError, UnknownNameError
from hedgerow.core.ids import Ragged
from hedgerow.monolith.layouts import FeatureConfigs, LayoutFeature, OutConfig, Slice
from hedgerow.monolith.tables.partitioned import PLACEHOLDER_TABLE, PartitionedTables
from hedgerow.monolith.tables.partitioned_shards import LocalShards, RankShards
from hedgerow.sharding.exchange import Exchange, LocalExchange
from hedgerow.sharding.pipeline import Item, Prefetch
from hedgerow.tables.admission import Count
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Constant
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.optimizers import Adagrad, Sgd
from hedgerow.tables.store import TableKeys

from .worlds import contents, keys_of

OUTS = {
    "all": OutConfig("CONCAT", (Slice("a", 0, 2), Slice("b", 0, 2), Slice("c", 1, 3))),
    "each": OutConfig("NONE", (Slice("c", 0, 3), Slice("a", 1, 2))),
}


def flow(*, native: bool = False) -> FeatureConfigs:
    """Features a and b share a table, unless every feature has its own."""
    tables = dict.fromkeys("abc", PLACEHOLDER_TABLE) if native else {"a": "t", "b": "t", "c": "u"}
    features = {
        "a": LayoutFeature(tables["a"], "SUM", (2,)),
        "b": LayoutFeature(tables["b"], "MEAN", (1, 1)),
        "c": LayoutFeature(tables["c"], "SUM", (3,)),
    }
    return FeatureConfigs(features, OUTS)


def stores(count: int, native: bool = False, **settings: Any) -> list[HostTables]:
    widths = {"a": 2, "b": 2, "c": 3} if native else {"t": 2, "u": 3}
    optimizer = settings.pop("optimizer", Sgd(lr=0.5))
    made = {
        name: TableConfig("any", (Segment(dim, Constant(0.5), optimizer),), **settings)
        for name, dim in widths.items()
    }
    return [HostTables(made) for _ in range(count)]


def batch_of(rows: dict[str, list[list[int]]]) -> dict[str, tuple[bool, Ragged]]:
    return {name: (False, Ragged.from_lists(ids)) for name, ids in rows.items()}


def powers_of_two(rows: list[int]) -> list[int]:
    """A mean over 1, 2 or 4 ids is dyadic."""
    return rows[: 4 if len(rows) >= 4 else 2 if len(rows) >= 2 else len(rows)]


ROW = st.lists(st.integers(-3, 6), max_size=5).map(powers_of_two)
SAMPLES = 3
BATCH = st.fixed_dictionaries(
    {name: st.lists(ROW, min_size=SAMPLES, max_size=SAMPLES) for name in "abc"}
)


@settings(max_examples=30, deadline=None)
@given(batches=st.lists(BATCH, min_size=1, max_size=3), native=st.booleans(), unique=st.booleans())
def test_ranks_and_shards_are_one_table(
    batches: list[dict[str, list[list[int]]]], native: bool, unique: bool
) -> None:
    """Rank r trains on batch r; one table, in as many shards as ranks or in one, on all of them."""
    config, ranks = flow(native=native), len(batches)

    def train(tables: PartitionedTables, rows: dict[str, list[list[int]]]) -> list[torch.Tensor]:
        size = len(rows["a"])
        seen = []
        for step in range(2):
            pulled = tables.pull(tables.shard(batch_of(rows), size), missing="training", step=step)
            found = tables.layout(pulled)
            seen += [found["all"], *found["each"]]
            grads = {"all": torch.full((size, 6), 0.5), "each": [torch.ones(size, 3), None]}
            tables.apply_gradients(pulled, grads, scale=2.0, step=step, ts=step)
        return seen

    everyone = {name: [row for rows in batches for row in rows[name]] for name in "abc"}
    whole, cut, owners = stores(1, native), stores(ranks, native), stores(ranks, native)
    in_one = train(PartitionedTables(config, LocalShards(whole), unique=unique), everyone)
    in_shards = train(PartitionedTables(config, LocalShards(cut), unique=unique), everyone)

    def one(exchange: LocalExchange) -> list[torch.Tensor]:
        tables = RankShards(owners[exchange.rank], exchange)
        return train(PartitionedTables(config, tables, unique=unique), batches[exchange.rank])

    by_rank = zip(*LocalExchange.run(ranks, one), strict=True)
    assert contents(cut) == contents(owners) == contents(whole)
    for wanted, other, parts in zip(in_one, in_shards, by_rank, strict=True):
        assert torch.equal(other, wanted)
        assert torch.equal(torch.cat(parts), wanted)


def test_an_id_of_two_features_of_a_table_is_one_step() -> None:
    tables = PartitionedTables(flow(), LocalShards(stores(2, optimizer=Adagrad(lr=1.0))))
    rows = batch_of({"a": [[4]], "b": [[4]], "c": [[]]})
    pulled = tables.pull(tables.shard(rows, 1))
    tables.apply_gradients(pulled, {"all": torch.ones(1, 6)})
    plain = stores(1, optimizer=Adagrad(lr=1.0))[0].table(0)
    plain.apply_gradients(torch.tensor([4]), torch.full((1, 2), 2.0))
    store = tables.shards.stores[0]  # pyright: ignore
    found = store.table(0).lookup(torch.tensor([4])).rows
    assert torch.equal(found, plain.lookup(torch.tensor([4])).rows)


@pytest.mark.parametrize("unique", [True, False])
def test_occurrences_count_for_admission(unique: bool) -> None:
    made = stores(2, admit=Count(4))
    tables = PartitionedTables(flow(), LocalShards(made), unique=unique)
    rows = batch_of({"a": [[4, 5], [4]], "b": [[4], [8]], "c": [[4], []]})  # 4 of t three times
    for _ in range(2):
        pulled = tables.pull(tables.shard(rows, 2))
        tables.apply_gradients(pulled, {})
    assert made[0].table(0).contains(torch.tensor([4, 8])).tolist() == [True, False]
    assert not made[1].table(0).contains(torch.tensor([5])).any()
    assert made[0].table(1).size() == 0


def test_rows_that_are_partitioned_already() -> None:
    made = stores(2)
    tables = PartitionedTables(flow(), LocalShards(made))
    keys = [keys_of([[2, 4], []]), keys_of([[1], [3]])]
    rows = [torch.arange(4.0), torch.ones(5)]
    tables.assign(keys, rows, ts=3)
    tables.assign_add(keys, rows, ts=4)
    assert torch.equal(made[0].lookup(keys[0]).rows, 2 * rows[0])
    assert torch.equal(made[1].lookup(keys[1]).rows, 2 * rows[1])
    assert made[1].max_ts() == 4
    with pytest.raises(InputError, match="keys of 1 and rows of 1 shards; there are 2"):
        tables.assign(keys[:1], rows[:1])
    over_ranks = PartitionedTables(flow(), RankShards(stores(1)[0], Exchange()))
    with pytest.raises(NotSupportedError, match="own `local` tables"):
        over_ranks.assign([TableKeys(torch.tensor([1]), (0, 1, 1))], [torch.ones(2)])


def test_stages_one_behind_the_other() -> None:
    """Ids are sharded in one thread and pulled in another; the layouts are those of one call."""
    tables = PartitionedTables(flow(), LocalShards(stores(2)))
    batches = [batch_of({name: [[i, i + 1], [i]] for name in "abc"}) for i in range(6)]
    for rows in batches:
        pulled = tables.pull(tables.shard(rows, 2))
        tables.apply_gradients(pulled, {"all": torch.ones(2, 6)})
    source = (Item(rows, step) for step, rows in enumerate(batches))
    with (
        Prefetch(source, lambda item: tables.shard(item.value, 2), 2) as sharded,
        Prefetch(sharded, lambda item: tables.pull(item.value), 1) as pulled,
    ):
        for step, (item, rows) in enumerate(zip(pulled, batches, strict=True)):
            assert item.step == step
            wanted = tables.lookup(rows, 2)["all"]
            assert torch.equal(tables.layout(item.value)["all"], wanted)


def test_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match=r"hold tables \['t', 'u'\]; the features want"):
        PartitionedTables(flow(native=True), LocalShards(stores(1)))
    wide = FeatureConfigs(
        {"a": LayoutFeature("t", "SUM", (3,)), "c": LayoutFeature("u", "SUM", (3,))}, {}
    )
    with pytest.raises(ConfigError, match="feature 'a' has 3 columns, its table 't' 2"):
        PartitionedTables(wide, LocalShards(stores(1)))
    with pytest.raises(ConfigError, match="without a store"):
        LocalShards([])
    with pytest.raises(ConfigError, match="shards differ"):
        LocalShards([*stores(1), *stores(1, native=True)])
    tables = PartitionedTables(flow(), LocalShards(stores(1)))
    pulled = tables.pull(tables.shard(batch_of({"a": [[1]]}), 1))
    with pytest.raises(UnknownNameError, match="'al'"):
        tables.gradients(pulled, {"al": torch.ones(1, 6)})
    with pytest.raises(InputError, match="1 gradients of layout 'each'; it has 2 tensors"):
        tables.gradients(pulled, {"each": torch.ones(1, 3)})
