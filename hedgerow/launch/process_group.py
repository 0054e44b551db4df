"""Brings the processes of a job together in one torch.distributed group, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..core.errors import ConfigError
from . import env
from .device import get_device
from .meeting_point import meeting_point
from .rank_info import RankInfo, rank_info

BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How processes talk: the backend, and how long one waits for the others."""

    backend: str
    timeout_s: float


def group_settings(
    backend: str | None = None,
    timeout_s: float | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    environ: env.Environ | None = None,
) -> GroupSettings:
    """Each from its argument, the config file, EMB_DIST_BACKEND or HEDGEROW_TIMEOUT_S, the default.

    A process that dies closes its connections and is noticed at once; the timeout is for machines
    that vanish without a word. It must be longer than the longest wait in a healthy job.

    >>> group_settings(timeout_s=20, environ={"EMB_DIST_BACKEND": "gloo"})
    GroupSettings(backend='gloo', timeout_s=20)
    """
    nccl = torch.cuda.is_available() and dist.is_nccl_available()
    chosen = env.choose(
        "backend",
        argument=backend,
        config=config,
        variable="EMB_DIST_BACKEND",
        environ=environ,
        default="cpu:gloo,cuda:nccl" if nccl else "gloo",
    )
    if chosen not in BACKENDS:
        raise ConfigError(
            f"the backend is {chosen!r} (argument, config file or EMB_DIST_BACKEND); it must be "
            f"one of {', '.join(BACKENDS)}."
        )
    seconds = env.choose(
        "timeout_s",
        argument=timeout_s,
        config=config,
        variable="HEDGEROW_TIMEOUT_S",
        environ=environ,
        parse=float,
        default=300.0,
    )
    if not 0 < seconds <= 86400:
        raise ConfigError(f"timeout_s is {seconds}; it must be above 0 and at most 86400 (a day).")
    return GroupSettings(backend=chosen, timeout_s=seconds)


def start_process_group(
    info: RankInfo | None = None,
    *,
    settings: GroupSettings | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> RankInfo:
    """Joins the group of all processes and takes this one's device; a second call changes nothing.

    Under plain python the group is of this process alone: the same script runs everywhere.

    >>> start_process_group()
    RankInfo(rank=0, local_rank=0, world_size=1, local_world_size=1, launcher='none')
    >>> torch.distributed.get_world_size()
    1
    >>> end_process_group()
    """
    info = info or rank_info()
    if dist.is_initialized():
        return info
    settings = settings or group_settings()
    device = get_device(info)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    common = {
        "backend": settings.backend,
        "timeout": timedelta(seconds=settings.timeout_s),
        "rank": info.rank,
        "world_size": info.world_size,
    }
    if info.world_size == 1:
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]  (opens no port)
        dist.init_process_group(store=store, **common)
        return info
    address, port = meeting_point(info, master_addr=master_addr, master_port=master_port)
    _tell_torch(info, address, port, env.current())
    dist.init_process_group(init_method=f"tcp://{_in_url(address)}:{port}", **common)
    return info


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _tell_torch(info: RankInfo, address: str, port: int, environ: MutableMapping[str, str]) -> None:
    """torch's own names, for libraries that read them; what is set stays."""
    values = {
        "RANK": info.rank,
        "WORLD_SIZE": info.world_size,
        "LOCAL_RANK": info.local_rank,
        "LOCAL_WORLD_SIZE": info.local_world_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    env.set_absent({name: str(value) for name, value in values.items()}, environ)


def end_process_group() -> None:
    """Leaves the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def process_group(**settings: Any) -> Iterator[RankInfo]:
    """`start_process_group` and, whatever happens, `end_process_group`.

    >>> with process_group() as info:
    ...     info.world_size
    1
    """
    info = start_process_group(**settings)
    try:
        yield info
    finally:
        end_process_group()
