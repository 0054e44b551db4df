"""Monolith's `distribution_utils` with its names. Flags are passed as arguments.

Each function is documented where it is defined, in `hedgerow.launch` and
`hedgerow.monolith.launch`. `enable_bps` is read from the environment on access.
`_SYNC_TRAIN_INITED` is kept in `hedgerow.launch.env`.
"""

from __future__ import annotations

from ..launch import env
from ..launch.rank_info import get_mpi_local_rank, get_mpi_local_size, get_mpi_rank, get_mpi_size
from .launch.bps import bps_init
from .launch.comm_bench import bps_comm_benchmark, byteps_benchmark_a2a, byteps_benchmark_ar
from .launch.gpu_options import GpuOptions, update_session_config_for_gpu
from .launch.sync_train import get_sync_run_hooks, init_sync_train_and_update_conf, try_init_cuda
from .launch.transports import LaunchFlags, SyncTrainConfig, enable_sync_training, get_device_str

__all__ = [
    "GpuOptions",
    "LaunchFlags",
    "SyncTrainConfig",
    "bps_comm_benchmark",
    "bps_init",
    "byteps_benchmark_a2a",
    "byteps_benchmark_ar",
    "enable_sync_training",
    "get_device_str",
    "get_mpi_local_rank",
    "get_mpi_local_size",
    "get_mpi_rank",
    "get_mpi_size",
    "get_sync_run_hooks",
    "init_sync_train_and_update_conf",
    "try_init_cuda",
    "update_session_config_for_gpu",
]


def __getattr__(name: str) -> int | bool:
    """Returns the present value of one of Monolith's two module variables."""
    if name == "enable_bps":
        return int(env.switch(env.WITH_BYTEPS, env.current()))
    if name == "_SYNC_TRAIN_INITED":
        return env.sync_training.inited
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
