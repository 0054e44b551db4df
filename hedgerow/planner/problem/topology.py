"""The machines of a plan: their memory, the reserve that stays free, and the budget for tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import torch

from ...core import checks
from ...core.errors import ConfigError
from ...core.units import format_bytes

GIB = 2**30
DEVICES = ("cuda", "cpu")
MOST_RANKS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Bandwidths in GiB per second from data sheets. A calibration overrides them.

    >>> round(Links().bytes_per_ms("hbm"))
    963146416
    """

    hbm: float = 897
    ddr: float = 51
    hbm_to_ddr: float = 32  # over PCIe
    intra: float = 600  # between devices of one machine
    inter: float = 12.5  # between machines

    def bytes_per_ms(self, link: str) -> float:
        """Returns the bandwidth of the named link in bytes per millisecond."""
        return getattr(self, link) * GIB / 1000


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine: its number of ranks and the host memory that they share."""

    ranks: int
    ddr: int


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory that the shards of one rank may use if all ranks carry equal shards.

    The smallest device and the smallest share of a machine's host memory decide. The share is a
    fraction, because host memory may not divide evenly.
    """

    hbm: int
    ddr_per_rank: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Ranks, devices and machines. HBM belongs to a device; host memory is shared by a machine.

    `hbm_per_device` and `ddr_per_machine` are bytes: one number for all, or a list. Machine m has
    `local_world` ranks from rank m * local_world on; the last machine may have fewer. If
    `local_world` is None, there is one machine.

    >>> pair = Topology(world=3, local_world=2, hbm_per_device=10, ddr_per_machine=[9, 6])
    >>> pair.machines
    (Machine(ranks=2, ddr=9), Machine(ranks=1, ddr=6))
    >>> pair.budget()
    Budget(hbm=10, ddr_per_rank=Fraction(9, 2))
    """

    world: int
    local_world: int | None = None
    hbm_per_device: int | Sequence[int] = 0
    ddr_per_machine: int | Sequence[int] = 0
    device: str = "cuda"
    links: Links = field(default_factory=Links)

    def __post_init__(self) -> None:
        checks.whole("Topology", "world", self.world, least=1)
        if self.world > MOST_RANKS:
            raise ConfigError(f"Topology.world is {self.world}; at most {MOST_RANKS} ranks.")
        if self.local_world is None:
            object.__setattr__(self, "local_world", self.world)
        checks.whole("Topology", "local_world", self.ranks_per_machine, least=1)
        checks.choice("Topology", "device", self.device, DEVICES)
        self._spread("hbm_per_device", self.world)
        self._spread("ddr_per_machine", -(-self.world // self.ranks_per_machine))
        if self.device == "cpu" and any(self.hbm_by_device):
            raise ConfigError(
                f"Topology.hbm_per_device is {self.hbm_per_device!r} on cpu; a world without cards "
                f"has no HBM: leave it out, or say device='cuda'."
            )

    def _spread(self, name: str, count: int) -> None:
        """Turns a list into a tuple after checking that it has `count` sizes.

        A single number stays one.
        """
        value = getattr(self, name)
        many = not isinstance(value, int)
        values = tuple(value) if many else (value,)
        if many and len(values) != count:
            raise ConfigError(
                f"Topology.{name} has {len(values)} sizes for {count}; give one for each, or a "
                f"single number for all."
            )
        for size in values:
            checks.whole("Topology", name, size, least=0)
        object.__setattr__(self, name, values if many else value)

    @property
    def ranks_per_machine(self) -> int:
        """The number of ranks per machine."""
        return self.world if self.local_world is None else self.local_world

    @property
    def hbm_by_device(self) -> tuple[int, ...]:
        """HBM bytes of each device."""
        value = self.hbm_per_device
        return (value,) * self.world if isinstance(value, int) else tuple(value)

    @property
    def machines(self) -> tuple[Machine, ...]:
        """Every machine with its ranks and host memory."""
        local, pools = self.ranks_per_machine, self.ddr_per_machine
        count = -(-self.world // local)
        sizes = (pools,) * count if isinstance(pools, int) else tuple(pools)
        ranks = [min(local, self.world - local * machine) for machine in range(count)]
        return tuple(Machine(*pair) for pair in zip(ranks, sizes, strict=True))

    def budget(self) -> Budget:
        """Returns the memory available to one rank."""
        shares = [Fraction(machine.ddr, machine.ranks) for machine in self.machines]
        return Budget(min(self.hbm_by_device), min(shares))

    @staticmethod
    def detect(
        world: int = 1, local_world: int | None = None, *, device: str | None = None
    ) -> Topology:
        """Returns `world` ranks on machines like this one. `device="cpu"` ignores GPUs."""

        return detect(world, local_world, device=device)

    def describe(self) -> str:
        """Returns a description as text.

        >>> Topology(world=8, hbm_per_device=80 * GIB, ddr_per_machine=512 * GIB).describe()
        '8 ranks on 1 machine: a card of 80.0 GiB each, 512 GiB of host memory a machine'
        """
        count = len(self.machines)
        hosts = _sizes([machine.ddr for machine in self.machines])
        cards = "no cards"
        if self.device != "cpu":
            cards = f"a card of {_sizes(self.hbm_by_device)} each"
        return (
            f"{self.world} rank{'s' * (self.world > 1)} on {count} machine{'s' * (count > 1)}: "
            f"{cards}, {hosts} of host memory a machine"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Memory that a plan leaves free: fractions of each device's HBM and machine's host memory.

    Fixed bytes are subtracted after the fractions, for example for dense parameters and input
    batches.

    >>> Reserve(hbm_bytes=5).of(Topology(world=1, hbm_per_device=100, ddr_per_machine=50)).budget()
    Budget(hbm=80, ddr_per_rank=Fraction(45, 1))
    """

    hbm_fraction: float = 0.15
    hbm_bytes: int = 0
    ddr_fraction: float = 0.10
    ddr_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("hbm_fraction", "ddr_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"Reserve.{name} is {getattr(self, name)!r}; give a share from 0 up to below 1."
                )
        for name in ("hbm_bytes", "ddr_bytes"):
            checks.whole("Reserve", name, getattr(self, name), least=0)

    def of(self, topology: Topology) -> Topology:
        """Returns the same machines with the reserve subtracted."""
        hbm = [
            _left("HBM of a device", size, self.hbm_fraction, self.hbm_bytes)
            for size in topology.hbm_by_device
        ]
        ddr = [
            _left("host memory of a machine", machine.ddr, self.ddr_fraction, self.ddr_bytes)
            for machine in topology.machines
        ]
        return Topology(
            world=topology.world,
            local_world=topology.local_world,
            hbm_per_device=[0] * topology.world if topology.device == "cpu" else hbm,
            ddr_per_machine=ddr,
            device=topology.device,
            links=topology.links,
        )


def _sizes(sizes: Sequence[int]) -> str:
    least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
    return least if least == most else f"{least} to {most}"


def _left(what: str, size: int, fraction: float, fixed: int) -> int:
    left = int((1 - fraction) * size) - fixed
    if left < 0 and size > 0:
        raise ConfigError(
            f"The reserve leaves {left:,} B of the {what}: {size:,} B less {fraction:.0%} and "
            f"{fixed:,} B; reserve less, or plan for a larger one."
        )
    return max(0, left)


_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of cgroup versions 2 and 1


def detect(
    world: int = 1,
    local_world: int | None = None,
    *,
    device: str | None = None,
    root: Path = Path("/"),
) -> Topology:
    """Returns the machines of a job of `world` ranks, assuming that all are like this one.

    Each rank has its own GPU if there are GPUs, unless `device` is "cpu". Host memory is what this
    machine or its container may use. System files are read below `root`.

    >>> detect(2, device="cpu").machines[0].ranks
    2
    """
    checks.whole("detect", "world", world, least=1)
    local = world if local_world is None else local_world
    checks.whole("detect", "local_world", local, least=1)
    cards = [] if device == "cpu" else _cards()
    device = device or ("cuda" if cards else "cpu")
    return Topology(
        world=world,
        local_world=local,
        hbm_per_device=_of_ranks(cards, world, local) if device == "cuda" else 0,
        ddr_per_machine=host_memory(root),
        device=device,
    )


def _cards() -> list[int]:
    """Returns the bytes of every visible GPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_properties(card).total_memory for card in range(count)]


def _of_ranks(cards: list[int], world: int, local: int) -> list[int]:
    """Returns the bytes of each rank's GPU.

    If one GPU is visible, every rank is assumed to have one like it, because some launchers show
    each process only its own.
    """
    needed = min(world, local)
    if len(cards) == 1:
        cards = cards * needed
    if len(cards) < needed:
        raise ConfigError(
            f"{needed} ranks of a machine need a card each, and {len(cards)} are visible; start "
            f"fewer ranks on a machine, or plan with device='cpu'."
        )
    return [cards[rank % local] for rank in range(world)]


def host_memory(root: Path = Path("/")) -> int:
    """Returns the bytes of this machine's memory, or of its container's limit if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CGROUP_LIMITS:
        path = root / "sys/fs/cgroup" / name
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)
