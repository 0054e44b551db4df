"""A frozen model: read-only, exportable, with the same predictions."""

from __future__ import annotations

import copy
import gc
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.errors import (
    DtypeError,
    InputError,
    NameTakenError,
    NotSupportedError,
    StateError,
    UnknownNameError,
)


@pytest.fixture(autouse=True)
def _nobody_else() -> None:
    """Models of other tests are gone: they have names."""
    gc.collect()


class Model(nn.Module):
    """Bags of three features over two tables, one shared; the last by its first two ids."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.sparse = hr.EmbeddingBags(
            [
                hr.Table("user", dim, pooling="mean"),
                hr.Table("item", dim, features=["item", "history"]),
                hr.Table("query", dim, pooling=("first", 2)),
            ],
            init=hr.Uniform(0.5),
            optimizer=hr.Adagrad(lr=0.1),
        )
        self.bottom = nn.Sequential(nn.Linear(3, dim), nn.ReLU(), nn.Dropout(0.5))
        self.top = nn.Linear(6 * dim, 1)

    def forward(self, dense: Tensor, ids: hr.IdBatch) -> Tensor:
        found = self.sparse(ids)
        query = found.pop("query").flatten(1)
        return self.top(torch.cat([self.bottom(dense), *found.values(), query], dim=1)).squeeze(1)


class Sequences(nn.Module):
    """Unpooled rows, weighed by a layer and summed over all."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = hr.Embeddings([hr.Table("item", 3, features=["history", "liked"])])
        self.weigh = nn.Linear(3, 1)

    def forward(self, ids: hr.IdBatch) -> tuple[Tensor, dict[str, hr.Ragged]]:
        found = self.rows(ids)
        return self.weigh(found["history"].values).sum() + found["liked"].values.sum(), found


def _batch(samples: int, seed: int = 0, weights: bool = False) -> tuple[Tensor, hr.IdBatch]:
    """Bags of 0 to 3 ids, of which a model that saw 64 samples does not know all."""
    draw = torch.Generator().manual_seed(seed)
    columns: dict[str, Any] = {}
    for name in ("history", "query", "user", "item"):  # not the order of the tables
        lengths = torch.randint(0, 4, (samples,), generator=draw)
        splits = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        columns[name] = hr.Ragged(
            torch.randint(-90, 90, (int(splits[-1]),), generator=draw), splits
        )
    own = {n: torch.rand(len(c.values), generator=draw) for n, c in columns.items()}
    ids = hr.IdBatch.from_dict(columns, own if weights else None)
    return torch.rand(samples, 3, generator=draw), ids


def _trained(model: nn.Module, steps: int = 2) -> Any:
    for step in range(steps):
        dense, ids = _batch(64, seed=step)
        model(dense, ids).square().sum().backward()
    return model


def _exported(model: nn.Module, *inputs: Any) -> torch.export.ExportedProgram:
    return torch.export.export(hr.freeze(model), inputs, dynamic_shapes=hr.dynamic_shapes(*inputs))


def _reads(program: torch.export.ExportedProgram) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if "hedgerow" in str(n.target)]


@pytest.mark.parametrize("weights", [False, True])
def test_an_exported_model_predicts_the_same_bits_at_any_batch_size(weights: bool) -> None:
    model = _trained(Model())
    program = _exported(model, *_batch(5, weights=weights))
    assert _reads(program) == ["hedgerow.read_rows.default"]
    model.eval()
    run = program.module()
    for samples in (1, 2, 7, 4096):
        dense, ids = _batch(samples, seed=samples, weights=weights)
        with torch.no_grad():
            assert torch.equal(run(dense, ids), model(dense, ids))


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # torch's own, in run_decompositions
def test_the_same_inputs_are_exported_again_strictly_and_taken_apart_further() -> None:
    model = _trained(Model())
    inputs = _batch(5)
    frozen, shapes = hr.freeze(model), hr.dynamic_shapes(*inputs)
    first = torch.export.export(frozen, inputs, dynamic_shapes=shapes)
    strict = torch.export.export(frozen, inputs, dynamic_shapes=shapes, strict=True)
    model.eval()
    for samples in (1, 7):
        dense, ids = _batch(samples, seed=samples)
        wanted = model(dense, ids)
        assert torch.equal(first.module()(dense, ids), wanted)
        assert torch.equal(strict.module()(dense, ids), wanted)
        torch.testing.assert_close(first.run_decompositions().module()(dense, ids), wanted)


def test_offsets_that_are_written_to_are_read_anew() -> None:
    bags = hr.EmbeddingBags([hr.Table("user", 1)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    ids = hr.IdBatch.from_lists({"user": [[1, 2], [3]]})
    bags(ids)["user"].sum().backward()
    run = _exported(bags, ids).module()
    assert run(ids)["user"].tolist() == [[-2], [-1]]
    ids.offsets.copy_(torch.tensor([0, 0, 3]))
    assert run(ids)["user"].tolist() == [[0], [-3]]
    with torch.inference_mode():
        ids = hr.IdBatch.from_lists({"user": [[1, 2], [3]]})
        assert run(ids)["user"].tolist() == [[-2], [-1]]
        ids.offsets.copy_(torch.tensor([0, 0, 3]))
        assert run(ids)["user"].tolist() == [[0], [-3]]


def test_unknown_ids_and_empty_bags_give_zeros_and_no_row_is_born() -> None:
    model = _trained(Model())
    rows = model.sparse.store.size()
    frozen = hr.freeze(model)
    ids = hr.IdBatch.from_lists({"history": [[], [999]], "query": [[], [998]], "user": [[997], []],
                                 "item": [[996], [995]]})  # fmt: skip
    assert all(not vectors.any() for vectors in frozen.sparse(ids).values())
    program = _exported(model, torch.ones(2, 3), ids)
    nothing = hr.IdBatch(ids.names, ids.values[:0], torch.zeros(5).long())
    dense = torch.zeros(1, 3)
    assert torch.equal(program.module()(dense, nothing), model.eval()(dense, nothing))
    assert model.sparse.store.size() == rows


def test_one_op_for_every_module_with_tables() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = hr.EmbeddingBags([hr.Table("user", 2)])
            self.second = hr.EmbeddingBags([hr.Table("item", 2)])
            self.again = self.first

        def forward(self, ids: hr.IdBatch) -> Tensor:
            return self.first(ids)["user"] + self.second(ids)["item"]

    two = Two()
    frozen = hr.freeze(two)
    assert frozen.again is frozen.first
    ids = _batch(3)[1]
    program = _exported(two, ids)
    assert _reads(program) == ["hedgerow.read_rows.default"] * 2
    assert {frozen.first.name, frozen.second.name} == {"Two.first", "Two.second"}


def test_unpooled_rows_are_exported_with_their_borders() -> None:
    model = Sequences()
    columns = {"history": [[1, 2], [3], []], "liked": [[2], [], [4, 4]]}
    model(hr.IdBatch.from_lists(columns))[0].backward()
    program = _exported(model, hr.IdBatch.from_lists(columns))
    assert _reads(program) == ["hedgerow.read_rows.default"]
    model.eval()
    for rows in (columns, {"history": [[1]], "liked": [[4, 9, 2]]}):
        ids = hr.IdBatch.from_lists(rows)
        total, found = program.module()(ids)
        wanted, expected = model(ids)
        assert torch.equal(total, wanted)
        for name, ragged in expected.items():
            assert torch.equal(found[name].values, ragged.values)
            assert found[name].row_splits.tolist() == ragged.row_splits.tolist()


def test_one_feature_of_unpooled_rows_keeps_the_length_of_the_batch() -> None:
    rows = hr.Embeddings([hr.Table("item", 3)])
    ids = hr.IdBatch.from_lists({"item": [[1, 2], [3]]})
    program = _exported(rows, ids)
    found = program.module()(hr.IdBatch.from_lists({"item": [[1], [], [5, 6, 7]]}))["item"]
    assert tuple(found.values.shape) == (4, 3)


def test_a_saved_program_is_loaded_and_runs_and_a_model_built_anew_gives_it_rows(
    tmp_path: Path,
) -> None:
    model = _trained(Model())
    dense, ids = _batch(6)
    file = io.BytesIO()
    torch.export.save(_exported(model, dense, ids), file)
    file.seek(0)
    run = torch.export.load(file).module()
    dense, ids = _batch(9, seed=5)
    wanted = model.eval()(dense, ids)
    assert torch.equal(run(dense, ids), wanted)
    hr.save(model, tmp_path / "kept")
    del model
    gc.collect()
    with pytest.raises(StateError, match=r"'Model\.sparse', which is not in this process.*freeze"):
        run(dense, ids)
    again = Model()
    hr.load(again, tmp_path / "kept")
    frozen = hr.freeze(again)
    assert frozen.sparse.name == "Model.sparse"
    assert torch.equal(run(dense, ids), wanted)
    del again
    gc.collect()
    assert torch.equal(run(dense, ids), wanted)  # the frozen form alone keeps the rows
    del frozen
    gc.collect()
    narrow = hr.freeze(Model(2))
    with pytest.raises(InputError, match="has dim 2; the exported program was made for dim 4"):
        run(dense, ids)
    del narrow


def test_training_what_is_frozen_is_refused_and_the_model_trains_on() -> None:
    model = _trained(Model())
    model.train()
    frozen: Any = hr.freeze(model)
    dense, ids = _batch(8)
    assert model.training
    assert not any(module.training for module in frozen.modules())
    assert frozen.top.weight is model.top.weight
    for refused in (frozen.train, frozen.top.train, frozen.sparse.train):
        with pytest.raises(StateError, match=r"train\(\) of a frozen model"):
            refused()
    assert not any(module.training for module in frozen.modules())
    assert frozen.eval() is frozen
    with pytest.raises(StateError, match="backward of a frozen model"):
        frozen(dense, ids).sum().backward()
    for use in (hr.summary, hr.stats, hr.freeze, lambda m: hr.save(m, "nowhere")):
        with pytest.raises(StateError, match="frozen model, which is read-only"):
            use(frozen)
    with pytest.raises(StateError, match="frozen model"), hr.hold_updates(frozen):
        pass
    before = frozen(dense, ids).detach()
    _trained(model, steps=1)
    after = frozen(dense, ids).detach()
    assert not torch.equal(before, after)
    assert torch.equal(after, model.eval()(dense, ids))
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        copy.deepcopy(frozen)


def test_names_are_those_of_the_model_and_two_models_get_two() -> None:
    first, second = Model(), Model()
    assert hr.freeze(first).sparse.name == hr.freeze(first).sparse.name == "Model.sparse"
    assert hr.freeze(second).sparse.name == "Model.sparse#2"
    assert hr.freeze(second, name="ctr").sparse.name == "ctr.sparse"
    with pytest.raises(NameTakenError, match=r"'ctr\.sparse' is taken"):
        hr.freeze(first, name="ctr")
    assert "'Model.sparse': rows of item, query, user" in repr(hr.freeze(first))


def test_a_batch_that_does_not_fit_is_refused_by_name() -> None:
    model = Model()
    dense, ids = _batch(4)
    run = _exported(model, dense, ids).module()
    with pytest.raises(UnknownNameError, match="unknown feature 'query'"):
        hr.freeze(model)(dense, ids.select(["history", "user", "item"]))
    with pytest.raises(ValueError, match="exported input tree spec"):
        run(dense, ids.select(["user", "item", "history", "query"]))  # another order of features


def test_what_cannot_be_frozen_is_refused() -> None:
    class Own(hr.EmbeddingBags):
        pass

    with pytest.raises(NotSupportedError, match="freeze of a Own, a subclass"):
        hr.freeze(Own([hr.Table("user", 2)]))
    with pytest.raises(DtypeError, match=r"freeze of a dict; pass an nn\.Module"):
        hr.freeze({})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="IdBatch without features"):
        hr.dynamic_shapes(hr.IdBatch.from_lists({}))


def test_the_export_of_a_model_that_is_not_frozen_says_what_to_do() -> None:
    inputs = _batch(4)
    shapes = hr.dynamic_shapes(*inputs)
    with pytest.raises(StateError, match=r"export hr\.freeze\(model\)"):
        torch.export.export(Model(), inputs, dynamic_shapes=shapes)


def test_shapes_of_inputs_that_are_no_batches_are_left_to_torch() -> None:
    assert hr.dynamic_shapes(3.5, None, torch.tensor(1.0)) == (None, None, None)


class Adapter(nn.Module):
    """Takes the tensors of another library and makes its batch of ids inside `forward`."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        tables = [hr.Table("user", 3), hr.Table("item", 3, pooling="mean")]
        self.bags = hr.EmbeddingBags(tables, init=hr.Uniform(0.5))
        self.rows = hr.Embeddings([hr.Table("word", 3, features=["item"])], init=hr.Uniform(0.5))
        self.top = nn.Linear(9, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        ids = self._ids(users, items)
        words = self.rows(ids)["item"].to_padded(length=3).sum(1)
        return self.top(torch.cat([*self.bags(ids).values(), words], dim=1)).squeeze(1)

    def _ids(self, users: Tensor, items: Tensor) -> hr.IdBatch:
        samples, length = items.shape
        if self.how == "padded":
            return hr.IdBatch.from_padded({"user": users.unsqueeze(1), "item": items}, padding=0)
        if self.how == "selected":
            other = {"user": users.unsqueeze(1), "unused": items + 1, "item": items}
            return hr.IdBatch.from_padded(other, padding=0).select(["item", "user"])
        borders = torch.arange(samples + 1) * length
        if self.how == "dict":
            columns = {"user": users, "item": hr.Ragged(items.flatten(), borders)}
            return hr.IdBatch.from_dict(columns, {"item": items.flatten() * 0.25})
        values = torch.cat([users, items.flatten()])
        offsets = torch.cat([torch.arange(samples), borders + samples])
        if self.how == "jagged":
            return hr.IdBatch.from_kjt(Jagged(values, offsets, samples))
        return hr.IdBatch(("user", "item"), values, offsets)


class Jagged:
    """What a KeyedJaggedTensor of users and items says of itself."""

    def __init__(self, values: Tensor, offsets: Tensor, samples: int) -> None:
        self._values, self._offsets, self._samples = values, offsets, samples

    def keys(self) -> list[str]:
        return ["user", "item"]

    def values(self) -> Tensor:
        return self._values

    def offsets(self) -> Tensor:
        return self._offsets

    def weights_or_none(self) -> None:
        return None

    def stride_per_key(self) -> list[int]:
        return [self._samples] * 2


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("how", ["padded", "selected", "dict", "offsets", "jagged"])
def test_a_batch_of_ids_is_made_inside_an_exported_forward(how: str, strict: bool) -> None:
    def inputs(samples: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(samples)
        items = torch.randint(0, 6, (samples, 3), generator=draw)
        return torch.randint(0, 6, (samples,), generator=draw), items

    model = Adapter(how)
    model(*inputs(32)).sum().backward()
    samples = torch.export.Dim("samples")
    program = torch.export.export(
        hr.freeze(model), inputs(5), dynamic_shapes=({0: samples}, {0: samples}), strict=strict
    )
    assert _reads(program) == ["hedgerow.read_rows.default"] * 2
    model.eval()
    for many in (1, 2, 5, 300):
        assert torch.equal(program.module()(*inputs(many)), model(*inputs(many)))
    nobody = torch.zeros(4, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    assert torch.equal(program.module()(*nobody), model(*nobody))


def test_features_that_an_exported_forward_selects_are_read_from_the_whole_batch() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse = hr.EmbeddingBags([hr.Table("user", 2), hr.Table("item", 2)])

        def forward(self, ids: hr.IdBatch) -> Tensor:
            found = self.sparse(ids.select(["item", "user"]))
            return found["user"] - found["item"]

    model = Chooses()
    model(_batch(30)[1]).sum().backward()
    program = _exported(model, _batch(5)[1])
    model.eval()
    for samples in (1, 9):
        ids = _batch(samples, seed=samples)[1]
        assert torch.equal(program.module()(ids), model(ids))
