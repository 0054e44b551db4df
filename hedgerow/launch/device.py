"""The device a process works on."""

from __future__ import annotations

import torch

from ..core.errors import ConfigError
from .rank_info import RankInfo


def get_device(info: RankInfo, *, force_on_cpu: bool = False) -> torch.device:
    """`cuda:<local rank>`, or device 0 where only one is visible; without CUDA the CPU.

    >>> get_device(RankInfo(), force_on_cpu=True)
    device(type='cpu')
    """
    if force_on_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", device_index(info.local_rank, torch.cuda.device_count()))


def device_index(local_rank: int, visible: int) -> int:
    """Which of the visible devices a process takes.

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
    """The device of a process where several share one, as text for CUDA_VISIBLE_DEVICES.

    >>> get_visible_gpus(2, 1), get_visible_gpus(1, 2), get_visible_gpus(3, 2)
    ('2', '0', '1')
    """
    return str(local_rank // processes_per_gpu)
