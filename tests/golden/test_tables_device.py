"""The table vectors through the table on a device, in Triton's interpreter: one test a case.

A sample runs always: the first case of every rule, and a few others. tests/gpu runs all on a GPU.
"""

from __future__ import annotations

import pytest
import torch

from .device_cases import LEARNS, device_cases, run_on
from .runner import Case

MANY_CALLS = 500  # an hour in the interpreter; a GPU does them in seconds
CASES = [
    case
    for case in device_cases()
    if not isinstance(case.value, dict) or case.value.get("inserted", 0) < MANY_CALLS
]


def _kind(case: Case) -> str | None:
    """What a sample needs one of; None: nothing."""
    if case.file in ("optimizers", "torch_optimizers") and case.section == "cases":
        return case.value["optimizer"].lower()
    return case.file if case.file in ("tables", "quirks", "eviction") else None


def _sample() -> set[str]:
    """The first case of each kind."""
    first: dict[str | None, str] = {}
    for case in CASES:
        first.setdefault(_kind(case), str(case))
    return {name for kind, name in first.items() if kind is not None}


SAMPLE = _sample()


def _marked(case: Case) -> object:
    marks = () if str(case) in SAMPLE else (pytest.mark.long,)
    return pytest.param(case, id=str(case), marks=marks)


def test_every_rule_has_a_case() -> None:
    seen = {case.value.get("optimizer") for case in CASES if isinstance(case.value, dict)}
    assert seen >= LEARNS - {"Ftrl"}  # torch has none, so only Monolith's is in the vectors
    assert len(CASES) > 90


@pytest.mark.parametrize("case", [_marked(case) for case in CASES])
def test_case(case: Case, device: torch.device) -> None:
    run_on(device, case)
