"""Which factory the original's trainer calls, and with which settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core import checks
from . import distributed_ps_factory as factories


@dataclass(frozen=True, slots=True)
class Choice:
    """A factory, and what it is told beside tables and shards."""

    factory: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return self.factory.__name__ + (f"({given})" if given else "")


def trainer_choice(
    *, full_sync: bool, fused_layout: bool, native: bool = True, gpu_workers: int = 0
) -> Choice:
    """The factory of a training run: over servers, or with `full_sync` over ranks.

    A partitioned table of `fused_layout` is told `use_native_multi_hash_table` by its caller. With
    `full_sync` and tables on the GPUs of so many workers there are as many shards, and filters and
    clients are given once for each.

    >>> str(trainer_choice(full_sync=False, fused_layout=False, native=False))
    'create_multi_type_hash_table(reduce_network_packets=True)'
    """
    for name, value in (
        ("full_sync", full_sync),
        ("fused_layout", fused_layout),
        ("native", native),
    ):
        checks.flag(name, value)
    checks.count("gpu_workers", gpu_workers)
    if fused_layout and full_sync and gpu_workers:
        over = {"num_ps": gpu_workers, "enable_gpu_emb": True}
        return Choice(factories.create_partitioned_hash_table, over)
    if fused_layout:
        return Choice(factories.create_partitioned_hash_table)
    if full_sync:
        return Choice(
            factories.create_in_worker_native_multi_hash_table
            if native
            else factories.create_in_worker_multi_type_hash_table
        )
    if native:
        return Choice(factories.create_native_multi_hash_table)
    return Choice(factories.create_multi_type_hash_table, {"reduce_network_packets": True})
