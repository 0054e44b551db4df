"""The addresses of a job's parameter servers, and the environment variables of its workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ConfigError
from . import env

SERVERS, KEYS = "HEDGEROW_SERVERS", "HEDGEROW_SERVER_KEYS"


@dataclass(frozen=True, slots=True)
class ServerList:
    """Server addresses in the order of shards, and the folder of keys if the servers use keys.

    >>> ServerList(("tcp://10.0.0.1:7000",)).variables
    {'HEDGEROW_SERVERS': 'tcp://10.0.0.1:7000'}
    """

    addresses: tuple[str, ...]
    keys: Path | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that a launcher sets for its processes."""
        told = {SERVERS: ",".join(self.addresses)}
        return told if self.keys is None else {**told, KEYS: str(self.keys)}


def server_list(
    servers: Sequence[str] | None = None, *, environ: env.Environ | None = None
) -> ServerList | None:
    """Returns `servers`, else those of HEDGEROW_SERVERS, else None (no servers).

    Keys from HEDGEROW_SERVER_KEYS are used only with servers from the environment.

    >>> there = {"HEDGEROW_SERVERS": "10.0.0.1:7000, 10.0.0.2:7000"}
    >>> server_list(environ=there)
    ServerList(addresses=('10.0.0.1:7000', '10.0.0.2:7000'), keys=None)
    >>> server_list(["127.0.0.1:7000"], environ=there).addresses
    ('127.0.0.1:7000',)
    """
    if servers is not None:
        if isinstance(servers, str) or not servers:
            raise ConfigError(f"servers is {servers!r}; give a list of at least one address.")
        return ServerList(tuple(servers))
    environ = env.current() if environ is None else environ
    if not env.present((SERVERS,), environ):
        return None
    text = environ[SERVERS]
    addresses = tuple(part.strip() for part in text.split(","))
    if not all(addresses):
        raise ConfigError(
            f"{SERVERS} is {text!r}; it must be addresses with commas between them, in the order "
            f"of their shards: set it, or unset it."
        )
    keys = environ.get(KEYS)
    return ServerList(addresses, Path(keys) if keys else None)


@dataclass(frozen=True, slots=True)
class ProcessAddress:
    """A place for a process: a machine (by id or name), its address, and a free port there."""

    machine: str
    host: str
    port: int


def worker_variables(spots: Sequence[ProcessAddress], servers: ServerList) -> list[dict[str, str]]:
    """Returns the environment of each worker, with torchrun's variables for rank and world size.

    >>> here, there = ProcessAddress("a", "10.0.0.1", 20000), ProcessAddress("b", "10.0.0.2", 20000)
    >>> told = worker_variables([here, there, here], ServerList(("s:1",)))
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
                "PYTHONUNBUFFERED": "1",  # so that each line is passed on when it is written
                **servers.variables,
            }
        )
        seen[spot.machine] += 1
    return told
