"""How old what replicas answer with is while a trainer changes many rows, and what that costs."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.nn.embedding_modules import servers_of
from hedgerow.sync.publisher import Publisher
from hedgerow.tables.store import TableKeys

from ..ps.servers import ServerProcess
from .child import Child
from .processes import asker, bundle_replica, fresh_bags
from .replicas import DIMS

ROWS_A_SECOND, TICK_S, PROBE = 20_000, 0.05, -1
ASKS_A_SECOND = 50.0


class Writer(threading.Thread):
    """Changes so many rows a second, and writes the time into one; it tells how many it did."""

    def __init__(self, model: hr.EmbeddingBags) -> None:
        super().__init__(daemon=True)
        self._model, self.rows, self.ending = model, 0, threading.Event()

    def run(self) -> None:
        draw = torch.Generator().manual_seed(3)
        each = int(ROWS_A_SECOND * TICK_S) // len(DIMS)
        due_s = time.monotonic()
        while not self.ending.wait(max(0.0, due_s - time.monotonic())):
            ids = torch.cat(
                [torch.randperm(200_000, generator=draw)[:each] for _ in range(len(DIMS))]
            )
            keys = TableKeys(ids, (0, each, 2 * each))
            floats = sum(each * dim for dim in DIMS.values())
            self._model.store.apply_gradients(keys, torch.full((floats,), 0.1))
            self.stamp()
            self.rows += len(ids)
            due_s += TICK_S

    def stamp(self) -> None:
        """Writes the time, which a float32 holds only in two parts."""
        tens, rest = divmod(time.monotonic(), 100.0)
        rows = torch.cat([torch.zeros(DIMS["item"]), torch.tensor([rest, tens])])
        keys = TableKeys(torch.tensor([PROBE, PROBE]), (0, 1, 2))
        self._model.store.assign(keys, rows)


@dataclass
class Here:
    """A trainer on two servers, two replicas, a publisher between them, and who asks a replica."""

    model: hr.EmbeddingBags
    publisher: Publisher
    replicas: list[Child]
    asker: Child


@contextmanager
def served_and_trained(folder: Path) -> Iterator[Here]:
    example = hr.IdBatch.from_lists({name: [[1], [2]] for name in DIMS})
    hr.serving.export(fresh_bags(), folder, example=example, version=1)
    with ExitStack() as stack:
        servers = [ServerProcess(i, 2) for i in range(2)]
        for server in servers:
            stack.callback(server.reap)
        model = hr.distribute(fresh_bags(), servers=[one.address for one in servers])
        group = servers_of(model)
        assert group is not None
        stack.callback(group.close)
        children = [Child(bundle_replica, str(folder)) for _ in range(2)]
        children.append(Child(asker, children[0].told, PROBE, ASKS_A_SECOND))
        for child in children:
            stack.callback(child.reap)
        *replicas, client = children
        publisher = hr.publish(model, [one.told for one in replicas], every="200ms")
        with publisher:
            yield Here(model, publisher, replicas, client)  # type: ignore[arg-type]


def measured(here: Here, seconds: float) -> dict[str, Any]:
    """Rows changed in a second, how old answers were, and how long they took: without, and with."""
    writer = Writer(here.model)
    writer.stamp()
    assert here.publisher.flush()
    alone, _ = here.asker.ask("ask", seconds / 2)
    writer.start()
    here.asker.ask("ask", 0.5)
    before = writer.rows
    during, ages = here.asker.ask("ask", seconds)
    changed = writer.rows - before
    told = [one.ask("status")["models"][0]["shards"] for one in here.replicas]
    writer.ending.set()
    writer.join()
    assert here.publisher.flush()
    p50, p99 = ([float(np.percentile(x, p)) for x in (alone, during)] for p in (50, 99))
    return {
        "rows a second": round(changed / seconds),
        "age p99 s": round(float(np.percentile(ages, 99)), 3),
        "age told s": round(max(shard["age_s"] for shards in told for shard in shards), 3),
        "predict p50 ms": [round(1e3 * x, 2) for x in p50],
        "predict p99 ms": [round(1e3 * x, 2) for x in p99],
        "p50 ratio": round(p50[1] / p50[0], 2),
        "p99 ratio": round(p99[1] / p99[0], 2),
    }


def beyond_bounds(found: dict[str, Any]) -> list[str]:
    """What of a run is worse than the project wants it."""
    bounds = {"age p99 s": 1.0, "age told s": 1.0, "p50 ratio": 1.5, "p99 ratio": 4.0}
    beyond = [
        f"{name} {found[name]} > {most}" for name, most in bounds.items() if found[name] > most
    ]
    if found["rows a second"] < 0.9 * ROWS_A_SECOND:
        beyond.append(f"only {found['rows a second']} rows a second")
    return beyond


@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [20.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_replicas_are_fresh_and_readers_hardly_notice(seconds: float, tmp_path: Path) -> None:
    """What else the machine does for a second makes the tail of one run: one of three must hold."""
    runs: list[dict[str, Any]] = []
    with served_and_trained(tmp_path) as here:
        while len(runs) < 3 and (not runs or beyond_bounds(runs[-1])):
            runs.append(measured(here, seconds))
            logging.getLogger(__name__).info(json.dumps(runs[-1]))
    assert not beyond_bounds(runs[-1]), (beyond_bounds(runs[-1]), runs)
