"""Skips this folder, aloud, where there is no GPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("NO GPU HERE: races, waiting and large tables are not tested")
