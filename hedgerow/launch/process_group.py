"""Joins the processes of a job in one torch.distributed group, each with its device."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..core.errors import ConfigError
from . import env
from .env import Environ
from .rank_info import RankInfo, rank_info

# Below Linux' ports for outgoing connections (32768..60999), above the well-known ports.
_FIRST_PORT, _PORTS = 15000, 15000
_JOB_NAMES = (
    *("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID"),
)


def meeting_point(
    info: RankInfo,
    *,
    master_addr: str | None = None,
    master_port: int | None = None,
    environ: Environ | None = None,
) -> tuple[str, int]:
    """Returns rank 0's address and port: arguments, MASTER_ADDR and MASTER_PORT, or the launcher's.

    >>> info = RankInfo(rank=0, world_size=2, local_world_size=2, launcher="ompi")
    >>> meeting_point(info, environ={"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    ('10.0.0.1', 29500)
    >>> meeting_point(info, environ={"PMIX_NAMESPACE": "1589"})[0]
    '127.0.0.1'
    """
    environ = env.current() if environ is None else environ
    address = env.choose(
        "master_addr", argument=master_addr, variable="MASTER_ADDR", environ=environ, default=""
    )
    port = env.choose(
        "master_port",
        argument=master_port,
        variable="MASTER_PORT",
        environ=environ,
        parse=int,
        default=0,
    )
    return address or _implied_address(info, environ), port or _implied_port(info, environ)


def _implied_address(info: RankInfo, environ: Environ) -> str:
    if info.one_machine:
        return "127.0.0.1"
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if info.launcher == "slurm" and nodes:
        return first_host(nodes)
    raise ConfigError(
        f"{info.world_size} processes, {info.local_world_size} of them here: "
        f"{info.launcher} does not report rank 0's machine; set MASTER_ADDR to its name for every "
        f"process (mpirun -x MASTER_ADDR=host)."
    )


def _implied_port(info: RankInfo, environ: Environ) -> int:
    """Returns a port that is the same in every process of a job, and differs between jobs."""
    job = ".".join(environ[name] for name in _JOB_NAMES if name in environ)
    if not job:
        raise ConfigError(
            f"{info.launcher} gives the job no number to derive a port from; set MASTER_PORT to "
            f"a free port for every process."
        )
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS


def first_host(nodes: str) -> str:
    """Returns the first machine in SLURM's compressed list.

    >>> first_host("gpu[07-09,12],login"), first_host("a,b")
    ('gpu07', 'a')
    """
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if found is None:
        raise ConfigError(f"the list of machines is {nodes!r}; it must read like 'gpu[07-09]'.")
    return "".join(part or "" for part in found.groups())


def get_device(info: RankInfo, *, force_on_cpu: bool = False) -> torch.device:
    """Returns `cuda:<local rank>`, or device 0 if only one is visible; the CPU without CUDA.

    >>> get_device(RankInfo(), force_on_cpu=True)
    device(type='cpu')
    """
    if force_on_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", device_index(info.local_rank, torch.cuda.device_count()))


def device_index(local_rank: int, visible: int) -> int:
    """Returns the index of a process's device among the visible ones.

    >>> device_index(3, 8), device_index(3, 1)  # narrowed to one by CUDA_VISIBLE_DEVICES
    (3, 0)
    """
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise ConfigError(
            f"local rank {local_rank} has no device: {visible} are visible; start at most "
            f"{visible} processes on this machine."
        )
    return local_rank


def get_visible_gpus(local_rank: int, processes_per_gpu: int = 1) -> str:
    """Returns a process's device for CUDA_VISIBLE_DEVICES if several processes share a device.

    >>> get_visible_gpus(2, 1), get_visible_gpus(1, 2), get_visible_gpus(3, 2)
    ('2', '0', '1')
    """
    return str(local_rank // processes_per_gpu)


BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The backend of a group, and how long a process waits for the others."""

    backend: str
    timeout_s: float


def group_settings(
    backend: str | None = None,
    timeout_s: float | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    environ: env.Environ | None = None,
) -> GroupSettings:
    """Returns the settings: from arguments, config file, environment variables, or defaults.

    The variables are EMB_DIST_BACKEND and HEDGEROW_TIMEOUT_S. A process that dies closes its
    connections, which is noticed at once. The timeout is for machines that disappear without
    closing them. It must be longer than the longest wait in a healthy job.

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
    """Joins the group of all processes and sets the device; has no effect if already joined.

    Under plain Python the group has only this process, so the same script also runs alone.

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
    """Sets torch's own variables for libraries that read them; does not change set ones."""
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
    """Leaves the group if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def process_group(**settings: Any) -> Iterator[RankInfo]:
    """Joins the group inside the `with` block; see start_process_group().

    >>> with process_group() as info:
    ...     info.world_size
    1
    """
    info = start_process_group(**settings)
    try:
        yield info
    finally:
        end_process_group()
