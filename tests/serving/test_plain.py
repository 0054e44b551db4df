"""A plain request is answered like the same request through a parser, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hedgerow.serving import tensorflow_serving
from hedgerow.serving.model import Model, ServingError, Signature, TensorSpec
from hedgerow.serving.registry import Registry
from hedgerow.serving.row_signatures import ps_model
from hedgerow.tables.compressors import Fp16, Fp32
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.wire import tensors
from hedgerow.wire.codec import from_bytes, to_bytes
from hedgerow.wire.messages import tf_serving
from hedgerow.wire.predict import PlainRequest, request_bytes

IDS = torch.tensor([3, -1, 2**63 - 1, 4, 3])


@pytest.fixture(scope="module")
def registry() -> Registry:
    configs = {
        "item": TableConfig("item", (Segment(3, compressor=Fp32()),), serving=True),
        "user": TableConfig("user", (Segment(2, compressor=Fp16()),), serving=True),
    }
    rows = ps_model("ps_0", HostTables(configs), removes=True)
    rows.signatures["hashtable_assign"].run(
        {
            "item_id": IDS[:2],
            "item_value": torch.arange(6.0).reshape(2, 3),
            "user_id": IDS[3:4],
            "user_value": torch.ones(1, 2),
        }
    )
    pair = TensorSpec(torch.float32, (None, 2))
    flag = TensorSpec(torch.bool, (None,))
    registry = Registry(accept_pushes=True)
    registry.add(rows)
    registry.add(
        Model(
            "m",
            1,
            {
                "double": Signature({"x": pair}, {"y": pair}, lambda given: {"y": given["x"] * 2}),
                "one": Signature({}, {"y": flag}, lambda _: {"y": torch.tensor([True])}),
                "not": Signature({"x": flag}, {"y": flag}, lambda given: {"y": ~given["x"]}),
            },
        )
    )
    return registry


def _asked(name: str, signature: str, inputs: dict[str, Tensor], version: int = 1) -> Any:
    request = tf_serving.PredictRequest(
        model_spec={"name": name, "signature_name": signature, "version": {"value": version}}
    )
    for alias, value in inputs.items():
        tensors.fill(request.inputs[alias], value)
    return request


def _splits(*splits: int) -> Tensor:
    return torch.tensor(splits)


ONE_TABLE = {
    "item_id": IDS[:1],
    "item_value": torch.arange(3.0)[None],
    "user_id": IDS[:0],
    "user_value": torch.ones(0, 2),
}
RAW = ("ps_0", "raw_lookup")
REQUESTS = {
    "rows": _asked(*RAW, {"id": IDS, "id_split": _splits(0, 2, 5)}),
    "rows of one table": _asked(*RAW, {"id": IDS, "id_split": _splits(0, 0, 5)}),
    "two requests in one": _asked(*RAW, {"id": IDS, "id_split": _splits(0, 1, 2, 3, 5)}),
    "splits that fall": _asked(*RAW, {"id": IDS, "id_split": _splits(0, 6, 5)}),
    "splits of another length": _asked(*RAW, {"id": IDS, "id_split": _splits(0, 5)}),
    "splits beyond the ids": _asked(*RAW, {"id": IDS, "id_split": _splits(0, 2, 6)}),
    "no ids": _asked(*RAW, {"id": IDS[:0], "id_split": _splits(0, 0, 0)}),
    "ids of another type": _asked(*RAW, {"id": IDS.int(), "id_split": _splits(0, 2, 5)}),
    "ids of another shape": _asked(*RAW, {"id": IDS[None], "id_split": _splits(0, 2, 5)}),
    "an input too many": _asked(*RAW, {"id": IDS, "id_split": _splits(0, 2, 5), "x": IDS}),
    "another input": _asked(*RAW, {"id": IDS, "split": _splits(0, 2, 5)}),
    "rows of one table by name": _asked("ps_0", "lookup", {"item": IDS, "user": IDS[:0]}),
    "nothing but empty tensors": _asked("ps_0", "lookup", {"item": IDS[:0], "user": IDS[:0]}),
    "an assign to one table": _asked("ps_0", "hashtable_assign", ONE_TABLE),
    "rows by name": _asked("ps_0", "lookup", {"item": IDS, "user": IDS}),
    "another version": _asked(*RAW, {"id": IDS}, version=2),
    "another model": _asked("ps_1", "raw_lookup", {"id": IDS}),
    "no model": _asked("", "raw_lookup", {"id": IDS}),
    "another signature": _asked("ps_0", "raw_assign", {"id": IDS}),
    "a matrix": _asked("m", "double", {"x": torch.arange(6.0).reshape(3, 2)}),
    "a large matrix": _asked("m", "double", {"x": torch.arange(20_000.0).reshape(-1, 2)}),
    "a matrix of another width": _asked("m", "double", {"x": torch.ones(2, 3)}),
    "nothing given": _asked("m", "one", {}),
    "bools": _asked("m", "not", {"x": torch.tensor([True, False])}),
}


def _outcome(registry: Registry, request: Any, compat: Any) -> tuple[str, str] | bytes:
    try:
        return tensorflow_serving.predict(registry, request, compat=compat)
    except ServingError as error:
        return error.code, str(error)


@pytest.mark.parametrize("compat", [None, "typed"])
@pytest.mark.parametrize("case", REQUESTS)
def test_plain_requests_are_answered_alike(case: str, compat: Any, registry: Registry) -> None:
    data = to_bytes(REQUESTS[case])
    message = from_bytes(tf_serving.PredictRequest, data)
    plain = PlainRequest.read(data)
    assert (plain is None) == (case == "nothing but empty tensors")  # they tell no form
    if plain is not None:
        expected = _outcome(registry, message, compat)
        assert _outcome(registry, plain, compat) == expected
        fine = ("rows", "rows of one table", "two requests in one", "rows by name", "a matrix")
        also_fine = ("a large matrix", "nothing given", "bools", "an assign to one table")
        empty = ("no ids", "rows of one table by name")
        assert isinstance(expected, bytes) == (case in (*fine, *also_fine, *empty))


def test_a_shape_whose_product_wraps_is_refused(registry: Registry) -> None:
    request = _asked(*RAW, {"id": IDS, "id_split": _splits(0, 2, 5)})
    request.inputs["id"].tensor_shape.dim[0].size = 2**61 + 5  # times 8: that of five ids
    plain = PlainRequest.read(to_bytes(request))
    assert plain is not None
    code, _ = _outcome(registry, plain, None)
    assert code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("sizes", [(0, 2**62), (2**62, 0), (2**31, 2**31, 0), (0, 2**62 - 1)])
def test_empty_tensors_of_sizes_beyond_addresses_are_refused(sizes: tuple[int, ...]) -> None:
    """A size of 0 makes them fit into no bytes; neither torch nor numpy takes such a shape."""
    spec, numbers = (
        TensorSpec(torch.float32, (None,) * len(sizes)),
        TensorSpec(torch.int64, (None,)),
    )
    back = Signature({"x": spec, "k": numbers}, {"y": spec}, lambda given: {"y": given["x"]})
    registry = Registry(accept_pushes=True)
    registry.add(Model("m", 1, {"back": back}))
    request = _asked("m", "back", {"x": torch.ones((0,) * len(sizes)), "k": IDS})
    for dim, size in zip(request.inputs["x"].tensor_shape.dim, sizes, strict=True):
        dim.size = size
    plain = PlainRequest.read(to_bytes(request))
    assert plain is not None
    expected = _outcome(registry, request, None)
    assert expected[0] == "INVALID_ARGUMENT"
    assert _outcome(registry, plain, None) == expected


def test_an_assign_to_some_tables_takes_the_short_way(registry: Registry) -> None:
    head = _asked("ps_0", "hashtable_assign", {})
    plain = PlainRequest.read(request_bytes(head, ONE_TABLE))  # its numbers stand where they can
    assert plain is not None
    with registry.find("ps_0", 1) as model:
        short = model.signatures["hashtable_assign"].answer_plain
        assert short is not None
        assert short(plain, b"") is not None
