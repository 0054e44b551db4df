"""Requests of exported models: joined where that changes no answer, and only there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.serving.arguments import Arguments, Ids
from hedgerow.serving.batching import Batching, find_cuts
from hedgerow.serving.bundle import load_bundle
from hedgerow.serving.metrics import ServerMetrics
from hedgerow.serving.model import ServingError
from hedgerow.serving.registry import Registry

from .serving import adding
from .serving import request as message
from .trained import FEATURES, batch, request, tables, trained

TIMEOUT_S = 60


class Wide(nn.Module):
    """Pooled rows, rows as they are, and the samples' own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = hr.Embeddings(tables(), init=hr.Uniform(0.3))

    def forward(self, dense: Tensor, ids: hr.IdBatch) -> dict[str, Any]:
        return {"history": self.rows(ids)["history"], "twice": dense * 2}


class Mixing(nn.Module):
    """Looks at all samples of a batch at once."""

    def forward(self, dense: Tensor) -> Tensor:
        return dense.softmax(0)


def together(registry: Registry, asked: list[dict[str, Tensor]]) -> list[Any]:
    """What each request gets while all are under way at once; errors as they are."""
    start = threading.Barrier(len(asked))

    def ask(inputs: dict[str, Tensor]) -> Any:
        start.wait(TIMEOUT_S)
        with registry.find("m") as model:
            try:
                return model.signatures["serving_default"].run(inputs)
            except ServingError as error:
                return error

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, asked))


def served(model: nn.Module, example: object, folder: Path) -> Registry:
    registry = Registry(batching=Batching(window_s=0.2))
    registry.add(load_bundle(hr.serving.export(model, folder, example=example), "m"))
    return registry


def until_joined(registry: Registry, once: Callable[[], None]) -> None:
    """Asks until some requests met; each time the answers are compared."""
    for _ in range(50):
        once()
        if registry.counters.read("joined_requests"):
            return
    raise AssertionError("no two requests ran together")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Registry]:
    torch.manual_seed(0)
    model = Wide()
    for dense, ids, _ in hr.data.clicks(batch_size=64, steps=2):
        model(dense, ids)["history"].values.sum().backward()
    model.eval()
    return model, served(model, batch(2), tmp_path_factory.mktemp("wide"))


def test_every_request_gets_its_own_rows(wide: tuple[nn.Module, Registry]) -> None:
    model, registry = wide
    batches = [batch(samples, seed=samples) for samples in (3, 1, 4, 2)]
    expected = [model(*one) for one in batches]

    def once() -> None:
        for found, own in zip(
            together(registry, [request(*one) for one in batches]), expected, strict=True
        ):
            assert torch.equal(found["history"], own["history"].values)
            assert torch.equal(found["history_lengths"], own["history"].row_splits.diff())
            assert torch.equal(found["twice"], own["twice"])

    until_joined(registry, once)


def test_wrong_requests_do_not_hide_each_other(wide: tuple[nn.Module, Registry]) -> None:
    _, registry = wide
    dense, ids = batch(2, seed=1)
    one, other = request(dense, ids), request(dense, ids)
    one["user_lengths"] = one["user_lengths"] + torch.tensor([1, 0])
    other["user"] = torch.cat([other["user"], torch.tensor([1])])  # as many too many as one lacks
    for found in together(registry, [one, other]):
        assert isinstance(found, ServingError)
        assert found.code == "INVALID_ARGUMENT"


def test_a_model_that_mixes_samples_is_never_joined(tmp_path: Path) -> None:
    registry = served(Mixing(), torch.ones(2, 3), tmp_path)
    with registry.find("m") as model:
        assert model.signatures["serving_default"].joining is None
    asked = [{"dense": torch.rand(n, 3)} for n in (1, 2, 3)]
    for found, inputs in zip(together(registry, asked), asked, strict=True):
        assert torch.allclose(found["output"], inputs["dense"].softmax(0))


@pytest.mark.long
@pytest.mark.parametrize("kind", [hr.models.DLRM, hr.models.DeepFM])
def test_models_of_ours_are_joined(kind: Any, tmp_path: Path) -> None:
    model = trained(kind(tables(), dense=4))
    registry = served(model, batch(2), tmp_path)
    batches = [batch(samples, seed=samples) for samples in (3, 1, 2)]
    expected = [model(*one).detach() for one in batches]

    def once() -> None:
        found = together(registry, [request(*one) for one in batches])
        for outputs, own in zip(found, expected, strict=True):
            assert torch.allclose(outputs["output"], own, atol=1e-6, rtol=0)

    until_joined(registry, once)


def test_requests_that_are_tried_have_more_ids_than_samples() -> None:
    names = tuple(f"f{i}" for i in range(50))
    arguments, seen = Arguments((Ids(names, False),)), list[tuple[int, int]]()

    def model(inputs: list[Tensor]) -> dict[str, Tensor]:
        seen.extend(zip(map(len, inputs[::2]), map(len, inputs[1::2]), strict=True))
        return {"y": inputs[0]}

    assert find_cuts(model, arguments, {}) is None
    assert len(seen) == 4 * len(names)  # three requests, each alone and all joined
    assert all(ids > samples for ids, samples in seen)


def test_a_label_is_counted_as_its_version() -> None:
    registry = Registry()
    for version in (1, 2):
        registry.add(adding(version))
    registry.set_labels("m", {"stable": 1})
    metrics = ServerMetrics(registry)
    asked = message("m", {"x": torch.ones(3, 2)}, label="stable")
    metrics.observe("/tensorflow.serving.PredictionService/Predict", "OK", 0.1, asked)
    (line,) = [t for t in metrics.text().decode().splitlines() if "requests_total{" in t]
    assert 'version="1"' in line


def test_rows_are_counted_by_samples(wide: tuple[nn.Module, Registry]) -> None:
    _, registry = wide
    metrics = ServerMetrics(registry)
    asked = message("m", request(*batch(3)))
    metrics.observe("/tensorflow.serving.PredictionService/Predict", "OK", 0.1, asked)
    text = metrics.text().decode()
    assert 'hedgerow_serving_request_rows_sum{model="m"} 3.0' in text
    assert 'hedgerow_serving_request_rows_count{model="m"} 1.0' in text


def test_rows_of_a_bundle_have_the_names_of_a_parameter_server(
    wide: tuple[nn.Module, Registry],
) -> None:
    model, registry = wide
    ids = batch(8)[1].feature(FEATURES[0]).values
    with registry.find("m") as loaded:
        inputs = {"user": ids, "item": ids[:0]}
        for key in ("lookup", "hashtable_lookup"):
            found = loaded.signatures[key].run(inputs)["user"]
            assert torch.equal(found, model.rows.table("user").lookup(ids).rows_of(0))  # type: ignore[union-attr]
