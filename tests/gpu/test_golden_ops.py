"""The vectors of the ops on a device: the same numbers as on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.golden import ops_gather, ops_ids, ops_layout, ops_reduce, ops_split  # noqa: F401  (handlers)
from tests.golden.ops_area import AREA
from tests.golden.runner import Case

# What takes CPU tensors alone; and what a device finds out only with validate=True.
_ON_THE_CPU = {"shard_fids", "fid_codec"}
CASES = [c for c in AREA.cases() if c.file not in _ON_THE_CPU and "error" not in (c.value or {})]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, device: torch.device) -> None:
    with device:  # where the handlers put what they make
        case.run()
