"""Answers written by hand are the bytes that protobuf writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import InputError
from hedgerow.wire import dtypes, tensors
from hedgerow.wire.buffers import Array
from hedgerow.wire.codec import to_bytes
from hedgerow.wire.messages import tf_serving
from hedgerow.wire.predict import PlainRequest, response_bytes, spec_bytes


def _by_protobuf(outputs: dict[str, Any], compat: Any) -> bytes:
    response = tf_serving.PredictResponse()
    response.model_spec.name, response.model_spec.signature_name = "ctr", "lookup"
    response.model_spec.version.value = 0
    response.model_spec.version.SetInParent()
    for alias, value in outputs.items():
        tensors.fill(response.outputs[alias], value, compat=compat)
    return to_bytes(response)


@pytest.mark.parametrize("compat", [None, "typed"])
@pytest.mark.parametrize("element", dtypes.ELEMENTS, ids=lambda element: element.name)
def test_every_type_gives_the_bytes_of_protobuf(element: dtypes.ElementType, compat: Any) -> None:
    values = torch.arange(6).reshape(2, 3).to(element.torch)
    outputs = {"é": values, "b": values[:0], "a": values[1, 1], "t": values.T}
    assert response_bytes(outputs, spec_bytes("ctr", 0, "lookup"), compat=compat) == _by_protobuf(
        outputs, compat
    )


@pytest.mark.parametrize("compat", [None, "typed"])
def test_long_and_textual_outputs(compat: Any) -> None:
    outputs = {"rows": torch.rand(70_000, 3), "names": np.array(["a", b"b"], dtype=object)}
    assert response_bytes(outputs, spec_bytes("ctr", 0, "lookup"), compat=compat) == _by_protobuf(
        outputs, compat
    )


def test_an_answer_beyond_what_a_message_holds_is_refused() -> None:
    room = torch.empty(1).expand(2**29)
    with pytest.raises(InputError, match="in parts"):
        response_bytes({"rows": room}, b"")


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": 1},
        {"tensor_content": b""},
        {"tensor_content": bytes(17)},
        {"tensor_shape": {"dim": [{"size": -2}, {"size": -1}]}},
        {"tensor_shape": {"dim": [{"size": 2}, {"size": 1}], "unknown_rank": True}},
        {"tensor_shape": {"dim": [{"size": 2}]}},
        {"tensor_shape": {"dim": [{"size": 1}, {"size": 2}]}},
    ],
)
def test_the_short_way_takes_only_what_it_was_told(change: dict[str, Any]) -> None:
    request = tf_serving.PredictRequest()
    message = request.inputs["id"]
    tensors.fill(message, torch.tensor([[7], [8]]))
    assert _short(request).tolist() == [7, 8]  # type: ignore[union-attr]
    for name, value in change.items():
        message.ClearField(name)  # type: ignore[arg-type]
        message.MergeFrom(type(message)(**{name: value}))
    assert _short(request) is None


def _short(request: tf_serving.PredictRequest) -> Array | None:
    plain = PlainRequest.read(to_bytes(request))
    return plain and plain.array("id", dtypes.of_torch(torch.int64), (None, 1))
