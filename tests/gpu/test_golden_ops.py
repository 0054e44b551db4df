"""The vectors of the ops on a device: the numbers of the CPU. One test a file of vectors."""

from __future__ import annotations

import pytest
import torch

from tests.golden import (  # noqa: F401  # noqa: F401
    ops_gather,
    ops_ids,
    ops_layout,
    ops_reduce,
    ops_split,
    routing_bucketize,
    routing_owners,
)
from tests.golden.ops_area import AREA
from tests.golden.routing_area import AREA as ROUTING
from tests.golden.runner import Case

# What takes CPU tensors alone; and what a device finds out only with validate=True.
_ON_THE_CPU = {"shard_fids", "fid_codec"}


def _of_devices(case: Case) -> bool:
    return case.file not in _ON_THE_CPU and "error" not in (case.value or {})


CASES = [case for case in AREA.cases() if _of_devices(case)]


@pytest.mark.parametrize("file", sorted({case.file for case in CASES}))
def test_vectors(file: str, device: torch.device) -> None:
    cases = [case for case in CASES if case.file == file]
    assert cases
    for case in cases:
        with device:  # where the handlers put what they make
            case.run()


_ROUTING = [case for case in ROUTING.cases() if case.file != "checkpoint"]


@pytest.mark.parametrize("file", sorted({case.file for case in _ROUTING}))
def test_routing_vectors(file: str, device: torch.device) -> None:
    for case in _ROUTING:
        if case.file == file:
            with device:
                case.run()
