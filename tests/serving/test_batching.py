"""Requests that come together run together, and each gets its own rows."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from hedgerow.core.errors import ConfigError, InputError
from hedgerow.serving.batching import Batcher, Batching
from hedgerow.serving.model import Joining, Model, Signature, TensorSpec
from hedgerow.serving.registry import Registry
from hedgerow.serving.request_context import shortest_s, within

TIMEOUT_S = 60
DOUBLED = Joining("x", {"y": "samples"})


class _Held:
    """A run that keeps its first call until it is let go, and notes how many rows came."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def __call__(self, inputs: Any) -> Any:
        self.rows.append(len(inputs["x"]))
        if not self.began.is_set():
            self.began.set()
            assert self.go_on.wait(TIMEOUT_S)
        if (inputs["x"] < 0).any():
            raise InputError("a negative value")
        return {"y": inputs["x"] * 2}


def _together(batcher: Batcher, held: _Held, values: list[torch.Tensor]) -> list[Any]:
    """One request that is running, and the others that come meanwhile."""
    with ThreadPoolExecutor(len(values) + 1) as pool:
        first = pool.submit(batcher, {"x": torch.zeros(1)})
        assert held.began.wait(TIMEOUT_S)
        others = [pool.submit(batcher, {"x": value}) for value in values]
        try:
            found = [other.exception(TIMEOUT_S) or other.result() for other in others]
        finally:
            held.go_on.set()
        assert first.result(TIMEOUT_S)["y"].tolist() == [0]
    return found


def test_requests_that_come_while_one_runs_are_joined() -> None:
    held = _Held()
    values = [torch.full((n,), float(n)) for n in (1, 2, 3)]
    found = _together(Batcher(held, DOUBLED, Batching(10.0, 6)), held, values)
    assert held.rows == [1, 6]  # full, so it did not wait for the window
    for value, outputs in zip(values, found, strict=True):
        assert torch.equal(outputs["y"], value * 2)


def test_a_wrong_request_spoils_no_other() -> None:
    held = _Held()
    values = [torch.tensor([1.0]), torch.tensor([-1.0]), torch.tensor([3.0])]
    good, bad, other = _together(Batcher(held, DOUBLED, Batching(10.0, 3)), held, values)
    assert isinstance(bad, InputError)
    assert (good["y"].tolist(), other["y"].tolist()) == ([2.0], [6.0])


def test_a_request_without_time_spoils_no_other() -> None:
    held = _Held()

    def run(inputs: Any) -> Any:
        outputs = held(inputs)
        if shortest_s(TIMEOUT_S) <= 0:
            raise InputError("no time left")
        return outputs

    batcher = Batcher(run, DOUBLED, Batching(10.0, 2))

    def ask(seconds: float) -> Any:
        with within(seconds):
            return batcher({"x": torch.ones(1)})

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(ask, TIMEOUT_S)
        assert held.began.wait(TIMEOUT_S)
        leads = pool.submit(ask, 0)
        while not batcher._open:  # it waits for another, whose run it leads
            time.sleep(0.001)
        other = pool.submit(ask, TIMEOUT_S)
        assert other.result(TIMEOUT_S)["y"].tolist() == [2]
        assert isinstance(leads.exception(TIMEOUT_S), InputError)
        held.go_on.set()
        first.result(TIMEOUT_S)


def test_other_shapes_run_apart() -> None:
    held = _Held()
    values = [torch.ones(2, 3), torch.ones(2, 4)]
    found = _together(Batcher(held, DOUBLED, Batching(0.01, 100)), held, values)
    assert [tuple(outputs["y"].shape) for outputs in found] == [(2, 3), (2, 4)]
    assert sorted(held.rows) == [1, 2, 2]


def test_a_request_alone_does_not_wait() -> None:
    batcher = Batcher(lambda inputs: {"y": inputs["x"]}, DOUBLED, Batching(10.0))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (batcher({"x": torch.ones(1)}), done.set()))
    thread.start()
    assert done.wait(9)
    thread.join()


def test_outputs_without_a_row_for_each_input_run_alone() -> None:
    held = _Held()

    def total(inputs: Any) -> Any:
        return {"y": held(inputs)["y"].sum()[None]}

    values = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    found = _together(Batcher(total, DOUBLED, Batching(10.0, 3)), held, values)
    assert [outputs["y"].tolist() for outputs in found] == [[6.0], [6.0]]


def test_a_registry_joins_only_what_allows_it() -> None:
    spec = TensorSpec(torch.float32, (None,))

    def run(inputs: Any) -> Any:
        return {"y": inputs["x"]}

    signatures = {
        key: Signature({"x": spec}, {"y": spec}, run, DOUBLED if key == "joined" else None)
        for key in ("joined", "alone")
    }
    for batching, expected in ((Batching(), True), (None, False)):
        registry = Registry(batching=batching)
        registry.add(Model("m", 1, signatures))
        with registry.find("m") as model:
            assert isinstance(model.signatures["joined"].run, Batcher) == expected
            assert not isinstance(model.signatures["alone"].run, Batcher)


def test_a_window_that_is_none() -> None:
    with pytest.raises(ConfigError, match="window_s"):
        Batching(window_s=-1)
