"""Finds out what the machines of a job have: cards, their memory, and host memory."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ...core import checks
from ...core.errors import ConfigError
from .topology import Topology

_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of version 2 and 1


def detect(
    world: int = 1,
    local_world: int | None = None,
    *,
    device: str | None = None,
    root: Path = Path("/"),
) -> Topology:
    """The machines of a job of `world` ranks, all taken to be like this one.

    Each rank has a card of its own where there are cards, unless `device` is "cpu". Host memory is
    all that this machine, or its container, may use. `root` is where system files are read.

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
    """Bytes of every card that is visible."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_properties(card).total_memory for card in range(count)]


def _of_ranks(cards: list[int], world: int, local: int) -> list[int]:
    """Bytes of each rank's card. One visible card: launchers may show each process only its own."""
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
    """Bytes of this machine's memory, or of its container's limit if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CGROUP_LIMITS:
        path = root / "sys/fs/cgroup" / name
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)
