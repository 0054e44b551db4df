"""How a process uses its GPU: the options of Monolith's session, applied to torch."""

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
    """Tensors that torch's factories make in host memory are pinned, unless the call decides.

    Results of other operations are as always. It needs CUDA, and holds for the thread that
    enters it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Adds `pin_memory=True` to the calls of factories."""
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
    """Pins from now on in this thread; a second call changes nothing."""
    if not any(isinstance(mode, PinnedTensors) for mode in _entered()):
        PinnedTensors().__enter__()


def _entered() -> list[Any]:
    from torch.overrides import _get_current_function_mode_stack

    return _get_current_function_mode_stack()


_log = logging.getLogger(__name__)
_GDR_MEMORY_FRAC = 0.4  # the rest is for the network card, which writes into GPU memory itself


@dataclass(slots=True, kw_only=True)
class GpuOptions:
    """Memory and device of this process.

    >>> GpuOptions().allow_growth
    False
    """

    allow_growth: bool = False
    per_process_gpu_memory_fraction: float = 0.0  # 0: no limit
    visible_device_list: str = ""
    force_gpu_compatible: bool = False

    def apply(self) -> None:
        """Chooses the device, limits memory, and takes it at once unless it may grow.

        With `force_gpu_compatible` tensors that torch's factories make in host memory are pinned
        from now on, in this thread. Without CUDA nothing happens.

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
                # Allocated and given back to torch's own store, which keeps it.
                torch.empty(int(total_bytes * fraction * 0.9), dtype=torch.uint8, device="cuda")


def update_session_config_for_gpu(
    cfg: GpuOptions,
    *,
    flags: LaunchFlags,
    transport: str = "auto",
    environ: Environ | None = None,
) -> None:
    """Sets the options as the environment of the job says.

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
    """Whether BytePS lets the network card read or write GPU memory, forward or backward.

    >>> uses_gdr({"MONOLITH_WITH_BYTEPS_BWD_GDR": "1"})
    True
    """
    names = ("MONOLITH_WITH_BYTEPS_FWD_GDR", "MONOLITH_WITH_BYTEPS_BWD_GDR")
    return any(environ.get(name) == "1" for name in names)
