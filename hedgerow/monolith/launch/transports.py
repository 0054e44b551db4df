"""The flags of synchronous training, and its transports: torch.distributed, BytePS, Horovod."""

from __future__ import annotations

import logging
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.errors import HedgerowError, InputError, NotSupportedError
from ...launch import env
from ...launch.env import Environ
from ...launch.process_group import start_process_group
from ...launch.rank_info import get_mpi_rank, rank_info

AUTO, REFERENCE = "auto", "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlags:
    """Monolith's flags, passed as an argument.

    >>> LaunchFlags(enable_sync_training=True).num_ps
    0
    """

    enable_sync_training: bool = False
    enable_gpu_training: bool = False
    num_ps: int = 0
    gpu_placement_allowed: bool = False


@dataclass(slots=True, kw_only=True)
class SyncTrainConfig:
    """The settings that `init_sync_train_and_update_conf` changes after connecting.

    >>> SyncTrainConfig(uuid="job7", model_dir="/models").num_workers
    1
    """

    uuid: str = ""
    model_dir: str = ""
    merge_sync_training_ckpt: bool = False
    num_ps: int = 0
    reorder_fids_in_data_pipeline: bool = False
    index: int = 0
    num_workers: int = 1
    enable_variable_partition: bool = True


def is_reference(transport: str) -> bool:
    """Returns whether Monolith's rules apply, including its defects.

    >>> is_reference("auto"), is_reference("reference")
    (False, True)
    """
    if transport not in (AUTO, REFERENCE):
        raise InputError(f"transport is {transport!r}; it must be 'auto' or 'reference'.")
    return transport == REFERENCE


def switched_on(variable: str, environ: Environ, transport: str) -> bool:
    """Returns whether a variable is on: 1 or true. For Monolith, every number but 0.

    >>> switched_on("MONOLITH_WITH_BYTEPS", {"MONOLITH_WITH_BYTEPS": "2"}, "reference")
    True
    """
    if is_reference(transport):
        return env.whole(variable, environ, default=0) != 0
    return env.switch(variable, environ)


_KEPT = 1000  # durations kept per operation; a job runs for days


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Durations of one operation since the last report."""

    name: str
    mean_ms: float
    stdev_ms: float
    count: int


class OpTimers:
    """Collects durations by operation. Not thread-safe.

    >>> timers = OpTimers()
    >>> with timers.timed("alltoall"):
    ...     pass
    >>> [(t.name, t.count) for t in timers.take()], timers.take()
    ([('alltoall', 1)], [])
    """

    def __init__(self) -> None:
        self._times_ms: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the duration of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._times_ms[name].append(1000 * (time.perf_counter() - start))

    def take(self) -> list[OpTimes]:
        """Returns the durations of all operations since the last call, sorted by name."""
        taken, self._times_ms = self._times_ms, defaultdict(lambda: deque(maxlen=_KEPT))
        return [
            OpTimes(name, statistics.fmean(times), statistics.pstdev(times), len(times))
            for name, times in sorted(taken.items())
        ]


_log = logging.getLogger(__name__)


class Transport(Protocol):
    """Exchanges tensors between processes.

    All processes must make the same calls in the same order.
    """

    name: str
    timers: OpTimers

    def init(self) -> None:
        """Connects the processes. Called once."""
        ...

    def rank(self) -> int:
        """Returns the rank of this process."""
        ...

    def size(self) -> int:
        """Returns the number of processes."""
        ...

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replaces `tensor` on every process by that of `root`."""
        ...

    def average(self, tensor: Tensor) -> Tensor:
        """Returns the mean over all processes. It may be written into `tensor`."""
        ...

    def all_to_all(self, tensor: Tensor, splits: Sequence[int], op: str = "alltoall") -> Tensor:
        """Sends `splits[i]` rows of `tensor` to process i, and receives as many from it."""
        ...

    def barrier(self) -> None:
        """Waits for all processes."""
        ...


class TorchTransport:
    """torch.distributed: gloo on the CPU, NCCL on GPUs."""

    name = "torch"

    def __init__(self) -> None:
        self.timers = OpTimers()

    def init(self) -> None:
        """Joins the group of all processes."""
        start_process_group()

    def rank(self) -> int:
        """Returns the rank of this process."""
        return dist.get_rank()

    def size(self) -> int:
        """Returns the number of processes."""
        return dist.get_world_size()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replaces `tensor` on every process by that of `root`."""
        with self.timers.timed("broadcast"):
            dist.broadcast(tensor, root)

    def average(self, tensor: Tensor) -> Tensor:
        """Computes the mean in place as a sum and a division, because gloo has no mean."""
        with self.timers.timed("push_pull"):
            dist.all_reduce(tensor)
            return tensor.div_(dist.get_world_size())

    def all_to_all(self, tensor: Tensor, splits: Sequence[int], op: str = "alltoall") -> Tensor:
        """Sends and receives parts of these sizes on the device of `tensor`."""
        with self.timers.timed(op):
            out, sizes = tensor.new_empty(tensor.shape), list(splits)
            dist.all_to_all_single(out, tensor, sizes, sizes)
            return out

    def barrier(self) -> None:
        """Waits for all processes."""
        dist.barrier()


class ModuleTransport:
    """BytePS or Horovod, used through its torch module."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module = name, module
        self.timers = OpTimers()

    def init(self) -> None:
        """Calls the module's `init`."""
        self.module.init()

    def rank(self) -> int:
        """Returns the rank of this process."""
        return int(self.module.rank())

    def size(self) -> int:
        """Returns the number of processes."""
        return int(self.module.size())

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replaces `tensor` on every process by that of `root`."""
        with self.timers.timed("broadcast"):
            self.module.broadcast_parameters({"bucket": tensor}, root_rank=root)

    def average(self, tensor: Tensor) -> Tensor:
        """Returns the mean over all processes."""
        with self.timers.timed("push_pull"):
            op = self.module.push_pull if self.name == "byteps" else self.module.allreduce
            return op(tensor, average=True, name="average")

    def all_to_all(self, tensor: Tensor, splits: Sequence[int], op: str = "alltoall") -> Tensor:
        """Calls the module's op of that name. Not every build has it."""
        if not hasattr(self.module, op):
            raise NotSupportedError(f"this build of {self.name} has no {op}; use torch: unset "
                                    f"{env.WITH_BYTEPS} and {env.WITH_HOROVOD}.")  # fmt: skip
        sizes = torch.tensor(splits, dtype=torch.int32)
        more = {"recv_splits": sizes} if self.name == "byteps" else {}
        with self.timers.timed(op):
            found = getattr(self.module, op)(tensor, splits=sizes, **more)
        return found[0] if isinstance(found, tuple) else found  # some return the received sizes too

    def barrier(self) -> None:
        """Waits for all processes by averaging one value."""
        self.average(torch.zeros(1))


def byteps() -> ModuleTransport:
    """Returns BytePS. Raises ModuleNotFoundError if it is not installed."""
    import byteps.torch as module  # pyright: ignore[reportMissingImports]

    return ModuleTransport("byteps", module)


def horovod() -> ModuleTransport:
    """Returns Horovod. Raises ModuleNotFoundError if it is not installed."""
    import horovod.torch as module  # pyright: ignore[reportMissingImports]

    return ModuleTransport("horovod", module)


def if_installed(name: str) -> ModuleTransport | None:
    """Returns the named transport, or None if it is not installed.

    >>> if_installed("horovod") is None
    True
    """
    try:
        return byteps() if name == "byteps" else horovod()
    except ImportError as error:
        _log.debug("%s is not used: %s", name, error)
        return None


def asked_for(environ: Environ | None = None, transport: str = "auto") -> Transport:
    """Returns the transport that the environment selects, torch if none or a missing one.

    >>> asked_for({}).name
    'torch'
    """
    environ = env.current() if environ is None else environ
    for name, variable in (("byteps", env.WITH_BYTEPS), ("horovod", env.WITH_HOROVOD)):
        if switched_on(variable, environ, transport):
            if is_reference(transport):
                return byteps() if name == "byteps" else horovod()
            if (found := if_installed(name)) is not None:
                return found
            _log.warning("%s asks for %s, which is not installed: torch is used", variable, name)
    return TorchTransport()


def launcher_found(environ: Environ, transport: str) -> bool:
    """Returns whether this process belongs to a job. For Monolith, whether OpenMPI started it.

    >>> launcher_found({"OMPI_COMM_WORLD_LOCAL_RANK": ""}, "reference")
    True
    """
    if is_reference(transport):
        return "OMPI_COMM_WORLD_LOCAL_RANK" in environ
    return rank_info(environ=environ).launcher != "none"


def enable_sync_training(
    flags: LaunchFlags, *, transport: str = "auto", environ: Environ | None = None
) -> bool:
    """Returns whether the flag is on and a launcher started this process. False if that is unclear.

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
    """Returns the device in Monolith's notation, for logs. torch takes the result of `get_device`.

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
