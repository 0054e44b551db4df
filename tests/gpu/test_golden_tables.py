"""The table vectors through the table on a GPU: one test a case, none left out."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tests.golden.device_cases import device_cases, run_on
from tests.golden.runner import Case


@pytest.mark.parametrize("case", device_cases(), ids=str)
def test_case(case: Case, device: torch.device) -> None:
    saves = isinstance(case.value, dict) and "saved_ids" in case.value
    if saves and find_spec("pyarrow") is None:
        pytest.skip("NO PYARROW HERE: what a save leaves out is tested elsewhere")
    run_on(device, case)
