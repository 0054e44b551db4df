"""What the tests of sync share: a trainer's tables, a replica's model over empty ones, servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep

import torch
from torch import Tensor

import hedgerow as hr
from hedgerow.routing.router import Router
from hedgerow.serving.live_model import LiveModel
from hedgerow.serving.model import Model
from hedgerow.serving.registry import Registry
from hedgerow.serving.row_signatures import multi_name, row_signatures
from hedgerow.serving.server import PredictionServer
from hedgerow.tables.host import HostTable
from hedgerow.tables.multi.host_tables import HostTables

DIMS = {"item": 3, "user": 2}


def trainer_tables() -> list[HostTable]:
    """Empty tables that learn."""
    return [
        HostTable(hr.TableConfig(name, (hr.Segment(dim, hr.Zeros(), hr.Sgd(lr=0.1)),)))
        for name, dim in DIMS.items()
    ]


class Served:
    """Empty tables behind a server, as a replica has them; `load` is what a restart does."""

    def __init__(self, shard: int = 0, routers: dict[str, Router] | None = None) -> None:
        self._place = {"shard": shard, "routers": routers}
        self.registry = Registry(accept_pushes=True)
        self.version = 0
        self.load()

    def load(self) -> None:
        """A new version, without rows."""
        configs = {
            name: hr.TableConfig(name, (hr.Segment(dim, compressor=hr.Fp32()),), serving=True)
            for name, dim in DIMS.items()
        }
        self.version += 1
        self.store = HostTables(configs)
        self.followed = LiveModel(self.store, **self._place)  # type: ignore[arg-type]
        signatures = row_signatures(self.store, multi_name(0), self.followed.stamp)
        model = Model("ps_0", self.version, self.followed.guarded(signatures))
        self.registry.add(
            Model(model.name, model.version, model.signatures, followed=self.followed)
        )
        self.registry.remove("ps_0", self.version - 1) if self.version > 1 else None


@contextmanager
def served(address: str = "127.0.0.1:0") -> Iterator[tuple[Served, str]]:
    """A replica and its address."""
    one = Served()
    with PredictionServer(one.registry, address) as server:
        yield one, server.address


def rows_of(tables: Sequence[HostTable]) -> dict[str, dict[int, tuple[float, ...]]]:
    """All rows, by table and id."""
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    for table in tables:
        rows = found.setdefault(table.config.name, {})
        for entries in table.scan():
            for key, row in zip(entries.ids.tolist(), entries.rows.tolist(), strict=True):
                rows[key] = tuple(row)
    return found


def train(tables: Sequence[HostTable], ids: Tensor, value: float = 1.0) -> None:
    """One update of these ids in every table."""
    for table in tables:
        table.apply_gradients(ids, torch.full((len(ids), table.layout.dim), value))


def wait_for(what: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Waits until something is so; fails the test if it never is."""
    end_s = monotonic() + timeout_s
    while not what():
        assert monotonic() < end_s, "waited in vain"
        sleep(0.005)
