"""Predict over a real socket: every rule of TensorFlow Serving that clients rely on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.wire import tensors

from .serving import Caller, adding, outputs_of, refused, request, serving

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
IDS = torch.tensor([1, 2])


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with serving(adding(3), adding(5)) as server, Caller(server.address) as caller:
        server.registry.set_labels("m", {"stable": 3})
        yield caller


def test_an_empty_signature_is_the_default_and_no_version_is_the_newest(caller: Caller) -> None:
    response = caller.predict("m", {"x": X})
    assert torch.equal(outputs_of(response)["y"], X + 5)
    assert sorted(response.outputs) == ["y", "z"]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 5, "serving_default")


def test_outputs_travel_as_raw_buffers(caller: Caller) -> None:
    response = caller.predict("m", {"x": X})
    assert response.outputs["y"].tensor_content
    assert not response.outputs["y"].float_val


def test_typed_values_are_written_for_clients_that_need_them() -> None:
    with serving(adding(1), compat="typed") as server, Caller(server.address) as caller:
        response = caller.predict("m", {"x": X})
    assert list(response.outputs["y"].float_val) == [2, 3, 4, 5]
    assert not response.outputs["y"].tensor_content


def test_typed_inputs_get_typed_outputs(caller: Caller) -> None:
    response = caller.predict("m", {"x": X}, compat="typed")
    assert list(response.outputs["y"].float_val) == [6, 7, 8, 9]
    assert not response.outputs["y"].tensor_content
    ids = caller.predict("m", {"a": IDS, "b": IDS}, signature="sum", compat="typed")
    assert list(ids.outputs["s"].int64_val) == [2, 4]


def test_one_raw_input_is_enough_for_raw_outputs(caller: Caller) -> None:
    asked = request("m", {"a": IDS}, signature="sum", compat="typed")
    tensors.fill(asked.inputs["b"], IDS)
    (found,) = caller.call("Predict", asked).outputs.values()
    assert (found.tensor_content.hex()[:2], list(found.int64_val)) == ("02", [])


def test_inputs_without_values_get_typed_outputs(caller: Caller) -> None:
    asked = request("m", {}, signature="sum")
    for name in ("a", "b"):
        tensors.fill(asked.inputs[name], IDS)
        asked.inputs[name].tensor_content = b""  # zeros, then
    (found,) = caller.call("Predict", asked).outputs.values()
    assert not found.tensor_content
    assert tensors.to_torch(found).tolist() == [0, 0]


@pytest.mark.parametrize("choice", [{"version": 3}, {"label": "stable"}])
def test_a_version_is_chosen_by_number_and_by_label(caller: Caller, choice: Any) -> None:
    response = caller.predict("m", {"x": X}, **choice)
    assert torch.equal(outputs_of(response)["y"], X + 3)
    assert response.model_spec.version.value == 3


def test_the_filter_picks_outputs(caller: Caller) -> None:
    response = caller.predict("m", {"x": X}, outputs=("z",))
    assert list(outputs_of(response)) == ["z"]


def test_another_signature_is_run_and_named(caller: Caller) -> None:
    response = caller.predict("m", {"a": IDS, "b": IDS}, signature="sum")
    assert outputs_of(response)["s"].tolist() == [2, 4]
    assert response.model_spec.signature_name == "sum"


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        (request("n", {"x": X}), "NOT_FOUND", "Servable not found for request: Latest(n)"),
        (
            request("m", {"x": X}, version=4),
            "NOT_FOUND",
            "Servable not found for request: Specific(m, 4)",
        ),
        (
            request("m", {"x": X}, version=0),
            "NOT_FOUND",
            "Servable not found for request: Specific(m, 0)",
        ),
        (
            request("m", {"x": X}, label="new"),
            "INVALID_ARGUMENT",
            "Unrecognized servable version label: new",
        ),
        (
            request("n", {"x": X}, label="new"),
            "NOT_FOUND",
            "Servable not found for request: Latest(n)",
        ),
        (
            request("m", {"x": X}, signature="q"),
            "FAILED_PRECONDITION",
            'Serving signature key "q" not found.',
        ),
    ],
)
def test_what_is_not_there_has_its_text(caller: Caller, asked: Any, code: str, text: str) -> None:
    assert refused(lambda: caller.call("Predict", asked)) == (code, text)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request("", {"x": X}), ["Missing ModelSpec"]),
        (request("m", {}), ["input size does not match signature: 0 != 1", "missing: x"]),
        (
            request("m", {"x": X, "w": X}),
            ["input size does not match signature: 2 != 1", "not in the signature: w"],
        ),
        (request("m", {"w": X}), ["input tensor alias not found in signature: w"]),
        (
            request("m", {"x": X}, outputs=("w",)),
            ["output tensor alias not found in signature: w", "y, z"],
        ),
        (request("m", {"x": X}, outputs=("y", "y")), ["duplicate output tensor alias: y"]),
        (request("m", {"x": X.double()}), ["input x", "float64", "must have dtype float32"]),
        (request("m", {"x": X.view(-1)}), ["input x", "shape [4]", "shape [any, 2]"]),
        (request("m", {"x": X.view(1, 4)}), ["input x", "shape [1, 4]", "shape [any, 2]"]),
        (
            request("m", {"x": np.array([["a", "b"]], dtype=object)}),
            ["input x", "dtype string", "float32"],
        ),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    caller: Caller, asked: Any, words: list[str]
) -> None:
    code, text = refused(lambda: caller.call("Predict", asked))
    assert code == "INVALID_ARGUMENT"
    assert all(word in text for word in words), text


def test_an_unparsable_tensor_is_named(caller: Caller) -> None:
    asked = request("m", {"x": X})
    asked.inputs["x"].tensor_content += b"123"
    code, text = refused(lambda: caller.call("Predict", asked))
    assert code == "INVALID_ARGUMENT"
    assert "cannot be read: x of shape (2, 2)" in text


def test_a_fault_of_a_model_is_internal_and_the_next_request_is_answered() -> None:
    def fail(inputs: Any) -> Any:
        if inputs["x"].sum() > 0:
            raise RuntimeError("out of order")
        return {"y": inputs["x"], "z": inputs["x"]}

    with serving(adding(1, run=fail)) as server, Caller(server.address) as caller:
        code, text = refused(lambda: caller.predict("m", {"x": X}))
        assert (code, "out of order" in text) == ("INTERNAL", True)
        assert server.registry.counters.read("internal_errors") == 1
        assert torch.equal(outputs_of(caller.predict("m", {"x": -X}))["y"], -X)


def test_a_long_text_fits_into_a_header(caller: Caller) -> None:
    asked = request("m", {"ä" * 100_000: X})
    code, text = refused(lambda: caller.call("Predict", asked))
    assert code == "INVALID_ARGUMENT"
    assert text.startswith("input tensor alias not found in signature: ää")


def test_every_request_is_observed() -> None:
    seen: list[Any] = []
    with (
        serving(adding(1), observe=lambda *about: seen.append(about)) as server,
        Caller(server.address) as caller,
    ):
        caller.predict("m", {"x": X})
        refused(lambda: caller.predict("n", {"x": X}))
        refused(lambda: caller.call("Predict", b"\xff"))
    path = "/tensorflow.serving.PredictionService/Predict"
    assert [(where, code) for where, code, _, _ in seen] == [
        (path, "OK"),
        (path, "NOT_FOUND"),
        (path, "INVALID_ARGUMENT"),
    ]
    assert all(seconds > 0 for _, _, seconds, _ in seen)
    assert [asked and asked.model for *_, asked in seen] == ["m", "n", None]


def test_inputs_of_one_byte_short_of_aligned_are_read(caller: Caller) -> None:
    for pad in range(1, 9):  # other lengths before it put the content at every alignment
        asked = request("m", {"x": X}, signature="serving_default")
        asked.client_id = b"." * pad
        assert torch.equal(tensors.to_torch(caller.call("Predict", asked).outputs["y"]), X + 5)
