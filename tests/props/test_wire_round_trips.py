"""Random tensors of every element type come back from both forms, and so do rows from pushes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.wire import infer_tensors, push, tensors
from hedgerow.wire.codec import from_bytes, to_bytes
from hedgerow.wire.dtypes import ELEMENTS, ElementType
from hedgerow.wire.messages import kserve, parameter_sync, tensor

FORMS = st.sampled_from([None, "typed"])
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def any_tensor(draw: st.DrawFn, elements: list[ElementType]) -> torch.Tensor:
    """Any bits of any element type, in any order of dimensions."""
    element, shape = draw(st.sampled_from(elements)), draw(SHAPES)
    size = int(np.prod(shape)) * element.width
    bits = torch.tensor(list(draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    flat = bits > 127 if element.name == "bool" else bits.view(element.torch)
    order = draw(st.permutations(range(len(shape))))
    return flat.reshape(shape).permute(*order) if shape else flat.reshape(())


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    first, second = (bytes(tensors.to_message(side).tensor_content) for side in (left, right))
    return first == second


@given(any_tensor(list(ELEMENTS)), FORMS)
def test_tensors_come_back_from_both_forms(value: torch.Tensor, compat: Any) -> None:
    sent = to_bytes(tensors.to_message(value, compat=compat))
    assert _same(tensors.to_torch(from_bytes(tensor.TensorProto, sent)), value)


@given(any_tensor([element for element in ELEMENTS if element.numpy]), FORMS)
def test_arrays_come_back_from_both_forms(value: torch.Tensor, compat: Any) -> None:
    array = tensors.to_numpy(tensors.to_message(value))
    found = tensors.to_numpy(tensors.to_message(array, compat=compat))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=8) | st.text(max_size=4), max_size=12))
def test_strings_come_back(items: list[bytes | str]) -> None:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    wanted = [item.encode() if isinstance(item, str) else item for item in items]
    assert tensors.to_numpy(tensors.to_message(array)).tolist() == wanted
    for compat in (None, "typed"):
        request = kserve.ModelInferRequest()
        infer_tensors.write_inputs(request, {"x": array}, compat=compat)  # type: ignore[arg-type]
        assert infer_tensors.read_inputs(request)["x"].tolist() == wanted


@given(st.lists(any_tensor([e for e in ELEMENTS if e.contents]), max_size=4), FORMS)
def test_requests_of_several_tensors_come_back(values: list[torch.Tensor], compat: Any) -> None:
    named = {f"x{place}": value for place, value in enumerate(values)}
    request = kserve.ModelInferRequest()
    infer_tensors.write_inputs(request, named, compat=compat)
    found = infer_tensors.read_inputs(from_bytes(kserve.ModelInferRequest, to_bytes(request)))
    assert list(found) == list(named)
    for name, value in named.items():
        assert _same(torch.as_tensor(found[name]), value)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(1, 400),
    st.sampled_from(["balanced", "reference"]),
    st.booleans(),
)
def test_the_parts_of_a_push_assign_what_the_whole_assigns(
    tables: list[tuple[int, int]], limit: int, rule: Any, multi: bool
) -> None:
    request = parameter_sync.PushRequest(model_name="m")
    for place, (rows, dim) in enumerate(tables):
        fids = torch.arange(rows) * (2**61 + 7) - 5
        push.add_rows(request, f"t{place}", fids, torch.randn(rows, dim), multi=multi)
    parts = push.split_request(request, limit, rule)
    assert sum(push.row_count(part) for part in parts) == push.row_count(request)
    assert _assigned(parts, tables, multi) == _assigned([request], tables, multi)


def _assigned(requests: list[Any], tables: list[tuple[int, int]], multi: bool) -> dict[Any, Any]:
    """(table, fid) -> row, as a server that gets these calls would have it."""
    found: dict[Any, Any] = {}
    for request in requests:
        predict = push.to_predict(request)
        inputs = {alias: tensors.to_torch(value) for alias, value in predict.inputs.items()}
        flat = inputs["flat_value"] if multi else torch.empty(0)
        for place, (_, dim) in enumerate(tables):
            if multi:
                begin, end = inputs["id_split"][place : place + 2].tolist()
                fids, values = inputs["id"][begin:end], flat[: (end - begin) * dim]
                flat = flat[(end - begin) * dim :]
            else:
                fids, values = inputs[f"t{place}_id"], inputs[f"t{place}_value"]
            rows = values.reshape(-1, dim).tolist()
            for fid, row in zip(fids.tolist(), rows, strict=True):
                found[place, fid] = row
        assert not flat.numel()
    return found
