"""The original's `distributed_serving_ops`: predictions of models in other processes."""

from __future__ import annotations

from ..serving.remote import remote_predict as remote_predict
from ..serving.replicas import Replicas as Replicas
from .sync_config import refresh_sync_config as refresh_sync_config

__all__ = ["Replicas", "refresh_sync_config", "remote_predict"]
