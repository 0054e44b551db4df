"""Where the processes of a job are, for factories whose arguments do not say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from ..core import checks
from ..core.errors import InputError
from ..launch.process_group import start_process_group
from ..launch.rank_info import rank_info
from ..nn.assemble import Configs, MakeShard, local_shards
from ..nn.distribute import own_group
from ..ps.connect import connect
from ..ps.shard import Shard
from ..sharding.exchange import Exchange


@dataclass(frozen=True, slots=True)
class _Cluster:
    ps: tuple[str, ...] = ()
    keys: Path | None = None
    exchange: Exchange | None = None
    updates: Exchange | None = None


_NOWHERE = _Cluster()
_current: ContextVar[_Cluster] = ContextVar("cluster", default=_NOWHERE)


@contextmanager
def cluster(
    servers: Mapping[str, Sequence[str]] | None = None,
    *,
    keys: Path | None = None,
    exchange: Exchange | None = None,
    updates: Exchange | None = None,
) -> Iterator[None]:
    """Factories called inside build over these servers, `{"ps": [address, ...]}`, or these ranks.

    Without servers a factory that is asked for some keeps their shards in this process; without an
    exchange the ranks are those of the launcher.

    >>> with cluster({"ps": ["10.0.0.1:7070", "10.0.0.2:7070"]}):
    ...     server_count()
    2
    """
    addresses = tuple((servers or {}).get("ps", ()))
    token = _current.set(_Cluster(addresses, keys, exchange, updates))
    try:
        yield
    finally:
        _current.reset(token)


def server_count() -> int:
    """How many servers the cluster has; 0 where none was named."""
    return len(_current.get().ps)


def connector(
    num_ps: int, make: MakeShard, configs_of: Callable[[int, Configs], Configs]
) -> Callable[[Configs, float | None, bool], Sequence[Shard]]:
    """What gives `num_ps` shards: the servers of the cluster, or tables of this process.

    Server i is given `configs_of(i, configs)`; without servers `make(i, configs)` builds shard i.
    """
    now = _current.get()
    if not now.ps:
        return local_shards(num_ps, make)
    if len(now.ps) != num_ps:
        raise InputError(f"num_ps is {num_ps}, and the cluster has {len(now.ps)} servers.")

    def over(configs: Configs, deadline_s: float | None, half: bool) -> Sequence[Shard]:
        wire = torch.float16 if half else torch.float32
        own = [configs_of(i, configs) for i in range(num_ps)]
        return connect(now.ps, own, wire=wire, deadline_s=deadline_s, keys=now.keys)

    return over


def exchanges(device: torch.device = checks.CPU) -> tuple[Exchange, Exchange]:
    """The exchanges of reads and of updates: the cluster's, or new groups of all ranks.

    What they move lies in host memory, or on `device`.
    """
    now = _current.get()
    if now.exchange is not None:
        return now.exchange, now.updates or now.exchange
    if (dist.get_world_size() if dist.is_initialized() else rank_info().world_size) == 1:
        alone = Exchange()
        return alone, alone
    start_process_group()
    return Exchange(own_group(device)), Exchange(own_group(device))
