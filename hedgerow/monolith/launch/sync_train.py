"""Starts synchronous training, and provides hooks for its start and its steps."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import LaunchError
from ...launch import env
from ...launch.env import Environ, sync_training
from ...launch.rank_info import get_mpi_local_rank
from . import bps
from .transports import (
    LaunchFlags,
    OpTimes,
    SyncTrainConfig,
    TorchTransport,
    Transport,
    asked_for,
    byteps,
    enable_sync_training,
    get_device_str,
    horovod,
    if_installed,
    is_reference,
    launcher_found,
    switched_on,
)

_log = logging.getLogger(__name__)
Changing = MutableMapping[str, str]


def try_init_cuda(
    *, flags: LaunchFlags, transport: str = "auto", environ: Changing | None = None
) -> None:
    """Gives each process of a job its own GPU, and starts the transport for synchronous training.

    With `transport="reference"` all errors are logged, not raised, as in Monolith.
    """
    environ = env.current() if environ is None else environ
    if not is_reference(transport):
        _init_cuda(flags, transport, environ)
        return
    try:
        _init_cuda(flags, transport, environ)
    except Exception as error:
        _log.info("no CUDA or transport is set up: %s", error)


def _init_cuda(flags: LaunchFlags, transport: str, environ: Changing) -> None:
    in_job = launcher_found(environ, transport)
    if in_job and "CUDA_VISIBLE_DEVICES" not in environ:
        source = "ompi" if is_reference(transport) else "any"
        environ["CUDA_VISIBLE_DEVICES"] = str(get_mpi_local_rank(source=source, environ=environ))
        environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if not in_job or sync_training.inited or not flags.enable_sync_training:
        return
    chosen = asked_for(environ, transport)
    if is_reference(transport) and chosen.name == "torch":
        raise LaunchError(f"set {env.WITH_BYTEPS} or {env.WITH_HOROVOD} to 1.")
    chosen.init()
    sync_training.inited = True


def init_sync_train_and_update_conf(
    conf: SyncTrainConfig,
    *,
    transport: str = "auto",
    environ: Changing | None = None,
    address_of: Callable[[str], str] = bps.interface_address,
) -> None:
    """Starts the transport once, and writes rank and size of this process to the config.

    Uses BytePS if MONOLITH_WITH_BYTEPS is set, else Horovod if it is installed, else
    torch.distributed. With `transport="reference"` it follows Monolith: the config is unchanged if
    a library is missing, and BytePS alone does not mark training as started.
    """
    environ = env.current() if environ is None else environ
    with_byteps = switched_on(env.WITH_BYTEPS, environ, transport)
    shared = with_byteps and _shared(environ)
    _log.info("entering synchronous training of job %r", conf.uuid)
    if not is_reference(transport):
        _tell(conf, _start(conf, with_byteps and not shared, with_byteps, environ, address_of))
        return
    try:
        chosen = _start_as_monolith(conf, with_byteps, shared, environ, address_of)
    except ImportError as error:
        _log.warning("synchronous training is not set up: %s", error)
        return
    _tell(conf, chosen)


def _shared(environ: Changing) -> bool:
    """Returns whether Horovod does a part of the work instead of BytePS."""
    names = ("MONOLITH_WITH_BYTEPS_BCAST", "MONOLITH_WITH_BYTEPS_ALLREDUCE")
    return any(env.whole(name, environ, default=1) == 0 for name in names)


def _start(
    conf: SyncTrainConfig,
    byteps_alone: bool,
    with_byteps: bool,
    environ: Changing,
    address_of: Callable[[str], str],
) -> Transport:
    """Starts the transports.

    All libraries are looked up first, so a missing one leaves nothing started.
    """
    first = if_installed("byteps") if with_byteps else None
    if with_byteps and first is None:
        _log.warning("%s asks for BytePS, which is not installed", env.WITH_BYTEPS)
    chosen: Transport = (first if byteps_alone else if_installed("horovod")) or TorchTransport()
    if sync_training.inited:
        return chosen
    if first is not None:
        bps.bps_init(conf.uuid, environ=environ, address_of=address_of)
    if chosen is not first:
        chosen.init()
    sync_training.inited = True
    _own_folder(conf, chosen)
    return chosen


def _start_as_monolith(
    conf: SyncTrainConfig,
    with_byteps: bool,
    shared: bool,
    environ: Changing,
    address_of: Callable[[str], str],
) -> Transport:
    chosen = byteps() if with_byteps else horovod()
    if with_byteps:
        if not sync_training.inited:
            bps.bps_init(conf.uuid, transport="reference", environ=environ, address_of=address_of)
        if not shared:
            return chosen
        chosen = horovod()
    if not sync_training.inited:
        chosen.init()
        sync_training.inited = True
        _own_folder(conf, chosen)
    return chosen


def _own_folder(conf: SyncTrainConfig, chosen: Transport) -> None:
    if not conf.merge_sync_training_ckpt:
        conf.model_dir = os.path.join(conf.model_dir, conf.uuid, f"index-{chosen.rank():04d}")


def _tell(conf: SyncTrainConfig, chosen: Transport) -> None:
    _log.info(
        "synchronous training over %s: rank %d of %d", chosen.name, chosen.rank(), chosen.size()
    )
    conf.num_ps = 0
    conf.reorder_fids_in_data_pipeline = True
    conf.index = chosen.rank()
    conf.num_workers = chosen.size()
    conf.enable_variable_partition = False


TELEMETRY_STEPS = 50
_PUSH_PULLS = 3  # dense operations per report; all all-to-all operations are reported


class BroadcastHook:
    """Copies the root's parameters and buffers to every process before the first step."""

    def __init__(self, transport: Transport, root: int = 0, device: str = "") -> None:
        self.transport, self.root, self.device = transport, root, device

    @torch.no_grad()
    def on_start(self, model: nn.Module, optimizer: Any, step: int) -> None:
        """Broadcasts one flat bucket per dtype and device, so small tensors share a message."""
        tensors = [*model.parameters(), *model.buffers()]
        kinds = dict.fromkeys((t.dtype, t.device) for t in tensors)
        for kind in kinds:
            self._broadcast([t for t in tensors if (t.dtype, t.device) == kind])

    def _broadcast(self, tensors: list[Tensor]) -> None:
        bucket = torch.cat([t.detach().reshape(-1) for t in tensors])
        self.transport.broadcast(bucket, self.root)
        ends = list(itertools.accumulate(t.numel() for t in tensors))
        for tensor, end in zip(tensors, ends, strict=True):
            tensor.copy_(bucket[end - tensor.numel() : end].view_as(tensor))

    def after_step(self, step: int, samples: int = 0) -> None:
        """Does nothing."""


class TelemetryHook:
    """Logs the durations of exchanges on rank 0 every `interval` steps."""

    def __init__(self, transport: Transport, interval: int = TELEMETRY_STEPS) -> None:
        self.transport, self.interval, self.last_step = transport, interval, 0

    def on_start(self, model: nn.Module, optimizer: Any, step: int) -> None:
        """Starts counting at this step."""
        self.last_step = step

    def after_step(self, step: int, samples: int = 0) -> None:
        """Logs all all-to-all operations and up to three dense operations."""
        if step <= self.last_step + self.interval:
            return
        self.last_step = step
        times = self.transport.timers.take()
        if self.transport.rank() != 0:
            return
        pulls = [t for t in times if t.name.startswith("push_pull")][:_PUSH_PULLS]
        for op in [*(t for t in times if t.name.startswith("alltoall")), *pulls]:
            _log.info(_line(step, op))


def _line(step: int, op: OpTimes) -> str:
    return (
        f"step {step}: {op.name} mean {op.mean_ms:.3f} ms, stdev {op.stdev_ms:.3f} ms, "
        f"count {op.count}"
    )


def get_sync_run_hooks(
    is_full_sync: bool = False,
    *,
    flags: LaunchFlags,
    transport: str = "auto",
    environ: Environ | None = None,
) -> list[BroadcastHook | TelemetryHook]:
    """Returns the hooks of a job with synchronous training; none otherwise.

    `hedgerow.train.loop.Trainer` calls them: `Trainer(..., hooks=get_sync_run_hooks(flags=flags))`.

    >>> get_sync_run_hooks(flags=LaunchFlags(), environ={})
    []
    """
    environ = env.current() if environ is None else environ
    if not enable_sync_training(flags, transport=transport, environ=environ):
        return []
    with_byteps = switched_on(env.WITH_BYTEPS, environ, transport)
    bcast = env.whole("MONOLITH_WITH_BYTEPS_BCAST", environ, default=1)
    if with_byteps and bcast == -1:
        return []
    chosen = _carrier(with_byteps and bcast != 0, transport)
    device = get_device_str(flags=flags, transport=transport, environ=environ)
    if chosen.name == "byteps":
        _log.info("BytePS broadcast is enabled: rank 0 gives all others its weights")
    hooks: list[BroadcastHook | TelemetryHook] = [BroadcastHook(chosen, 0, device)]
    if is_full_sync and chosen.name != "horovod":
        hooks.append(TelemetryHook(chosen))
    return hooks


def _carrier(with_byteps: bool, transport: str) -> Transport:
    if is_reference(transport):
        return byteps() if with_byteps else horovod()
    found = if_installed("byteps" if with_byteps else "horovod")
    return found or TorchTransport()
