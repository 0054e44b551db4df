"""Features in JSON as one list of ids a sample, and ids that are strings, over every protocol."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.hashing import id64
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.model import Model, ServingError, Signature, Tensors, TensorSpec
from hedgerow.serving.registry import Registry
from hedgerow.serving.rest import RestServer, read_json
from hedgerow.serving.server import PredictionServer
from hedgerow.wire import infer_tensors, rpc
from hedgerow.wire.messages import kserve

from .models import FLOATS
from .serving import Caller
from .test_rest import ask

IDS = TensorSpec(torch.int64, (None,))
BAGS = {
    "dense": TensorSpec(torch.float32, (None, 2)),
    "user": IDS,
    "user_lengths": IDS,
    "user_weights": FLOATS,
}


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (
            "instances",
            [
                {"dense": [1, 2], "user": [7], "user_weights": [0.5]},
                {"dense": [3, 4], "user": [], "user_weights": []},
                {"dense": [5, 6], "user": [8, 9], "user_weights": [1, 2]},
            ],
        ),
        (
            "inputs",
            {
                "dense": [[1, 2], [3, 4], [5, 6]],
                "user": [7, None, [8, 9]],
                "user_weights": [[0.5], [], [1, 2]],
            },
        ),
        (
            "inputs",
            {
                "dense": [[1, 2], [3, 4], [5, 6]],
                "user": [7, 8, 9],
                "user_lengths": [1, 0, 2],
                "user_weights": [0.5, 1, 2],
            },
        ),
    ],
)
def test_lengths_are_counted_where_none_are_sent(form: str, values: Any) -> None:
    found = read_json(json.dumps({form: values}).encode()).tensors(BAGS)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "dense": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "user": [7, 8, 9],
        "user_lengths": [1, 0, 2],
        "user_weights": [0.5, 1.0, 2.0],
    }


def test_lists_that_do_not_fit_are_refused() -> None:
    one = {"user": IDS, "user_lengths": IDS}
    lengths = read_json(b'{"instances": [[7], [8, 9]]}').tensors(one)["user_lengths"]
    assert lengths.tolist() == [1, 2]
    for body, specs in (
        (b'{"inputs": {"user": [[7]], "user_weights": [[1, 2]], "dense": [[1, 2]]}}', BAGS),
        (b'{"inputs": {"user": 7}}', one),
        (b'{"inputs": {"user": [[[7]]]}}', one),
        (b'{"inputs": {"user": [[7, "a"]]}}', one),
        (b'{"inputs": {"user": [[1.5]]}}', one),
        (b'{"inputs": {"user": [{"a": 1}]}}', one),
    ):
        with pytest.raises(ServingError):
            read_json(body).tensors(specs)


def _counting(inputs: Tensors) -> Tensors:
    return {"y": inputs["user"] * 1, "y_lengths": inputs["user_lengths"] * 1}


def test_strings_become_ids_only_where_a_field_is_known() -> None:
    specs = {"user": IDS, "user_lengths": IDS}
    registry = Registry()
    for name, fields in (("with", {"user": "city"}), ("without", {})):
        signature = Signature(specs, {"y": IDS, "y_lengths": IDS}, _counting, fields=fields)
        registry.add(Model(name, 1, {"serving_default": signature}))
    body = {"inputs": {"user": [["Zürich", "Bern"], "Basel"]}}
    wanted = [id64(city, "city") for city in ("Zürich", "Bern", "Basel")]
    with RestServer(registry) as rest, PredictionServer(registry) as server:
        status, found = ask(rest.address, "POST", "/v1/models/with:predict", body)
        assert (status, found["outputs"]) == (200, {"y": wanted, "y_lengths": [2, 1]})
        status, found = ask(rest.address, "POST", "/v1/models/without:predict", body)
        assert (status, "dtype string" in found["error"]) == (400, True)
        cities = np.array(["Zürich", "Bern", "Basel"], dtype=object)
        lengths = torch.tensor([2, 1])
        asked = kserve.ModelInferRequest(model_name="with")
        infer_tensors.write_inputs(asked, {"user": cities, "user_lengths": lengths})
        with Caller(server.address, rpc.KSERVE_SERVICE) as caller:
            answer = infer_tensors.read_outputs(caller.call("ModelInfer", asked))
        assert answer["y"].tolist() == wanted
        with PredictionClient(server.address) as client:
            inputs = {"user": cities, "user_lengths": lengths}
            assert client.predict("with", "", inputs)["y"].tolist() == wanted
            with pytest.raises(ServingError, match="dtype string"):
                client.predict("without", "", inputs)
    registry.close()
