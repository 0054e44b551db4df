"""Kernels run in Triton's interpreter where there is no GPU: said before Triton is imported."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    """Where kernels run here."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
