"""Exported and loaded: the predictions of the model in eval, from rows that nobody inserts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import (
    ConfigError,
    DtypeError,
    FileMissingError,
    InputError,
    NotSupportedError,
    StateError,
)
from hedgerow.serving.bundle import load_bundle
from hedgerow.serving.export import export, versions_in
from hedgerow.serving.model import Model, ServingError
from hedgerow.serving.rows import write_rows

from .trained import batch, request, tables, trained

pytestmark = pytest.mark.xdist_group("export")  # one worker trains and exports for all

MAKE: dict[str, Callable[[], nn.Module]] = {
    "dlrm": lambda: hr.models.DLRM(tables(), dense=4, init=hr.Uniform(0.3)),
    "deepfm": lambda: hr.models.DeepFM(tables(), dense=4, init=hr.Uniform(0.3)),
    "two_tower": lambda: hr.models.TwoTower(tables(), items=["item"], dense=4),
}


@pytest.fixture(scope="module")
def dlrm() -> nn.Module:
    """A trained DLRM, which no test changes."""
    torch.manual_seed(0)
    return trained(MAKE["dlrm"]())


@pytest.fixture(scope="module")
def folder(dlrm: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle."""
    return export(dlrm, tmp_path_factory.mktemp("base"), example=batch(2), version=7)


@pytest.fixture
def served(folder: Path) -> Model:
    """Its bundle, loaded."""
    return load_bundle(folder, "ctr")


def predict(model: Model, dense: Tensor | None, ids: hr.IdBatch) -> Tensor:
    return model.signatures["serving_default"].run(request(dense, ids))["output"]


def rows_of(model: nn.Module) -> int:
    return sum(table["rows"] for table in hr.stats(model).values())  # pyright: ignore


@pytest.mark.parametrize("kind", MAKE)
def test_predictions_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = trained(MAKE[kind]())
    before = rows_of(model)
    loaded = load_bundle(export(model, tmp_path, example=batch(2), version=1), kind)
    for samples in (0, 1, 2, 33):  # the ids of a batch: known, unknown, and none at all
        dense, ids = batch(samples, seed=samples)
        torch.testing.assert_close(
            predict(loaded, dense, ids), model(dense, ids).detach(), rtol=0, atol=1e-6
        )
    assert rows_of(model) == before


def test_signatures_say_types_and_shapes(served: Model) -> None:
    default = served.signatures["serving_default"]
    assert (served.name, served.version) == ("ctr", 7)
    assert default.inputs["dense"].shape == (None, 4)
    assert [*default.inputs][1:3] == ["user", "user_lengths"]
    assert default.outputs["output"].dtype == torch.float32
    assert default.outputs["output"].shape == (None,)
    assert {s.method for s in served.signatures.values()} == {"tensorflow/serving/predict"}


def test_training_on_does_not_change_the_bundle(tmp_path: Path) -> None:
    model = trained(MAKE["dlrm"]())
    loaded = load_bundle(export(model, tmp_path, example=batch(2), version=1), "ctr")
    dense, ids = batch(9)
    expected = model(dense, ids).detach()
    trained(model.train(), steps=2)
    assert not torch.equal(model(dense, ids), expected)
    torch.testing.assert_close(predict(loaded, dense, ids), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["fp16", "int8"])
def test_rows_of_fewer_bits_stay_within_their_bounds(
    form: str, dlrm: nn.Module, tmp_path: Path
) -> None:
    loaded = load_bundle(export(dlrm, tmp_path, example=batch(2), version=1, rows=form), "ctr")
    lookup = loaded.signatures["lookup"].run
    live = {name: dlrm.bags.table(name) for name in ("item", "user")}
    ids = {name: torch.cat([e.ids for e in t.scan()]) for name, t in live.items()}
    found = lookup(ids)
    for name, table in live.items():
        rows = table.lookup(ids[name]).rows_of(0)
        if form == "fp16":  # half a unit in the last place of 11 bits, or of the smallest half
            bound = (rows.abs() * 2**-11).clamp(min=2**-25)
        else:  # half a step of 127 from 0 to the largest value
            bound = rows.abs().max().expand_as(rows) / 254 * (1 + 1e-5)
        error = (found[name] - rows).abs()
        assert (error <= bound).all()
        assert error.max() > 0
    dense, batch_ids = batch(64, seed=5)
    difference = (predict(loaded, dense, batch_ids) - dlrm(dense, batch_ids)).abs().max()
    assert difference < (2e-3 if form == "fp16" else 2e-2)


def test_reading_never_inserts(served: Model) -> None:
    ids = torch.arange(10**6, 10**6 + 50)
    for _ in range(2):
        found = served.signatures["lookup"].run({"item": ids, "user": ids[:0]})
        assert not found["item"].any()
        unknown = hr.IdBatch.from_dict(dict.fromkeys(("user", "item", "history"), ids))
        assert predict(served, torch.rand(50, 4), unknown).shape == (50,)
    removed = served.signatures["hashtable_remove"].run({"item_id": ids, "user_id": ids})
    assert {name: int(n) for name, n in removed.items()} == {"item_result": 0, "user_result": 0}


def test_many_threads_at_once(served: Model, dlrm: nn.Module) -> None:
    batches = [batch(17, seed=seed) for seed in range(4)]
    expected = [dlrm(*one).detach() for one in batches]
    wrong: list[str] = []

    def ask(number: int) -> None:
        for i in range(20):
            at = (number + i) % len(batches)
            if not torch.allclose(predict(served, *batches[at]), expected[at], rtol=0, atol=1e-6):
                wrong.append(f"thread {number}, request {i}")

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_versions_at_once(folder: Path, dlrm: nn.Module, tmp_path: Path) -> None:
    other = trained(MAKE["dlrm"]())
    old = load_bundle(folder, "ctr")
    new = load_bundle(export(other, tmp_path, example=batch(2), version=8), "ctr")
    dense, ids = batch(6)
    for model, loaded in ((dlrm, old), (other, new)):
        torch.testing.assert_close(predict(loaded, dense, ids), model(dense, ids).detach())
    old.close()
    torch.testing.assert_close(predict(new, dense, ids), other(dense, ids).detach())


class Weighted(nn.Module):
    """Weighted bags, unpooled rows, and a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = hr.EmbeddingBags([hr.Table("a", 2)], init=hr.Uniform(1.0))
        self.rows = hr.Embeddings([hr.Table("b", 3)], init=hr.Uniform(1.0))

    def forward(self, ids: hr.IdBatch) -> dict[str, Tensor | hr.Ragged]:
        found = self.rows(ids)["b"]
        return {"bag": self.bags(ids)["a"], "rows": found, "sum": found.values.sum()}


def test_weights_unpooled_rows_and_named_outputs(tmp_path: Path) -> None:
    model = Weighted()
    lists = {"a": [[1, 2], [3], []], "b": [[5], [], [6, 7]]}
    weights = {name: [[0.5 + i for i in row] for row in rows] for name, rows in lists.items()}
    ids = hr.IdBatch.from_lists(lists, weights)
    out = model(ids)
    (out["bag"].sum() + out["rows"].values.sum()).backward()  # pyright: ignore
    model.eval()
    loaded = load_bundle(export(model, tmp_path, example=ids, version=0), "m")
    expected = model(ids)
    found = loaded.signatures["serving_default"].run(request(None, ids))
    assert [*found] == ["bag", "rows", "rows_lengths", "sum"]
    assert torch.equal(found["bag"], expected["bag"])  # pyright: ignore
    assert torch.equal(found["rows"], expected["rows"].values)  # pyright: ignore
    assert found["rows_lengths"].tolist() == [1, 0, 2]
    assert found["bag"].abs().sum() > 0
    assert found["rows"].abs().sum() > 0


def test_a_model_without_tables(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    loaded = load_bundle(export(model, tmp_path, example=torch.ones(2, 3), version=1), "plain")
    x = torch.rand(5, 3)
    found = loaded.signatures["serving_default"].run({"input": x})["output"]
    torch.testing.assert_close(found, model(x).detach())
    assert [*loaded.signatures] == ["serving_default"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: {**r, "user": r["user"][:-1]}, "user_lengths is for"),
        (lambda r: {**r, "user_lengths": -r["user_lengths"]}, "lengths must lie in 0"),
        (lambda r: {**r, "dense": r["dense"][:-1]}, "differ in their number of samples"),
        (lambda r: {**r, "dense": r["dense"].double()}, "it must be float32"),
        (lambda r: {**r, "dense": r["dense"][:, :2]}, "it must be float32"),
        (lambda r: {n: t for n, t in r.items() if n != "item"}, "'item' is missing"),
        (lambda r: {**r, "colour": r["item"]}, "unknown input 'colour'"),
        (
            lambda r: {**r, "user_lengths": torch.full_like(r["user_lengths"], 2**62)},
            "lengths must lie in 0",
        ),
    ],
)
def test_a_wrong_request_is_refused_and_the_next_is_answered(
    served: Model, change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]], words: str
) -> None:
    right = request(*batch(8))
    run = served.signatures["serving_default"].run
    with pytest.raises(ServingError, match=words) as refused:
        run(change(right))
    assert refused.value.code == "INVALID_ARGUMENT"
    assert run(right)["output"].shape == (8,)


def test_versions_follow_the_clock_and_never_repeat(tmp_path: Path) -> None:
    model, clock = nn.Linear(1, 1), ManualClock(100)
    for _ in range(3):
        export(model, tmp_path, example=torch.ones(1, 1), clock=clock)
    assert versions_in(tmp_path / "entry") == [100, 101, 102]


def test_a_version_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    first = export(nn.Linear(1, 1), tmp_path, example=torch.ones(1, 1), version=5)
    before = (first / "bundle.json").read_bytes()
    assert export(nn.Linear(1, 1), tmp_path, example=torch.ones(1, 1), version=5) == first
    assert (first / "bundle.json").read_bytes() == before
    (tmp_path / "entry" / "6").mkdir()
    with pytest.raises(FileMissingError, match="no bundle"):
        export(nn.Linear(1, 1), tmp_path, example=torch.ones(1, 1), version=6)


def test_what_cannot_be_exported(tmp_path: Path, dlrm: nn.Module) -> None:
    with pytest.raises(DtypeError, match=r"pass an nn\.Module"):
        export("model", tmp_path, example=())  # pyright: ignore
    with pytest.raises(ConfigError, match="rows is 'int4'"):
        export(dlrm, tmp_path, example=batch(2), rows="int4")
    with pytest.raises(DtypeError, match="ids of the example is a int"):
        export(dlrm, tmp_path, example=(torch.ones(2, 4), 3))
    with pytest.raises(ConfigError, match=r"name is '\.\./up'"):
        export(dlrm, tmp_path, example=batch(2), name="../up")
    with pytest.raises(InputError, match="version"):
        export(dlrm, tmp_path, example=batch(2), version=-1)
    big = hr.EmbeddingBags([hr.Table("user", 1)], init=hr.Constant(1e5), optimizer=hr.Sgd(lr=1e-30))
    ids = hr.IdBatch.from_lists({"user": [[1]]})
    big(ids)["user"].sum().backward()
    with pytest.raises(InputError, match="more than fp16 can"):
        export(big, tmp_path, example=ids, rows="fp16")
    wild = hr.EmbeddingBags([hr.Table("user", 1)], init=hr.Zeros(), optimizer=hr.Sgd(lr=3e38))
    for gradient, held in ((10, "inf"), (-10, "nan")):
        wild(ids)["user"].mul(gradient).sum().backward()
        for form in ("fp16", "int8"):  # the range of int8 would come from other rows alone
            with pytest.raises(InputError, match=f"'user' holds {held}, more than {form} can"):
                export(wild, tmp_path, example=ids, rows=form)
    assert not any(tmp_path.rglob("*"))


def test_a_model_that_trains_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bags = hr.EmbeddingBags([hr.Table("user", 2)])
    ids = hr.IdBatch.from_lists({"user": [[1], [2]]})

    def rows_after_a_step(*given: object) -> None:
        bags(ids)["user"].sum().backward()
        write_rows(*given)  # pyright: ignore

    monkeypatch.setattr(sys.modules["hedgerow.serving.export"], "write_rows", rows_after_a_step)
    with pytest.raises(StateError, match="was trained while version 2 of entry"):
        export(bags, tmp_path, example=ids, version=2)
    assert versions_in(tmp_path / "entry") == []
    monkeypatch.undo()
    assert load_bundle(export(bags, tmp_path, example=ids, version=2), "m").version == 2


class Nested(nn.Module):
    """Returns what no message holds."""

    def forward(self, x: Tensor) -> dict[str, list[Tensor]]:
        return {"all": [x, x]}


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="the model's all is a list"):
        export(Nested(), tmp_path, example=torch.ones(2, 2), version=1)
    assert not [path for path in tmp_path.rglob("*") if path.name != "entry"]


class Adapter(nn.Module):
    """Makes its batch of ids of matrices that other libraries give."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = hr.EmbeddingBags([hr.Table("user", 2), hr.Table("item", 2)])

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        ids = hr.IdBatch.from_padded({"user": users.unsqueeze(1), "item": items}, padding=0)
        found = self.bags(ids)
        return (found["user"] * found["item"]).sum(1)


def test_a_model_that_makes_its_ids_inside_forward_is_served(tmp_path: Path) -> None:
    model = Adapter()
    example = torch.arange(1, 6), torch.randint(0, 9, (5, 3))
    model(*example).sum().backward()
    served = load_bundle(hr.serving.export(model, tmp_path, example=example, version=1), "demo")
    model.eval()
    for samples in (1, 7):
        inputs = {"users": torch.arange(samples), "items": torch.randint(0, 9, (samples, 3))}
        found = served.signatures["serving_default"].run(inputs)["output"]
        assert torch.equal(found, model(**inputs))
