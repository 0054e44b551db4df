"""Bytes from anybody: read or refused with a clear error, never a crash and never much memory."""

from __future__ import annotations

import random
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import DtypeError, HedgerowError, InputError
from hedgerow.core.protobuf import bytes_field
from hedgerow.wire import infer_tensors, push, rpc, tensors
from hedgerow.wire.codec import check_parts, from_bytes, to_bytes
from hedgerow.wire.messages import kserve, parameter_sync, tensor, tf_serving

SHORT, LONG = (100_000, 5.0), (100_000_000, 60.0)  # rounds and seconds, whichever is over first


def _read_tensor(data: bytes) -> None:
    tensors.to_value(from_bytes(tensor.TensorProto, data))


def _read_predict(data: bytes) -> None:
    for alias, value in from_bytes(tf_serving.PredictRequest, data).inputs.items():
        tensors.to_value(value, name=alias)


def _read_infer(data: bytes) -> None:
    infer_tensors.read_inputs(from_bytes(kserve.ModelInferRequest, data))


def _read_push(data: bytes) -> None:
    request = from_bytes(parameter_sync.PushRequest, data)
    push.to_predict(request)
    push.split_request(request, max(1, len(data) // 3))


def _read_result(data: bytes) -> None:
    push.result_json(from_bytes(parameter_sync.PushResult, data))


READERS = [_read_tensor, _read_predict, _read_infer, _read_push, _read_result]


def _read_or_refuse(read: Any, data: bytes) -> bool:
    """Whether it was read; any error but our own is a failure."""
    try:
        read(data)
    except HedgerowError:
        return False
    return True


def _seeds() -> list[tuple[Any, bytes]]:
    """Good messages of every kind, with their readers."""
    values = [torch.randn(3, 2), torch.arange(4), torch.tensor([True, False]), torch.ones(2).half()]
    words = np.array(["a", "bcd"], dtype=object)
    found = []
    for compat in (None, "typed"):
        predict = tf_serving.PredictRequest(model_spec={"name": "m"})  # type: ignore[arg-type]
        for place, value in enumerate([*values, words]):
            message = tensors.to_message(value, compat=compat)  # type: ignore[arg-type]
            found.append((_read_tensor, to_bytes(message)))
            predict.inputs[f"x{place}"].CopyFrom(message)
        found.append((_read_predict, to_bytes(predict)))
        infer = kserve.ModelInferRequest(model_name="m")
        inputs = {"x": values[0], "ids": values[1], "words": words}
        infer_tensors.write_inputs(infer, inputs, compat=compat)  # type: ignore[arg-type]
        found.append((_read_infer, to_bytes(infer)))
    request = parameter_sync.PushRequest(model_name="m")
    push.add_rows(request, "t", torch.arange(3), torch.randn(3, 2))
    result = parameter_sync.PushResult(responses=[{"target": "a:1"}])  # type: ignore[list-item]
    return [*found, (_read_push, to_bytes(request)), (_read_result, to_bytes(result))]


@given(st.sampled_from(READERS), st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(read: Any, data: bytes) -> None:
    _read_or_refuse(read, data)


@pytest.mark.parametrize("bounds", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_flipped_bytes_are_read_or_refused(bounds: tuple[int, float]) -> None:
    rounds, seconds = bounds
    chance, outcomes = random.Random(11), [0, 0]
    seeds, end = _seeds(), time.monotonic() + seconds
    for round_ in range(rounds):
        read, data = seeds[round_ % len(seeds)]
        wrong = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        if chance.random() < 0.2:
            del wrong[chance.randrange(len(wrong)) :]
        outcomes[_read_or_refuse(read, bytes(wrong))] += 1
        if time.monotonic() > end:
            break
    assert min(outcomes) > 50, outcomes  # both happen, or the loop tests nothing


def test_a_claim_of_gigabytes_costs_no_memory() -> None:
    claim = tensor.TensorProto(
        dtype=1,  # type: ignore[arg-type]
        tensor_shape={"dim": [{"size": 2**31}]},  # type: ignore[arg-type]
        float_val=[1.0],
    )
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            tensors.to_torch(claim)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tail", [b"", b"\x1a", b"\x1a\xff"])
def test_many_parts_inside_are_counted_also_where_the_end_is_cut_off(tail: bytes) -> None:
    value = bytes_field(2, b"\x42\x00" * 200_000)  # of a map's entry: so many empty strings
    data = bytes_field(2, bytes_field(1, b"x") + value) + tail
    with pytest.raises(InputError, match="more than 100000 fields"):
        check_parts(tf_serving.PredictRequest, data)


@pytest.mark.parametrize("depth", [50, 5000])
def test_a_message_inside_a_message_without_end_is_refused(depth: int) -> None:
    data = b""
    for _ in range(depth):
        data = b"\x0b" + data + b"\x0c"  # unknown groups, each inside the next
    if depth == 50:
        from_bytes(tensor.TensorProto, data)
    else:
        with pytest.raises(InputError, match=r"are no tensorflow\.TensorProto"):
            from_bytes(tensor.TensorProto, data)


@pytest.mark.parametrize("service", [rpc.PREDICTION_SERVICE, rpc.KSERVE_SERVICE])
def test_broken_requests_of_every_method_name_the_message(service: str) -> None:
    for method in rpc.methods(service).values():
        with pytest.raises(InputError, match=f"no {method.request.DESCRIPTOR.full_name}"):
            from_bytes(method.request, b"\x0a\xff")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (tf_serving.ModelSpec, "0a01ff"),
        (parameter_sync.ClientConfig, "0a01ff"),  # one text
        (parameter_sync.ClientConfig, "1a01611a01ff"),  # the second of several
        (parameter_sync.ClientConfig, "2a030a01ff"),  # a text inside
        (parameter_sync.PushRequest, "1a030a01ff"),
    ],
    ids=range(5),
)
def test_text_that_is_not_utf8_is_refused(kind: Any, data: str) -> None:
    with pytest.raises(InputError, match=kind.DESCRIPTOR.full_name):
        from_bytes(kind, bytes.fromhex(data))


def test_what_is_not_bytes_is_refused() -> None:
    with pytest.raises(DtypeError, match="data is a str; a message is read from bytes"):
        from_bytes(tensor.TensorProto, "0801")  # type: ignore[arg-type]
    assert from_bytes(tensor.TensorProto, memoryview(b"\x08\x01")).dtype == 1


def test_a_message_that_cannot_be_written_names_the_bound() -> None:
    from google.protobuf.message import EncodeError

    class TooLarge:
        DESCRIPTOR = tensor.TensorProto.DESCRIPTOR

        def SerializeToString(self, *, deterministic: bool) -> bytes:  # noqa: N802
            raise EncodeError("Failed to serialize proto")

    with pytest.raises(InputError, match="at most 2147483647 bytes: send it in parts"):
        to_bytes(TooLarge())  # type: ignore[arg-type]
