"""The original's `distributed_serving_ops`: predictions of models in other processes."""

from __future__ import annotations

from ..serving.remote import remote_predict as remote_predict
from ..serving.replicas import Replicas as Replicas

__all__ = ["Replicas", "remote_predict"]
