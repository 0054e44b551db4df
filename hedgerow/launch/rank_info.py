"""This process's rank in its job, from the variables of torchrun, OpenMPI, MPICH or SLURM."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from ..core.errors import ConfigError, InputError
from . import env
from .env import Environ

_log = logging.getLogger(__name__)

ALONE = "none"
# Per launcher: the variables of rank, local rank, world size and local world size.
_NAMES: dict[str, tuple[str, str, str, str]] = {
    "ompi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "mpich": ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "slurm": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
}
SOURCES = ("any", *_NAMES)
_INTERACTIVE = {"bash", "interactive"}  # names of a shell in an allocation, not of a job's process


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """The place of a process in its job; `launcher` is "none" under plain Python.

    >>> RankInfo(rank=3, local_rank=1, world_size=4, local_world_size=2, launcher="torchrun").node
    1
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launcher: str = ALONE

    def __post_init__(self) -> None:
        for part, whole in (("rank", "world_size"), ("local_rank", "local_world_size")):
            low, high = getattr(self, part), getattr(self, whole)
            if not 0 <= low < high:
                raise ConfigError(
                    f"{self.launcher} says {part} {low} of {whole} {high}; "
                    f"it must lie in 0..{whole}-1: check the variables of the launcher."
                )
        if self.local_world_size > self.world_size:
            raise ConfigError(
                f"{self.launcher} says {self.local_world_size} processes on this machine and "
                f"{self.world_size} in all: check the variables of the launcher."
            )

    @property
    def node(self) -> int:
        """The machine's number, if all machines run equally many processes."""
        return self.rank // self.local_world_size

    @property
    def one_machine(self) -> bool:
        """Whether all processes run on this machine."""
        return self.local_world_size == self.world_size


def rank_info(source: str = "any", environ: Environ | None = None) -> RankInfo:
    """Returns the rank from the first complete set: OpenMPI, torchrun, MPICH, SLURM; else alone.

    >>> env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    >>> rank_info(environ=env)
    RankInfo(rank=1, local_rank=1, world_size=2, local_world_size=2, launcher='torchrun')
    >>> rank_info(environ={}).launcher
    'none'
    """
    environ = env.current() if environ is None else environ
    readers = _readers(source)
    found = [info for read in readers if (info := read(environ)) is not None]
    names = {info.launcher: info for info in found}
    if {"ompi", "torchrun"} <= set(names):
        _must_agree(names["ompi"], names["torchrun"])
    if found:
        return found[0]
    _nothing_half_set(environ, source)
    return RankInfo()


def _readers(source: str) -> list[Callable[[Environ], RankInfo | None]]:
    by_name: dict[str, Callable[[Environ], RankInfo | None]] = {
        "ompi": _ompi,
        "torchrun": _torchrun,
        "mpich": _mpich,
        "slurm": _slurm,
    }
    if source not in SOURCES:
        raise InputError(f"source is {source!r}; it must be one of {', '.join(SOURCES)}.")
    return list(by_name.values()) if source == "any" else [by_name[source]]


def _complete(launcher: str, environ: Environ) -> RankInfo | None:
    names = _NAMES[launcher]
    if env.present(names, environ) != list(names):
        return None
    rank, local_rank, size, local_size = (env.whole(name, environ) for name in names)
    return RankInfo(
        rank=rank,
        local_rank=local_rank,
        world_size=size,
        local_world_size=local_size,
        launcher=launcher,
    )


def _ompi(environ: Environ) -> RankInfo | None:
    return _complete("ompi", environ)


def _mpich(environ: Environ) -> RankInfo | None:
    return _complete("mpich", environ)


def _torchrun(environ: Environ) -> RankInfo | None:
    """Reads torchrun's variables; RANK and WORLD_SIZE alone mean that all run on one machine."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    whole = {"LOCAL_RANK": environ["RANK"], "LOCAL_WORLD_SIZE": environ["WORLD_SIZE"]}
    if env.present(whole, environ):
        whole = {}
    return _complete("torchrun", {**whole, **environ})


def _slurm(environ: Environ) -> RankInfo | None:
    needed = ("SLURM_PROCID", "SLURM_LOCALID")
    if env.present(needed, environ) != list(needed):
        return None
    if environ.get("SLURM_JOB_NAME") in _INTERACTIVE:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    if size not in environ:
        return None
    world = env.whole(size, environ)
    return RankInfo(
        rank=env.whole("SLURM_PROCID", environ),
        local_rank=env.whole("SLURM_LOCALID", environ),
        world_size=world,
        local_world_size=_slurm_tasks_here(environ, world),
        launcher="slurm",
    )


def _slurm_tasks_here(environ: Environ, world: int) -> int:
    """Returns the number of tasks on this node, from SLURM's list such as `2(x3),1`."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if name in environ:
            counts = tasks_per_node(name, environ[name])
            node = env.whole("SLURM_NODEID", environ, default=0)
            if node >= len(counts):
                raise ConfigError(f"SLURM_NODEID is {node}, but {name} is {environ[name]!r}.")
            return counts[node]
    return min(world, env.whole("SLURM_NTASKS_PER_NODE", environ, default=world))


def tasks_per_node(name: str, text: str) -> list[int]:
    """Returns the counts of SLURM's compressed list.

    >>> tasks_per_node("SLURM_TASKS_PER_NODE", "2(x3),1")
    [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if found is None:
            raise ConfigError(f"{name} is {text!r}; it must read like '2(x3),1'.")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _must_agree(ompi: RankInfo, torchrun: RankInfo) -> None:
    if (ompi.rank, ompi.world_size) != (torchrun.rank, torchrun.world_size):
        raise ConfigError(
            f"OMPI_COMM_WORLD_RANK and _SIZE say process {ompi.rank} of {ompi.world_size}, RANK "
            f"and WORLD_SIZE say {torchrun.rank} of {torchrun.world_size}; start the job with one "
            f"launcher, or unset the variables of the other."
        )


def _nothing_half_set(environ: Environ, source: str) -> None:
    if source not in ("any", "torchrun"):
        return
    both = ("RANK", "WORLD_SIZE")
    there = env.present(both, environ)
    if len(there) == 1:
        (missing,) = set(both) - set(there)
        raise ConfigError(f"{there[0]} is set but {missing} is not; set both, or unset both.")


def one_number(which: int, default: int, source: str, environ: Environ | None) -> int:
    """Returns one variable (0 rank, 1 local rank, 2 size, 3 local size) of the first launcher set.

    >>> one_number(0, 0, "any", {"SLURM_PROCID": "4"})
    4
    """
    environ = env.current() if environ is None else environ
    if source not in SOURCES:
        raise InputError(f"source is {source!r}; it must be one of {', '.join(SOURCES)}.")
    for launcher, names in _NAMES.items():
        if source in ("any", launcher) and names[which] in environ:
            return env.whole(names[which], environ)
    wanted = _NAMES["ompi" if source == "any" else source][which]
    _log.warning("%s is not set: %d is taken", wanted, default)
    return default


def get_mpi_rank(*, source: str = "any", environ: Environ | None = None) -> int:
    """Returns the rank of this process; 0 if no launcher sets it.

    >>> get_mpi_rank(environ={"OMPI_COMM_WORLD_RANK": "5"})
    5
    """
    return one_number(0, 0, source, environ)


def get_mpi_local_rank(*, source: str = "any", environ: Environ | None = None) -> int:
    """Returns the rank among the processes of this machine; 0 if no launcher sets it.

    >>> get_mpi_local_rank(environ={"LOCAL_RANK": "1"})
    1
    """
    return one_number(1, 0, source, environ)


def get_mpi_size(*, source: str = "any", environ: Environ | None = None) -> int:
    """Returns the number of processes; 1 if no launcher sets it.

    >>> get_mpi_size(source="ompi", environ={"WORLD_SIZE": "10"})
    1
    """
    return one_number(2, 1, source, environ)


def get_mpi_local_size(*, source: str = "any", environ: Environ | None = None) -> int:
    """Returns the number of processes on this machine; 1 if no launcher sets it.

    >>> get_mpi_local_size(environ={"OMPI_COMM_WORLD_LOCAL_SIZE": "8"})
    8
    """
    return one_number(3, 1, source, environ)


def rank_zero_printer(info: RankInfo, stream: TextIO | None = None) -> Callable[..., None]:
    """Returns a function like `print` that prints and flushes in rank 0 only.

    >>> say = rank_zero_printer(RankInfo())
    >>> say("loss", 0.5)
    loss 0.5
    """

    def say(*values: object) -> None:
        if info.rank == 0:
            out = sys.stdout if stream is None else stream
            out.write(" ".join(map(str, values)) + "\n")
            out.flush()

    return say
