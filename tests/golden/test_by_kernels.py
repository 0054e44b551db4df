"""The vectors of ops and routing through the kernels of a device: one test a case."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import ops_gather, ops_layout, ops_reduce, routing_bucketize  # noqa: F401 (handlers)
from .by_kernels import FILES, by_kernels
from .ops_area import AREA as OPS
from .routing_area import AREA as ROUTING
from .runner import Case

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them on the GPU")

# Layouts take the interpreter seconds each: one of each form in CI, all of them with `long`.
_SLOW = ("fused_embedding_to_layout", "fused_embedding_to_layout_requests")


def _marked(cases: list[Case]) -> list[Any]:
    seen: set[str] = set()
    found = []
    for case in cases:
        slow = case.file in _SLOW and (case.file in seen or "mixed" in str(case))
        slow = slow or str(case).endswith("published_sum")  # many rows
        seen.add(case.file if not slow else "")
        found.append(pytest.param(case, marks=pytest.mark.long) if slow else case)
    return found


_OPS = [case for case in OPS.cases() if case.file in FILES and "error" not in (case.value or {})]
_ROUTING = [case for case in ROUTING.cases() if case.file == "bucketize"]


@pytest.mark.parametrize("case", _marked([*_OPS, *_ROUTING]), ids=str)
def test_case(case: Case) -> None:
    with by_kernels():
        case.run()
