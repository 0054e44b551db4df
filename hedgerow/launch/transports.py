"""What carries values between processes: torch.distributed; BytePS or Horovod if installed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.errors import NotSupportedError
from . import env
from .env import Environ
from .flags import is_reference, switched_on
from .process_group import start_process_group
from .rank_info import rank_info
from .timers import OpTimers

_log = logging.getLogger(__name__)


class Transport(Protocol):
    """One way to carry values; every call is made by all processes, in the same order."""

    name: str
    timers: OpTimers

    def init(self) -> None:
        """Brings the processes together, once."""
        ...

    def rank(self) -> int:
        """This process."""
        ...

    def size(self) -> int:
        """All processes."""
        ...

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Everybody's `tensor` becomes root's."""
        ...

    def average(self, tensor: Tensor) -> Tensor:
        """The mean over all processes; may be written into `tensor`."""
        ...

    def all_to_all(self, tensor: Tensor, splits: Sequence[int], op: str = "alltoall") -> Tensor:
        """Sends `splits[i]` rows of `tensor` to process i, and gets as many from it."""
        ...

    def barrier(self) -> None:
        """Waits for all."""
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
        """This process."""
        return dist.get_rank()

    def size(self) -> int:
        """All processes."""
        return dist.get_world_size()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Everybody's `tensor` becomes root's."""
        with self.timers.timed("broadcast"):
            dist.broadcast(tensor, root)

    def average(self, tensor: Tensor) -> Tensor:
        """The mean, in place: a sum and a division, since gloo knows no mean."""
        with self.timers.timed("push_pull"):
            dist.all_reduce(tensor)
            return tensor.div_(dist.get_world_size())

    def all_to_all(self, tensor: Tensor, splits: Sequence[int], op: str = "alltoall") -> Tensor:
        """Sends and receives parts of these sizes, in the memory where `tensor` is."""
        with self.timers.timed(op):
            out, sizes = tensor.new_empty(tensor.shape), list(splits)
            dist.all_to_all_single(out, tensor, sizes, sizes)
            return out

    def barrier(self) -> None:
        """Waits for all."""
        dist.barrier()


class ModuleTransport:
    """BytePS or Horovod through its module for torch."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module = name, module
        self.timers = OpTimers()

    def init(self) -> None:
        """The module's own start."""
        self.module.init()

    def rank(self) -> int:
        """This process."""
        return int(self.module.rank())

    def size(self) -> int:
        """All processes."""
        return int(self.module.size())

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Everybody's `tensor` becomes root's."""
        with self.timers.timed("broadcast"):
            self.module.broadcast_parameters({"bucket": tensor}, root_rank=root)

    def average(self, tensor: Tensor) -> Tensor:
        """The mean over all processes."""
        with self.timers.timed("push_pull"):
            op = self.module.push_pull if self.name == "byteps" else self.module.allreduce
            return op(tensor, average=True, name="average")

    def all_to_all(self, tensor: Tensor, splits: Sequence[int], op: str = "alltoall") -> Tensor:
        """The module's op of that name; not every build has them."""
        if not hasattr(self.module, op):
            raise NotSupportedError(f"this build of {self.name} has no {op}; use torch: unset "
                                    f"{env.WITH_BYTEPS} and {env.WITH_HOROVOD}.")  # fmt: skip
        sizes = torch.tensor(splits, dtype=torch.int32)
        more = {"recv_splits": sizes} if self.name == "byteps" else {}
        with self.timers.timed(op):
            found = getattr(self.module, op)(tensor, splits=sizes, **more)
        return found[0] if isinstance(found, tuple) else found  # with the sizes that came

    def barrier(self) -> None:
        """Waits for all: a mean of one value."""
        self.average(torch.zeros(1))


def byteps() -> ModuleTransport:
    """BytePS, or ModuleNotFoundError."""
    import byteps.torch as module  # pyright: ignore[reportMissingImports]

    return ModuleTransport("byteps", module)


def horovod() -> ModuleTransport:
    """Horovod, or ModuleNotFoundError."""
    import horovod.torch as module  # pyright: ignore[reportMissingImports]

    return ModuleTransport("horovod", module)


def if_installed(name: str) -> ModuleTransport | None:
    """The one of that name, None where it is not installed.

    >>> if_installed("horovod") is None
    True
    """
    try:
        return byteps() if name == "byteps" else horovod()
    except ImportError as error:
        _log.debug("%s is not used: %s", name, error)
        return None


def asked_for(environ: Environ | None = None, transport: str = "auto") -> Transport:
    """What the environment asks for; torch where it asks for nothing, or for what is missing.

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
            _log.warning("%s asks for %s, which is not installed: torch it is", variable, name)
    return TorchTransport()


def launcher_found(environ: Environ, transport: str) -> bool:
    """Whether this process is one of a job; for the original, whether OpenMPI says so.

    >>> launcher_found({"OMPI_COMM_WORLD_LOCAL_RANK": ""}, "reference")
    True
    """
    if is_reference(transport):
        return "OMPI_COMM_WORLD_LOCAL_RANK" in environ
    return rank_info(environ=environ).launcher != "none"
