"""Models to use or to copy: DLRM, DeepFM and two-tower. Users import `hr.models`.

Each is one short file of plain PyTorch. It takes tables as users write them, and `model(dense,
ids)` returns one logit per sample.
"""

from __future__ import annotations

from .deepfm import DeepFM as DeepFM
from .dlrm import DLRM as DLRM
from .two_tower import TwoTower as TwoTower

__all__ = ["DLRM", "DeepFM", "TwoTower"]
