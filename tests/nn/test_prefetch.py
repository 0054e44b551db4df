"""Batches whose rows are looked up ahead: the same model, and nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import HedgerowError, InputError, StateError
from hedgerow.nn.embedding_modules import collections_of
from hedgerow.nn.prefetch import id_batches
from tests.support import everything


def bags(**settings: object) -> hr.EmbeddingBags:
    tables = [hr.Table("user", 2), hr.Table("item", 3, features=["item", "seen"])]
    return hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=0.5), clock=ManualClock(10**6), **settings)


def batch(step: int) -> hr.IdBatch:
    """Ids that no other batch has."""
    ids = [[100 * step + i] for i in range(4)]
    seen = [[i[0], i[0] + 50] for i in ids]
    return hr.IdBatch.from_lists({"user": ids, "item": ids, "seen": seen})


def train(model: hr.EmbeddingBags, batches: Iterable[hr.IdBatch]) -> list[float]:
    losses = []
    for one in batches:
        loss = torch.stack([vector.square().sum() for vector in model(one).values()]).sum()
        loss.backward()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_batches_without_common_ids_train_as_without_prefetch(depth: int) -> None:
    plain, ahead = bags(), bags()
    wanted = train(plain, [batch(step) for step in range(8)])
    reader = hr.prefetch(ahead, (batch(step) for step in range(8)), depth=depth)
    assert train(ahead, reader) == wanted
    for name in ("user", "item"):
        assert everything(ahead.table(name)) == everything(plain.table(name))
    read_ahead = 0 if depth == 0 else 8 - (depth + 1)
    assert reader.counters.read("read_ahead") == read_ahead
    assert reader.counters.read("read_now") == 8 - read_ahead
    assert reader.counters.read("taken") == 8


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_rows_lack_at_most_the_updates_of_depth_steps(depth: int) -> None:
    """One id whose row counts the updates so far."""
    model = hr.EmbeddingBags([hr.Table("user", 1)], optimizer=hr.Sgd(lr=1.0), init=hr.Zeros())
    one = hr.IdBatch.from_lists({"user": [[7]]})
    reader = hr.prefetch(
        model, (hr.IdBatch(one.names, one.values, one.offsets) for _ in range(9)), depth=depth
    )
    lacking = []
    for step, now in enumerate(reader):
        vector = model(now)["user"]
        lacking.append(step + int(vector.item()))
        vector.sum().backward()
    assert all(0 <= steps <= depth for steps in lacking), lacking
    assert model.table("user").lookup(torch.tensor([7])).rows.item() == -9
    assert 0 <= reader.counters.read("stale_steps") <= depth * 9


def test_calls_of_some_features_and_of_eval_read_what_they_ask_for() -> None:
    plain, ahead = bags(), bags()
    for model, batches in (
        (plain, [batch(step) for step in range(6)]),
        (ahead, hr.prefetch(ahead, [batch(step) for step in range(6)])),
    ):
        for step, one in enumerate(batches):
            users = model(one, ["user"])["user"]
            seen = model(one, ["seen"] if step < 4 else ["item"])
            (users.sum() + sum(v.sum() for v in seen.values())).backward()
            model.eval()
            assert model(batch(99))["user"].abs().sum() == 0  # absent, zeros in eval
            model.train()
    for name in ("user", "item"):
        assert everything(ahead.table(name)) == everything(plain.table(name))


def test_an_error_of_the_source_comes_where_its_batch_would_have() -> None:
    def source() -> Iterator[hr.IdBatch]:
        yield batch(0)
        yield batch(1)
        raise OSError("the disk is gone")

    model = bags()
    with pytest.raises(OSError, match="the disk is gone"):
        train(model, hr.prefetch(model, source(), depth=2))
    assert model.table("user").size() == 8
    assert model.ahead is None


def test_an_error_of_a_lookup_is_raised_in_the_training_thread() -> None:
    model = bags()
    odd = hr.IdBatch.from_lists({"user": [[1]]})  # without the features of the table of items
    with pytest.raises(HedgerowError, match="item"):
        train(model, hr.prefetch(model, [batch(0), batch(1), batch(2), odd, batch(3)]))
    assert model.table("user").size() == 12
    assert train(model, [batch(4)])
    assert model.ahead is None


def test_leaving_early_ends_the_thread_and_the_model_reads_by_itself() -> None:
    model, before = bags(), threading.active_count()
    for one in hr.prefetch(model, (batch(step) for step in range(100)), depth=3):
        train(model, [one])
        break
    assert model.ahead is None
    assert threading.active_count() == before
    with hr.prefetch(model, [batch(1)]) as reader:
        assert model.ahead is reader
    assert model.ahead is None
    with pytest.raises(StateError, match="closed"):
        next(iter(reader))


def test_bad_use_is_refused() -> None:
    model = bags()
    with pytest.raises(InputError, match="pass an nn"):
        hr.prefetch([batch(0)], [batch(0)])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="depth is -1"):
        hr.prefetch(model, [], depth=-1)
    with hr.prefetch(model, []), pytest.raises(StateError, match="prefetches other batches"):
        hr.prefetch(model, [])
    assert [one.ahead for one in collections_of(model)] == [None]


def test_ids_are_found_in_what_loaders_yield() -> None:
    one, two = batch(0), batch(1)
    whole = hr.data.Batch(torch.zeros(4, 0), one, torch.zeros(4))
    assert id_batches(whole) == [one]
    assert id_batches({"a": [one, 3], "b": (two, "x")}) == [one, two]
    assert id_batches(torch.zeros(2)) == []
