"""Partitioned tables from the factory: the same numbers here, on servers and over ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow.core.ids import Ragged
from hedgerow.monolith import distributed_ps_factory as door
from hedgerow.monolith.layouts import OutConfig, Slice
from hedgerow.monolith.tables.describe import shards_of
from hedgerow.monolith.tables.partitioned import FeatureIds
from hedgerow.ops.combiners import Combiner, FirstN, ReduceMean, ReduceSum
from hedgerow.sharding.pipeline import Item
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Uniform, Zeros
from hedgerow.tables.optimizers import Adagrad, Sgd
from hedgerow.tables.store import TableKeys
from tests.golden.tables_factory import server_addresses

WIDE = TableConfig(
    "any",
    (Segment(1, Uniform(0.1), Sgd(lr=0.1)), Segment(4, Uniform(0.1), Adagrad(lr=0.1))),
    seed=5,
)
NARROW = TableConfig("any", (Segment(2, Uniform(0.1), Sgd(lr=0.1)),), seed=5)
FEATURES = {"uid": WIDE, "gid": WIDE, "cid": NARROW}
LAYOUTS = {
    "bias": OutConfig("ADDN", (Slice("uid", 0, 1), Slice("gid", 0, 1))),
    "vec": OutConfig("CONCAT", (Slice("uid", 1, 5), Slice("gid", 1, 3), Slice("gid", 3, 5))),
    "seq": OutConfig("STACK", (Slice("cid", 0, 2),)),
}
COMBINERS: dict[str, Combiner] = {"uid": ReduceMean(), "gid": ReduceSum(), "cid": FirstN(2)}
BATCH = {
    "uid": (False, Ragged.from_lists([[1, 2], [3]])),
    "gid": (False, Ragged.from_lists([[11], [12, 11, 13]])),
    "cid": (False, Ragged.from_lists([[21, 22, 23], []])),
}


def make(num_ps: int, native: bool, **settings: Any) -> Any:
    return door.create_partitioned_hash_table(
        num_ps,
        native,
        feature_name_to_config=FEATURES,
        layout_configs=LAYOUTS,
        feature_to_combiner=COMBINERS,
        feature_to_unmerged_slice_dims={"gid": [1, 2, 2]},
        **settings,
    )


def train(table: Any) -> dict[str, torch.Tensor]:
    """Three steps through the queues, which are off."""
    source = [Item(FeatureIds(BATCH, 2), step=step) for step in range(3)]
    with table.queues as queues, queues.ahead(source) as ahead:
        for item in ahead:
            grads = {name: torch.ones_like(value) for name, value in item.value.layouts.items()}
            table.put_gradients(item.value, grads, step=item.step)
    return table.lookup(BATCH, 2)


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return train(make(0, True))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("where", ["here", "servers", "ranks"])
def test_the_same_numbers(
    expected: dict[str, torch.Tensor], native: bool, unique: bool, where: str
) -> None:
    if where == "servers":
        with server_addresses(2) as servers, door.cluster(servers):
            table = make(2, native, unique=unique)
            try:
                found = train(table)
            finally:
                for shard in shards_of(table):
                    shard.close()  # pyright: ignore[reportAttributeAccessIssue]
    elif where == "ranks":
        found = train(make(1, native, unique=unique, enable_gpu_emb=True))
    else:
        found = train(make(0, native, unique=unique))
    assert set(found) == set(LAYOUTS)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name])
        assert bool(value.abs().sum())


def test_rows_that_are_partitioned_already() -> None:
    table = make(2, True)
    features = ("cid", "gid", "uid")
    assert table.shards.names == features
    keys = [table_keys([21 + i], [11 + i], [1 + i]) for i in (1, 0)]  # even ids, then odd ones
    rows = [torch.full((12,), float(1 + i)) for i in range(2)]
    table.assign(keys, rows)
    table.assign_add(keys, rows)
    found = table.lookup({"gid": (False, Ragged.from_lists([[11], [12]]))}, 2)["vec"]
    assert found[:, 4].tolist() == [4.0, 2.0]
    with pytest.raises(ValueError, match="there are 2"):
        table.assign(keys[:1], rows[:1])


def table_keys(*ids: list[int]) -> Any:
    flat = torch.tensor([i for own in ids for i in own])
    return TableKeys(flat, tuple(range(len(ids) + 1)))


def test_half_precision_merges_native_tables_too() -> None:
    table = make(2, True, transfer_float16=True)
    assert table.is_merged
    found = train(table)
    for name, value in train(make(0, True)).items():
        torch.testing.assert_close(found[name], value, atol=2e-3, rtol=2e-3)
        assert not torch.equal(found[name], value)


def test_what_features_cannot_be() -> None:
    with pytest.raises(ValueError, match="add up to 3"):
        door.create_partitioned_hash_table(
            0,
            True,
            feature_name_to_config=FEATURES,
            feature_to_unmerged_slice_dims={"uid": [1, 2]},
        )

    class Other(ReduceSum):
        pass

    with pytest.raises(ValueError, match="combiner"):
        door.create_partitioned_hash_table(
            0, True, feature_name_to_config=FEATURES, feature_to_combiner={"uid": Other()}
        )
    with pytest.raises(KeyError, match="no such"):
        door.create_partitioned_hash_table(
            0, True, feature_name_to_config=FEATURES, feature_to_combiner={"no such": ReduceSum()}
        )


def shared_id(num_ps: int, unique: bool, parity: bool, **settings: Any) -> float:
    """Two features of one merged table share id 7: its row after one update, Adagrad of rate 1."""
    config = TableConfig("any", (Segment(1, Zeros(), Adagrad(lr=1.0)),))
    table = door.create_partitioned_hash_table(
        num_ps,
        False,
        feature_name_to_config={"a": config, "b": config},
        layout_configs={"out": OutConfig("CONCAT", (Slice("a", 0, 1), Slice("b", 0, 1)))},
        unique=unique,
        parity=parity,
        **settings,
    )
    batch = {
        "a": (False, Ragged.from_lists([[7], [7]])),
        "b": (False, Ragged.from_lists([[7], []])),
    }
    source = [Item(FeatureIds(batch, 2), step=0)]
    try:
        with table.queues as queues, queues.ahead(source) as ahead:
            for item in ahead:
                grads = {name: torch.ones_like(own) for name, own in item.value.layouts.items()}
                table.put_gradients(item.value, grads, step=0)
        return float(table.lookup(batch, 2)["out"][1, 0])
    finally:
        for shard in shards_of(table):
            getattr(shard, "close", lambda: None)()


@pytest.mark.parametrize("where", ["here", "shards", "servers", "ranks"])
@pytest.mark.parametrize(
    ("unique", "parity", "steps"),
    [
        (True, False, [3.0]),
        (False, False, [3.0]),
        (True, True, [2.0, 1.0]),
        (False, True, [1.0] * 3),
    ],
)
def test_an_id_that_two_features_share(
    unique: bool, parity: bool, steps: list[float], where: str
) -> None:
    row, total = 0.0, 0.0
    for grad in steps:
        total += grad * grad
        row -= grad / total**0.5
    if where == "servers":
        with server_addresses(2) as servers, door.cluster(servers):
            found = shared_id(2, unique, parity)
    elif where == "ranks":
        found = shared_id(1, unique, parity, enable_gpu_emb=True)
    else:
        found = shared_id(0 if where == "here" else 2, unique, parity)
    assert found == pytest.approx(row, rel=1e-6)
