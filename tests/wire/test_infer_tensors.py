"""Tensors of KServe v2: raw buffers in order, typed contents, strings after their lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import DtypeError, InputError
from hedgerow.wire import infer_tensors
from hedgerow.wire.codec import from_bytes, to_bytes
from hedgerow.wire.dtypes import ELEMENTS, ElementType
from hedgerow.wire.messages import kserve

from .test_tensors import every_value, same_bits

CARRIED = [element for element in ELEMENTS if element.kserve]
TYPED = [element for element in CARRIED if element.contents]


def _request(raw: list[bytes] | None = None, **tensor: Any) -> Any:
    return kserve.ModelInferRequest(inputs=[{"name": "x", **tensor}], raw_input_contents=raw)


@pytest.mark.parametrize("element", CARRIED, ids=lambda element: element.name)
@pytest.mark.parametrize("compat", [None, "typed"])
def test_every_datatype_comes_back_bit_for_bit(element: ElementType, compat: Any) -> None:
    values = {
        "x": every_value(element).reshape(2, 12),
        "empty": every_value(element, 0).reshape(0, 3),
        "one": every_value(element, 1).reshape(()),
    }
    request, response = kserve.ModelInferRequest(), kserve.ModelInferResponse()
    if compat and element not in TYPED:
        with pytest.raises(DtypeError, match=f"{element.kserve}, which has no typed contents"):
            infer_tensors.write_inputs(request, values, compat=compat)
        return
    infer_tensors.write_inputs(request, values, compat=compat)
    infer_tensors.write_outputs(response, values, compat=compat)
    assert bool(request.raw_input_contents) is (compat is None)
    request = from_bytes(kserve.ModelInferRequest, to_bytes(request))
    for found in (infer_tensors.read_inputs(request), infer_tensors.read_outputs(response)):
        assert list(found) == list(values)
        for name, value in values.items():
            tensor = found[name]
            assert isinstance(tensor, torch.Tensor)
            assert same_bits(tensor, value)


@pytest.mark.parametrize("compat", [None, "typed"])
def test_strings_travel_beside_numbers(compat: Any) -> None:
    words = np.array([["a", "é"], [b"", b"\xff\x00"]], dtype=object)
    values = {"words": words, "ids": torch.tensor([1]), "none": np.empty(0, dtype=object)}
    request = kserve.ModelInferRequest()
    infer_tensors.write_inputs(request, values, compat=compat)
    assert [tensor.datatype for tensor in request.inputs] == ["BYTES", "INT64", "BYTES"]
    found = infer_tensors.read_inputs(request)
    assert found["words"].tolist() == [[b"a", "é".encode()], [b"", b"\xff\x00"]]
    assert found["ids"].tolist() == [1]
    assert found["none"].tolist() == []


def test_the_raw_form_is_the_one_real_clients_send() -> None:
    request = kserve.ModelInferRequest()
    infer_tensors.write_inputs(request, {"x": torch.tensor([1.0]), "s": np.array(["ab"])})
    raw = [bytes(item).hex() for item in request.raw_input_contents]
    assert raw == ["0000803f", "020000006162"]


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        (_request([b"1234", b""], datatype="FP32", shape=[1]), "2 raw buffers came for 1 tensors"),
        (_request([b"123"], datatype="FP32", shape=[1]), "3 bytes; it must be 4"),
        (_request(datatype="FP32", shape=[1]), "0 values; it must have 1"),
        (_request([b""], datatype="FP32", shape=[-1]), "0 or more"),
        (_request([b""], datatype="FP32", shape=[2**62, 4]), "more bytes than addresses"),
        (_request(datatype="INT64", shape=[2**50]), "0 values"),
        (_request(datatype="FP16", shape=[1]), "send it raw"),
        (_request([b"1"], datatype="INT4", shape=[1]), "datatype 'INT4' cannot be carried"),
        (_request([b"1"], shape=[1]), "datatype '' cannot be carried"),
        (
            _request([b"1234"], datatype="FP32", shape=[1], contents={"fp32_contents": [1.0]}),
            "send one form",
        ),
        (_request([b"\1\0\0"], datatype="BYTES", shape=[1]), "ends at byte 3 inside a string"),
        (_request([b"\xff\xff\xff\xff"], datatype="BYTES", shape=[1]), "inside a string"),
        (_request([b"\0\0\0\0"], datatype="BYTES", shape=[2]), "1 values; it must have 2"),
        (_request([b""], datatype="BYTES", shape=[2**59]), "0 values"),
    ],
    ids=range(14),
)
def test_what_is_no_request_is_refused(request_: Any, rule: str) -> None:
    with pytest.raises((InputError, DtypeError), match=rule):
        infer_tensors.read_inputs(request_)


def test_a_name_that_comes_twice_is_refused() -> None:
    request = kserve.ModelInferRequest()
    infer_tensors.write_inputs(request, {"x": torch.ones(1)})
    infer_tensors.write_inputs(request, {"x": torch.ones(1)})
    with pytest.raises(InputError, match="'x' came twice"):
        infer_tensors.read_inputs(request)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e5m2], ids=str)
def test_a_type_that_kserve_lacks_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(DtypeError, match="which KServe does not have"):
        infer_tensors.write_inputs(kserve.ModelInferRequest(), {"x": torch.ones(1).to(dtype)})
