"""The vectors of the ops on a device: the numbers of the CPU. One test a case."""

from __future__ import annotations

import pytest
import torch

from tests.golden import (  # noqa: F401  (they register handlers)
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


@pytest.mark.parametrize("case", [*filter(_of_devices, AREA.cases())], ids=str)
def test_case(case: Case, device: torch.device) -> None:
    with device:  # where the handlers put what they make
        case.run()


@pytest.mark.parametrize(
    "case", [case for case in ROUTING.cases() if case.file != "checkpoint"], ids=str
)
def test_routing_case(case: Case, device: torch.device) -> None:
    with device:
        case.run()
