"""Monolith's `refresh_sync_config`: which rows a sync client pushes to which servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core import checks
from ...discovery.targets import TargetInfo
from ...wire.messages import parameter_sync
from ...wire.push import config_bytes

if TYPE_CHECKING:
    from ...discovery.targets import SyncBackend


def refresh_sync_config(sync_backend: SyncBackend, ps_index: int) -> bytes:
    """Returns a ClientConfig for the replicas that a backend knows of server `ps_index` now.

    >>> from hedgerow.discovery.targets import ListedBackend
    >>> from hedgerow.discovery.targets import StaticTargets
    >>> backend = ListedBackend({"ps_1": StaticTargets(["localhost:8500"])})
    >>> b"localhost:8500" in refresh_sync_config(backend, 1)
    True
    """
    name, replicas = sync_backend.get_sync_targets(f"ps_{checks.count('ps_index', ps_index)}")
    if isinstance(replicas, Mapping):
        return config_bytes(name, {address: _extra(info) for address, info in replicas.items()})
    return config_bytes(name, replicas)


def _extra(info: Any) -> Any:
    """Returns the message with a replica's location.

    Monolith's backends already return messages.
    """
    if not isinstance(info, TargetInfo):
        return info
    extra = parameter_sync.ClientConfig.TargetExtraInfo(replica_id=info.replica_id)
    if info.idc is not None:
        extra.idc = info.idc
    if info.cluster is not None:
        extra.cluster = info.cluster
    return extra
