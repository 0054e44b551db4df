"""Counts the functions of the package that one step of a module passes through."""

from __future__ import annotations

import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import hedgerow as hr

_ROOT = str(pathlib.Path(hr.__file__).parent) + "/"
T = TypeVar("T")
Functions = list[str]
BATCH = {"user": [[7], [8]], "item": [[1, 2], [3]]}


class Recorder:
    """A profile function that lists the package's functions in the order of their first call."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_ROOT):
            self.found[f"{code.co_filename[len(_ROOT) :]}:{code.co_qualname}"] = None


def functions_of(run: Callable[[], T]) -> tuple[T, Functions]:
    """What `run` returns, and the functions that it passes through, in other threads too."""
    record = Recorder()
    sys.setprofile(record)
    threading.setprofile(record)
    try:
        result = run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return result, list(record.found)


def functions_of_a_step(module: Any, batch: hr.IdBatch) -> tuple[Functions, Functions]:
    """The functions of a forward and of its backward, after two steps that prepare things."""
    for _ in range(2):
        torch.stack([v.sum() for v in module(batch).values()]).sum().backward()
    vectors, forward = functions_of(lambda: module(batch))
    loss: Any = sum(v.sum() for v in vectors.values())
    _, backward = functions_of(loss.backward)
    return forward, backward


def module() -> hr.EmbeddingBags:
    """Two tables."""
    return hr.EmbeddingBags(
        [hr.Table("user", 4), hr.Table("item", 4)], optimizer=hr.Adagrad(lr=0.1)
    )


def step_over_ranks() -> tuple[Functions, Functions]:
    """On every rank of a group: one step of a module whose rows are spread over it."""
    many = hr.distribute(module())
    assert dist.get_world_size() > 1
    torch.set_num_threads(1)
    return functions_of_a_step(many, hr.IdBatch.from_lists(BATCH))
