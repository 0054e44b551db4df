"""GPU options of a process: those of Monolith's session, applied to torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...launch import env
from ...launch.env import Environ
from ...launch.process_group import device_index
from ...launch.rank_info import get_mpi_local_rank
from .transports import LaunchFlags, enable_sync_training, is_reference, switched_on

_FACTORIES = frozenset(
    {
        *(torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones),
        *(torch.rand, torch.randint, torch.randn, torch.randperm, torch.tensor, torch.zeros),
    }
)


class PinnedTensors(TorchFunctionMode):
    """Pins host tensors that torch's factory functions create, unless the call sets `pin_memory`.

    Results of other operations are unchanged. It needs CUDA and affects the thread that enters it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Adds `pin_memory=True` to calls of factory functions."""
        given = dict(kwargs or {})
        if func in _FACTORIES and _in_host_memory(given):
            given.setdefault("pin_memory", True)
        return func(*args, **given)


def _in_host_memory(given: Mapping[str, Any]) -> bool:
    device = given.get("device")
    place = torch.get_default_device() if device is None else torch.device(device)
    dense = given.get("layout") in (None, torch.strided)
    return place.type == "cpu" and dense and given.get("out") is None


def pin_new_tensors() -> None:
    """Pins new host tensors of this thread from now on. A second call has no effect."""
    if not any(isinstance(mode, PinnedTensors) for mode in _entered()):
        PinnedTensors().__enter__()


def _entered() -> list[Any]:
    from torch.overrides import _get_current_function_mode_stack

    return _get_current_function_mode_stack()


_log = logging.getLogger(__name__)
_GDR_MEMORY_FRAC = 0.4  # the network card writes directly to the other part


@dataclass(slots=True, kw_only=True)
class GpuOptions:
    """Memory and device options of this process.

    >>> GpuOptions().allow_growth
    False
    """

    allow_growth: bool = False
    per_process_gpu_memory_fraction: float = 0.0  # 0: no limit
    visible_device_list: str = ""
    force_gpu_compatible: bool = False

    def apply(self) -> None:
        """Selects the device, limits its memory, and reserves it at once unless it may grow.

        With `force_gpu_compatible`, host tensors that torch's factory functions create in this
        thread are pinned from now on. Without CUDA it does nothing.

        >>> GpuOptions(visible_device_list="0").apply() if not torch.cuda.is_available() else None
        """
        if not torch.cuda.is_available():
            return
        if self.visible_device_list:
            rank = int(self.visible_device_list)
            torch.cuda.set_device(device_index(rank, torch.cuda.device_count()))
        if self.force_gpu_compatible:
            pin_new_tensors()
        fraction = self.per_process_gpu_memory_fraction
        if fraction:
            torch.cuda.set_per_process_memory_fraction(fraction)
            if not self.allow_growth:
                _, total_bytes = torch.cuda.mem_get_info()
                # Freed memory stays in torch's caching allocator.
                torch.empty(int(total_bytes * fraction * 0.9), dtype=torch.uint8, device="cuda")


def update_session_config_for_gpu(
    cfg: GpuOptions,
    *,
    flags: LaunchFlags,
    transport: str = "auto",
    environ: Environ | None = None,
) -> None:
    """Sets the options from the environment of the job.

    >>> cfg = GpuOptions()
    >>> update_session_config_for_gpu(cfg, flags=LaunchFlags(), environ={})
    >>> cfg.allow_growth
    True
    """
    environ = env.current() if environ is None else environ
    if not enable_sync_training(flags, transport=transport, environ=environ):
        cfg.allow_growth = True
        return
    if environ.get("MONOLITH_FORCE_GPU_COMPATIBLE", "1") == "1":
        cfg.force_gpu_compatible = True
        _log.info("force_gpu_compatible is on: host memory is pinned")
    cfg.visible_device_list = _local_rank(environ, transport)
    if switched_on(env.WITH_BYTEPS, environ, transport) and uses_gdr(environ):
        _log.info("BytePS uses GDR: %g of GPU memory is taken at once", _GDR_MEMORY_FRAC)
        cfg.allow_growth = False
        cfg.per_process_gpu_memory_fraction = _GDR_MEMORY_FRAC
    else:
        cfg.allow_growth = True


def _local_rank(environ: Environ, transport: str) -> str:
    if is_reference(transport):
        return environ["OMPI_COMM_WORLD_LOCAL_RANK"]
    return str(get_mpi_local_rank(environ=environ))


def uses_gdr(environ: Environ) -> bool:
    """Returns whether BytePS lets the network card access GPU memory, forward or backward.

    >>> uses_gdr({"MONOLITH_WITH_BYTEPS_BWD_GDR": "1"})
    True
    """
    names = ("MONOLITH_WITH_BYTEPS_FWD_GDR", "MONOLITH_WITH_BYTEPS_BWD_GDR")
    return any(environ.get(name) == "1" for name in names)
