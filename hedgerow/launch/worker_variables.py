"""What the environment of each worker of a job says: its rank, where ranks meet, the servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .server_list import ServerList


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a process: a machine by number or name, its address, a free port there."""

    machine: str
    host: str
    port: int


def worker_variables(spots: Sequence[Spot], servers: ServerList) -> list[dict[str, str]]:
    """Torchrun's names, so that scripts and torch know their rank; by worker.

    >>> here = Spot("a", "10.0.0.1", 20000)
    >>> told = worker_variables([here, Spot("b", "10.0.0.2", 20000), here], ServerList(("s:1",)))
    >>> [(one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for one in told]
    [('0', '0', '2'), ('1', '0', '1'), ('2', '1', '2')]
    >>> told[1]["MASTER_ADDR"], told[1]["HEDGEROW_SERVERS"]
    ('10.0.0.1', 's:1')
    """
    on_machine = Counter(spot.machine for spot in spots)
    seen: Counter[str] = Counter()
    told = []
    for rank, spot in enumerate(spots):
        told.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(spots)),
                "LOCAL_RANK": str(seen[spot.machine]),
                "LOCAL_WORLD_SIZE": str(on_machine[spot.machine]),
                "MASTER_ADDR": spots[0].host,
                "MASTER_PORT": str(spots[0].port),
                "PYTHONUNBUFFERED": "1",  # lines are passed on when they are written
                **servers.variables,
            }
        )
        seen[spot.machine] += 1
    return told
