"""torch.compile: of the dense part, of a whole model, of a frozen one; few graphs, same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

import hedgerow as hr
from hedgerow.core.errors import StateError

# torch hides this word of its own compiler from users, though not from a filter that makes errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

SIZES = (6, 3, 17, 2, 40)


@pytest.fixture(autouse=True)
def _own_cache() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Dense(nn.Module):
    """A bottom over numbers, products of all pairs of vectors, a top over both."""

    def __init__(self, vectors: int = 3, dim: int = 4) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(3, dim), nn.ReLU())
        self.register_buffer("pairs", torch.triu_indices(vectors + 1, vectors + 1, offset=1))
        self.top = nn.Linear(dim + self.pairs.shape[1], 1)

    def forward(self, numbers: Tensor, *vectors: Tensor) -> Tensor:
        low = self.bottom(numbers)
        every = torch.stack([low, *vectors], dim=1)
        products = (every @ every.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([low, products], dim=1)).squeeze(1)


class Whole(nn.Module):
    """Tables and the dense part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        tables = [hr.Table("user", 4), hr.Table("item", 4, features=["item", "history"])]
        self.sparse = hr.EmbeddingBags(tables, init=hr.Uniform(0.5), optimizer=hr.Adagrad(lr=0.1))
        self.dense = Dense()

    def forward(self, numbers: Tensor, ids: hr.IdBatch) -> Tensor:
        return self.dense(numbers, *self.sparse(ids).values())


def _batch(samples: int) -> tuple[Tensor, hr.IdBatch]:
    draw = torch.Generator().manual_seed(samples)
    ids = torch.randint(0, 30, (3, samples, 2), generator=draw)
    columns = dict(zip(("user", "item", "history"), ids, strict=True))
    return torch.rand(samples, 3, generator=draw), hr.IdBatch.from_padded(columns, padding=0)


def _train(model: Whole, run: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for samples in SIZES * 2:
        loss = run(*_batch(samples)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _same(left: Whole, right: Whole) -> None:
    for a, b in zip(left.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    ids = torch.arange(30)
    for name in ("user", "item"):
        one, other = (m.sparse.table(name).entries(ids) for m in (left, right))
        assert one.found.tolist() == other.found.tolist()
        assert one.found.sum() > 20
        torch.testing.assert_close(one.rows, other.rows)


def test_the_dense_part_is_one_graph_for_all_batch_sizes() -> None:
    plain, compiled = Whole(), Whole()
    counter = CompileCounterWithBackend("aot_eager")
    compiled.dense = torch.compile(compiled.dense, backend=counter, dynamic=True, fullgraph=True)  # pyright: ignore[reportAttributeAccessIssue]
    wanted = _train(plain, plain)
    torch.testing.assert_close(_train(compiled, compiled), wanted)
    assert counter.frame_count == 1
    _same(compiled, plain)


def test_a_whole_model_trains_compiled_with_the_tables_between_its_graphs() -> None:
    plain, compiled = Whole(), Whole()
    counter = CompileCounterWithBackend("aot_eager")
    wanted = _train(plain, plain)
    found = _train(compiled, torch.compile(compiled, backend=counter, dynamic=True))
    torch.testing.assert_close(found, wanted)
    assert counter.frame_count == 1  # what stands before the tables computes nothing
    assert compiled.sparse.updates.step == 2 * len(SIZES)
    _same(compiled, plain)


def test_a_compiled_model_that_finds_sizes_out_itself_stops_compiling() -> None:
    model = Whole()
    counter = CompileCounter()
    run = torch.compile(model, backend=counter)
    for samples in SIZES[:2]:
        run(*_batch(samples)).sum().backward()
    after_two = counter.frame_count
    for samples in SIZES[2:]:
        run(*_batch(samples)).sum().backward()
    assert counter.frame_count == after_two
    run = torch.compile(model.eval(), backend=counter)
    numbers, ids = _batch(5)
    assert torch.equal(run(numbers, ids), model(numbers, ids))


def test_a_frozen_model_is_one_graph_with_one_read() -> None:
    model = Whole()
    _train(model, model)
    frozen = hr.freeze(model)
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(frozen, backend=counter, dynamic=True, fullgraph=True)
    for samples in SIZES:
        with torch.no_grad():
            numbers, ids = _batch(samples)
            assert torch.equal(run(numbers, ids), model.eval()(numbers, ids))
    assert counter.frame_count == 1
    (graph,) = counter.graphs
    assert sum("read_rows" in str(node.target) for node in graph.graph.nodes) == 1


def test_a_model_that_was_compiled_can_be_frozen() -> None:
    model = Whole()
    run: Any = torch.compile(model, backend="eager")
    _train(model, run)
    inputs = _batch(4)
    wanted = model.eval()(*inputs)
    assert torch.equal(hr.freeze(run)(*inputs), wanted)
    model.compile(backend="eager")
    assert torch.equal(hr.freeze(model)(*inputs), wanted)


def test_parts_that_are_compiled_freeze_as_the_rest() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Uniform(1.0), seed=0)
            self.drop = nn.Dropout(0.5)

        def forward(self, ids: hr.IdBatch) -> Tensor:
            return self.drop(self.bags(ids)["user"])

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.compile(Inner(), backend="eager")

        def forward(self, ids: hr.IdBatch) -> Tensor:
            return self.inner(ids)

    model, ids = Outer(), hr.IdBatch.from_lists({"user": [[1], [2, 3]]})
    model(ids).sum().backward()
    frozen = hr.freeze(model)
    assert frozen.inner.bags.name == "Outer.inner.bags"
    with pytest.raises(StateError, match="backward of a frozen model"):
        frozen(ids).sum().backward()
    assert model.training
    found = frozen(ids).detach()
    assert torch.equal(found, model.eval()(ids))


class Chooses(Whole):
    """Selects the features of its tables from batches that have more."""

    def forward(self, numbers: Tensor, ids: hr.IdBatch) -> Tensor:
        few = ids.select(["history", "user", "item"])
        return self.dense(numbers, *self.sparse(few).values())


def _wider(samples: int) -> tuple[Tensor, hr.IdBatch]:
    numbers, ids = _batch(samples)
    columns: dict[str, Any] = {"unused": torch.arange(samples)}
    return numbers, hr.IdBatch.from_dict(columns | {n: ids.feature(n) for n in ids.names})


def test_features_that_are_selected_in_forward_compile_nothing_of_their_own() -> None:
    plain, compiled = Chooses(), Chooses()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(compiled, backend=counter, dynamic=True)
    for samples in (6, 3, 17, 2, 40, 5, 8, 33, 12, 21, 9):  # more than torch compiles anew
        wanted, found = plain(*_wider(samples)), run(*_wider(samples))
        torch.testing.assert_close(found, wanted)
        wanted.sum().backward()
        found.sum().backward()
    assert counter.frame_count == 1
    _same(compiled, plain)
    with torch.no_grad():
        torch._dynamo.reset()
        assert torch._dynamo.explain(Chooses())(*_wider(4)).graph_count == 1


def test_a_frozen_model_that_selects_is_one_graph() -> None:
    model = Chooses()
    model(*_wider(40)).sum().backward()
    run = torch.compile(hr.freeze(model), backend="eager", dynamic=True, fullgraph=True)
    for samples in SIZES:
        with torch.no_grad():
            assert torch.equal(run(*_wider(samples)), model.eval()(*_wider(samples)))


def test_a_selection_has_its_own_ids_where_a_compiled_forward_looks_at_them() -> None:
    def looked_at(ids: hr.IdBatch) -> tuple[Tensor, Tensor, list[str], int, int]:
        few = ids.select(["item", "user"])
        again = few.select(["user"])
        total = few.values.sum() + again.feature("user").values.sum()
        return total, few.offsets + 0, list(again.names), few.samples, few.values.shape[0]

    run = torch.compile(looked_at, backend="eager", dynamic=True)
    for samples in SIZES:
        found, wanted = run(_wider(samples)[1]), looked_at(_wider(samples)[1])
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
        assert found[2:] == wanted[2:]


def test_a_selection_in_a_graph_has_each_feature_once() -> None:
    def names(ids: hr.IdBatch) -> list[str]:
        return list(ids.select(["item", "user", "item"]).names)

    ids = _wider(2)[1]
    assert torch.compile(names, backend="eager")(ids) == names(ids) == ["item", "user"]


class Padded(Whole):
    """Makes its batch of ids of matrices inside `forward`, as adapters do."""

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        names = ("user", "item", "history")
        batch = hr.IdBatch.from_padded(dict(zip(names, ids, strict=True)), padding=0)
        return self.dense(numbers, *self.sparse(batch).values())


def test_a_batch_that_is_made_in_forward_is_made_between_two_graphs() -> None:
    plain, compiled = Padded(), Padded()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(compiled, backend=counter, dynamic=True)
    for samples in SIZES:
        draw = torch.Generator().manual_seed(samples)
        given = torch.rand(samples, 3), torch.randint(0, 30, (3, samples, 2), generator=draw)
        wanted, found = plain(*given), run(*given)
        torch.testing.assert_close(found, wanted)
        wanted.sum().backward()
        found.sum().backward()
    assert counter.frame_count == 2  # the matrices are taken apart before
