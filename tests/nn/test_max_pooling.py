"""Max pooling: which of equal values learns, in every placement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.id_batch import Cut
from tests.dist.pool import Pool
from tests.dist.test_placements import on_servers, rows_on_servers

from . import max_pooling_work as work

pytestmark = pytest.mark.xdist_group("max_pooling")


def _rows(bags: hr.EmbeddingBags, ids: list[int]) -> list[list[float]]:
    return bags.table("t").entries(torch.tensor(ids)).rows.tolist()


@pytest.mark.parametrize("upstream", [-3.0, 3.0])
def test_an_id_three_times_in_a_bag_gets_the_gradient_once(upstream: float) -> None:
    bags = work.made()
    (bags(hr.IdBatch.from_lists({"t": [[7, 7, 7]]}))["t"] * upstream).sum().backward()
    assert _rows(bags, [7]) == [[-upstream]]


@pytest.mark.parametrize("upstream", [-1.0, 1.0])
def test_of_equal_rows_the_first_of_the_bag_learns(upstream: float) -> None:
    bags = work.made()
    batch = hr.IdBatch.from_lists({"t": [[5, 6], [6, 5], [], [5, 8]]})
    bags.table("t").assign(torch.tensor([8]), torch.tensor([[1.0]]))
    (bags(batch)["t"] * upstream).sum().backward()
    assert _rows(bags, [5, 6, 8]) == [[-upstream], [-upstream], [1 - upstream]]


def test_a_weight_gets_the_gradient_of_the_product_that_won() -> None:
    bags = work.made()
    bags.table("t").assign(torch.tensor([1, 2]), torch.tensor([[2.0], [3.0]]))
    weights = torch.tensor([2.0, 1.0, -1.0], requires_grad=True)
    batch = hr.IdBatch(("t",), torch.tensor([1, 2, 2]), torch.tensor([0, 2, 3]), weights)
    found = bags(batch)["t"]
    assert found.tolist() == [[4.0], [-3.0]]
    found.sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [2.0, 0.0, 3.0]
    assert _rows(bags, [1, 2]) == [[0.0], [4.0]]


def test_no_bags_and_no_ids_pool_to_nothing() -> None:
    bags = work.made()
    nothing = torch.empty(0, dtype=torch.int64)
    for samples in (0, 3):
        batch = hr.IdBatch(("t",), nothing, torch.zeros(samples + 1, dtype=torch.int64))
        found = bags(batch)["t"]
        assert found.tolist() == [[0.0]] * samples
        found.sum().backward()
    assert bags.store.size() == 0


def _there(batch: hr.IdBatch, device: torch.device) -> hr.IdBatch:
    if device.type == "cuda":
        return batch.to(device)
    cut = Cut(tuple(batch.borders()), batch.has_one_id_each())
    return hr.IdBatch(batch.names, batch.values, batch.offsets, None, cut)


def test_tables_on_a_device_learn_as_tables_in_host_memory(device: torch.device) -> None:
    here, there = work.model(), work.model()
    there.place(device, capacity_rows={"a": 64, "b": 64, "c": 64})
    for step in range(3):
        batch = work.batch(step)
        for bags, given in ((here, batch), (there, _there(batch, device))):
            work.loss(bags(given), step).backward()
    for name in ("a", "b", "c"):
        for part in here.table(name).scan():
            rows = there.table(name).lookup(part.ids.to(device)).rows_of()
            torch.testing.assert_close(rows.cpu(), part.rows, rtol=1e-6, atol=1e-6)


def test_an_id_three_times_on_a_device_gets_the_gradient_once(device: torch.device) -> None:
    bags = work.made()
    bags.place(device, capacity_rows={"t": 64})
    batch = _there(hr.IdBatch.from_lists({"t": [[7, 7, 7]]}), device)
    (bags(batch)["t"] * -3.0).sum().backward()
    assert bags.eval()(batch)["t"].tolist() == [[3.0]]


def test_an_id_three_times_on_servers_gets_the_gradient_once() -> None:
    batch = hr.IdBatch.from_lists({"t": [[7, 7, 7]]})
    with on_servers(nn.ModuleList([work.made()]), 2) as spread:
        bags: Any = spread
        (bags[0](batch)["t"] * -3.0).sum().backward()
        assert bags.eval()[0](batch)["t"].tolist() == [[3.0]]


def test_servers_learn_as_one_process() -> None:
    alone, model = work.model(), nn.ModuleList([work.model()])
    for step in range(3):
        work.loss(alone(work.batch(step)), step).backward()
    with on_servers(model, 2) as spread:
        bags: Any = spread
        for step in range(3):
            work.loss(bags[0](work.batch(step)), step).backward()
        found = rows_on_servers(spread)
    for name, rows in found.items():
        assert set(rows) == set(work.rows_of(alone, name))
        for key, row in rows.items():
            wanted = work.rows_of(alone, name)[key]
            assert row[0] == wanted


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(3, tmp_path_factory.mktemp("max_pooling"))
    yield made
    made.close()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_learn_as_one_process(pool: Pool, ranks: int) -> None:
    pool.run(ranks, work.as_on_one_process)


def test_a_frozen_model_and_its_program_pool_alike() -> None:
    model, batch = work.model(), work.batch(0)
    work.loss(model(batch), 0).backward()
    frozen = hr.freeze(model)
    program = torch.export.export(frozen, (batch,), dynamic_shapes=hr.dynamic_shapes(batch))
    wanted: dict[str, Tensor] = model.eval()(work.batch(1))
    for run in (frozen, program.module()):
        for name, vectors in run(work.batch(1)).items():
            assert torch.equal(vectors, wanted[name])
