"""Whether processes train in step, and how the original names their devices."""

from __future__ import annotations

import logging

from ..core.errors import HedgerowError
from . import env
from .env import Environ
from .flags import LaunchFlags, is_reference
from .rank_info import get_mpi_rank
from .transports import launcher_found

_log = logging.getLogger(__name__)


def enable_sync_training(
    flags: LaunchFlags, *, transport: str = "auto", environ: Environ | None = None
) -> bool:
    """Whether the flag is on and a launcher started this process; False where that is unclear.

    >>> enable_sync_training(LaunchFlags(enable_sync_training=True), environ={})
    False
    """
    environ = env.current() if environ is None else environ
    try:
        return bool(flags.enable_sync_training) and launcher_found(environ, transport)
    except (HedgerowError, AttributeError) as error:
        _log.warning("synchronous training is off: %s", error)
        return False


def get_device_str(
    force_on_cpu: bool = False,
    *,
    flags: LaunchFlags,
    transport: str = "auto",
    environ: Environ | None = None,
) -> str:
    """The device as the original writes it: for logs; `get_device` is what torch takes.

    >>> get_device_str(flags=LaunchFlags(enable_gpu_training=True), environ={})
    '/device:GPU:0'
    """
    environ = env.current() if environ is None else environ
    on_gpu = not force_on_cpu and (flags.enable_gpu_training or flags.gpu_placement_allowed)
    device = f"/device:{'GPU' if on_gpu else 'CPU'}:0"
    if not enable_sync_training(flags, transport=transport, environ=environ):
        return device
    if not flags.num_ps:
        return ""
    rank = get_mpi_rank(source="ompi" if is_reference(transport) else "any", environ=environ)
    task = "chief/replica:0/task:0" if rank == 0 else f"worker/replica:0/task:{rank - 1}"
    return f"/job:{task}{device}"
