"""Large inputs are what a parser would read, whatever the message looks like."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from hedgerow.core.errors import InputError
from hedgerow.wire import tensors
from hedgerow.wire.codec import from_bytes
from hedgerow.wire.large_inputs import read_request
from hedgerow.wire.messages.tf_serving import PredictRequest
from hedgerow.wire.predict_bytes import request_bytes

LARGE = 40_000


def whole(data: bytes) -> PredictRequest:
    """What was read, with its contents put back."""
    request, contents = read_request(data)
    for name, content in contents.items():
        request.inputs[name].tensor_content = bytes(content)
    return request


def sample(draw: random.Random) -> PredictRequest:
    request = PredictRequest(model_spec={"name": "ctr"}, output_filter=["y"])
    for name in draw.sample(["a", "b", "c", "é"], draw.randint(1, 4)):
        size = draw.choice([0, 3, LARGE, 2 * LARGE])
        compat = draw.choice([None, None, "typed"])
        tensors.fill(request.inputs[name], torch.arange(float(size)), compat=compat)
    return request


@pytest.mark.parametrize("seed", range(20))
def test_the_same_is_read(seed: int) -> None:
    request = sample(random.Random(seed))
    assert whole(request.SerializeToString()) == request


def test_an_input_that_comes_twice_is_the_last_one() -> None:
    first, second = PredictRequest(), PredictRequest()
    tensors.fill(first.inputs["a"], torch.zeros(LARGE))
    tensors.fill(second.inputs["a"], torch.ones(2))
    for one, other in ((first, second), (second, first), (first, first)):
        data = one.SerializeToString() + other.SerializeToString()
        assert whole(data) == PredictRequest.FromString(data)


def test_damaged_bytes_are_refused_as_ever() -> None:
    request = PredictRequest()
    tensors.fill(request.inputs["a"], torch.zeros(LARGE))
    data, draw = request.SerializeToString(), random.Random(1)
    for _ in range(200):
        broken = bytearray(data[: draw.choice([len(data), len(data) - 7])])
        broken[draw.randrange(40)] = draw.randrange(256)
        try:
            wanted = from_bytes(PredictRequest, bytes(broken))
        except InputError:
            with pytest.raises(InputError):
                read_request(bytes(broken))
        else:
            assert whole(bytes(broken)) == wanted


def test_what_we_write_need_not_be_copied() -> None:
    inputs = {"long_name_id": torch.arange(LARGE), "b": torch.ones(LARGE), "c": torch.ones(3)}
    data = request_bytes(PredictRequest(model_spec={"name": "ctr"}), inputs)
    request, contents = read_request(data)
    assert sorted(contents) == ["b", "long_name_id"]
    start = np.frombuffer(data, np.uint8).ctypes.data
    for content in contents.values():
        assert (np.frombuffer(content, np.uint8).ctypes.data - start) % 16 == 0
    assert torch.equal(tensors.to_torch(request.inputs["c"]), torch.ones(3))
