"""Models to start from and to copy: DLRM, DeepFM, two-tower. The door `hr.models`.

Each is one short file of plain PyTorch, takes tables as users write them, and answers
`model(dense, ids)` with one logit a sample.
"""

from __future__ import annotations

from .deepfm import DeepFM as DeepFM
from .dlrm import DLRM as DLRM
from .two_tower import TwoTower as TwoTower

__all__ = ["DLRM", "DeepFM", "TwoTower"]
