"""Requests that are small as bytes and would be large as objects."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import pytest
import torch

from hedgerow.core.errors import InputError
from hedgerow.serving.model import ServingError, Tensors
from hedgerow.serving.row_signatures import multi_name, row_signatures
from hedgerow.wire import buffers, rpc
from hedgerow.wire.codec import check_parts
from hedgerow.wire.messages import kserve, tensor, tf_serving

from .plain_server import field
from .serving import Caller, adding, host_tables, outputs_of, refused, request, serving

X = torch.tensor([[1.0, 2.0]])
MANY = 150_000
SPEC = field(1, field(1, b"m"))
PARTS = {
    "entries of a map": SPEC + b"".join(field(2, field(1, b"%06x" % i)) for i in range(MANY)),
    "filtered outputs": SPEC + field(3, b"") * MANY,
    "strings": SPEC + field(2, field(1, b"x") + field(2, b"\x08\x07" + field(8, b"ab") * MANY)),
    "behind a group": SPEC + b"\x7b\x7c" + field(3, b"") * MANY,
    "unpacked numbers": SPEC
    + field(2, field(1, b"x") + field(2, b"\x08\x09" + b"\x50\x07" * MANY)),
}


@pytest.mark.parametrize("kind", PARTS)
def test_very_many_parts_are_refused_before_they_are_parsed(kind: str) -> None:
    with serving(adding(1)) as server, Caller(server.address) as caller:
        code, text = refused(lambda: caller.call("Predict", PARTS[kind]))
        assert (code, "more than 100000 fields" in text) == ("INVALID_ARGUMENT", True)
        assert torch.equal(outputs_of(caller.predict("m", {"x": X}))["y"], X + 1)


def test_very_many_parts_of_a_kserve_request() -> None:
    contents = field(5, field(1, b"x") + field(5, field(8, b"") * MANY))
    with serving(adding(1)) as server, Caller(server.address, rpc.KSERVE_SERVICE) as caller:
        code, text = refused(lambda: caller.call("ModelInfer", field(1, b"m") + contents))
    assert (code, "more than 100000 fields" in text) == ("INVALID_ARGUMENT", True)


def test_large_tensors_are_few_parts() -> None:
    for compat in (None, "typed"):
        asked = request("m", {"x": torch.zeros(200_000, 2)}, compat=compat)
        check_parts(tf_serving.PredictRequest, asked.SerializeToString())
    infer = kserve.ModelInferRequest(raw_input_contents=[bytes(1 << 20)] * 4)
    check_parts(kserve.ModelInferRequest, infer.SerializeToString())


@pytest.mark.parametrize("cut", [b"\x0a\xff\xff\xff\xff\x0f", b"\x80" * 200_000, b"\x0f" * 90_000])
def test_bytes_that_are_no_message_are_left_to_the_parser(cut: bytes) -> None:
    large = field(15, bytes(200_000))  # what is small is not looked at
    check_parts(tf_serving.PredictRequest, large + bytes.fromhex("1a00") + cut)


@pytest.mark.parametrize("name", ["int64_val", "uint64_val", "int_val"])
def test_many_numbers_of_different_lengths_are_read_alike(name: str) -> None:
    draw = np.random.default_rng(1)
    width = 31 if name == "int_val" else 63
    bits = draw.integers(0, 2**63, 40_000, dtype=np.uint64) >> draw.integers(
        64 - width, 63, 40_000
    ).astype(np.uint64)
    values = bits.astype(np.int64)
    if name != "uint64_val":
        values[::3] *= -1
    message = tensor.TensorProto(**{name: values.tolist()})
    dtype = {"int64_val": "<i8", "uint64_val": "<u8", "int_val": "<i4"}[name]
    found = buffers.read_numbers(message, name, dtype, 39_999)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == values[:39_999].tolist()


def test_many_unpacked_numbers_are_read_alike() -> None:
    from hedgerow.wire.messages import parameter_sync

    ids = [(-1) ** i * 7 ** (i % 22) for i in range(40_000)]
    delta = parameter_sync.PushRequest.DeltaEmbeddingHashTable(fids=ids)
    assert buffers.read_numbers(delta, "fids", "<i8", len(ids)).tolist() == ids


def test_rows_of_a_bundle_are_bounded_too() -> None:
    found = row_signatures(host_tables(a=512), multi_name(0))
    ids = torch.zeros(1 << 18, dtype=torch.int64)
    for name, inputs in {
        "lookup": {"a": ids},
        "raw_lookup": {"id": ids, "id_split": torch.tensor([0, len(ids)])},
    }.items():
        with pytest.raises(ServingError, match="ask for fewer ids") as error:
            found[name].run(inputs)
        assert "536870912 bytes" in str(error.value)


@pytest.mark.parametrize("number", [7, 10])  # int_val and int64_val
def test_very_many_typed_whole_numbers_are_refused_before_they_are_parsed(number: int) -> None:
    numbers = field(2, field(1, b"x") + field(2, b"\x08\x09" + field(number, bytes(9 << 20))))
    with pytest.raises(InputError, match="send them as raw content"):
        check_parts(tf_serving.PredictRequest, SPEC + numbers)
    floats = field(2, field(1, b"x") + field(2, b"\x08\x01" + field(5, bytes(9 << 20))))
    check_parts(tf_serving.PredictRequest, SPEC + floats)  # as long as their bytes, once read


def test_large_requests_are_bounded_all_together() -> None:
    go, large = threading.Event(), {"x": torch.ones(20_000, 2)}  # 160 kB

    def run(inputs: Tensors) -> Tensors:
        if len(inputs["x"]) > 1:
            go.wait(60)
        return {"y": inputs["x"][:1] + 1, "z": inputs["x"][:1]}

    with (
        serving(adding(1, run=run), max_message_bytes=170_000) as server,  # so four such
        Caller(server.address) as caller,
        ThreadPoolExecutor(12) as pool,
    ):
        try:
            asked = [pool.submit(caller.predict, "m", large) for _ in range(12)]
            first = next(as_completed(asked, timeout=60))
            code, text = refused(first.result)
            assert (code, "ask again later" in text) == ("RESOURCE_EXHAUSTED", True)
            assert torch.equal(outputs_of(caller.predict("m", {"x": X}))["y"], X + 1)
        finally:
            go.set()
        done = [one for one in asked if one.exception() is None]
        assert len(done) == 4
        assert outputs_of(caller.predict("m", large))["y"].tolist() == [[2.0, 2.0]]
