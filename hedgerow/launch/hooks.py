"""What runs at the start of synchronous training and after its steps."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import torch
from torch import Tensor, nn

from . import env
from .env import Environ
from .flags import LaunchFlags, is_reference, switched_on
from .sync_rules import enable_sync_training, get_device_str
from .timers import OpTimes
from .transports import TorchTransport, Transport, byteps, horovod, if_installed

_log = logging.getLogger(__name__)

TELEMETRY_STEPS = 50
_PUSH_PULLS = 3  # operations of the dense part in a report; all-to-all is told in full


class BroadcastHook:
    """Before the first step every process gets root's parameters and buffers."""

    def __init__(self, transport: Transport, root: int = 0, device: str = "") -> None:
        self.transport, self.root, self.device = transport, root, device

    @torch.no_grad()
    def on_start(self, model: nn.Module, optimizer: Any, step: int) -> None:
        """One flat bucket a dtype and device, so that many small tensors are one message."""
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
        """Nothing more."""


class TelemetryHook:
    """Every `interval` steps rank 0 logs how long the exchanges took."""

    def __init__(self, transport: Transport, interval: int = TELEMETRY_STEPS) -> None:
        self.transport, self.interval, self.last_step = transport, interval, 0

    def on_start(self, model: nn.Module, optimizer: Any, step: int) -> None:
        """Counts from here."""
        self.last_step = step

    def after_step(self, step: int, samples: int = 0) -> None:
        """All all-to-all operations and up to three others of the dense part."""
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
    """The hooks of a job that trains in step; none for one that does not.

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
