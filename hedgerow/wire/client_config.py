"""The bytes that tell a sync client what to push where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .codec import from_bytes, to_bytes
from .messages import parameter_sync

if TYPE_CHECKING:
    from .messages.parameter_sync import ClientConfig

    Replicas = Sequence[str] | Mapping[str, ClientConfig.TargetExtraInfo]

ASSIGN_SIGNATURE = "hashtable_assign"
TIMEOUT_MS = 3000


def config_bytes(model_name: str, replicas: Replicas) -> bytes:
    """A refreshed configuration: addresses alone, or addresses with where each stands.

    >>> config_bytes("ps_1", ["localhost:8500"]).hex()
    '0a0470735f311210686173687461626c655f61737369676e1a0e6c6f63616c686f73743a3835303020b817'
    """
    config = parameter_sync.ClientConfig(
        model_name=model_name,
        signature_name=ASSIGN_SIGNATURE,
        targets=list(replicas),
        timeout_in_ms=TIMEOUT_MS,
    )
    if isinstance(replicas, Mapping):
        config.targets_extra_info.extend(replicas.values())
    return to_bytes(config)


def read_config(data: bytes) -> ClientConfig:
    """The configuration in these bytes; empty ones are a configuration without targets.

    >>> read_config(b"").timeout_in_ms
    1000
    """
    return from_bytes(parameter_sync.ClientConfig, data)
