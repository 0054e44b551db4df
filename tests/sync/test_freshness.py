"""How old what replicas answer with is while a trainer changes many rows, and what that costs."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.nn.collection import servers_of
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


@contextmanager
def replicas_of(folder: Path) -> Iterator[list[Child]]:
    with ExitStack() as stack:
        made = []
        for _ in range(2):
            made.append(Child(bundle_replica, str(folder)))
            stack.callback(made[-1].reap)
        yield made


@pytest.mark.parametrize(
    "seconds",
    [
        4.0,
        pytest.param(20.0, marks=pytest.mark.long),
        pytest.param(60.0, marks=[pytest.mark.long, pytest.mark.timeout(400)]),
    ],
)
def test_replicas_are_fresh_and_readers_hardly_notice(seconds: float, tmp_path: Path) -> None:
    """Bounds are those of the project in the long form, generous in the short one.

    Where others use the processors as well, a quick run says little of the tails.
    """
    example = hr.IdBatch.from_lists({name: [[1], [2]] for name in DIMS})
    hr.serving.export(fresh_bags(), tmp_path, example=example, version=1)
    with ExitStack() as stack:
        servers = [ServerProcess(i, 2) for i in range(2)]
        for server in servers:
            stack.callback(server.reap)
        model = hr.distribute(fresh_bags(), servers=[one.address for one in servers])
        group = servers_of(model)
        assert group is not None
        stack.callback(group.close)
        replicas = stack.enter_context(replicas_of(tmp_path))
        client = Child(asker, replicas[0].told, PROBE, ASKS_A_SECOND)
        stack.callback(client.reap)
        writer = Writer(model)  # type: ignore[arg-type]
        writer.stamp()
        with hr.publish(model, [one.told for one in replicas], every="200ms") as publisher:
            assert publisher.flush()
            alone, _ = client.ask("ask", seconds / 2)
            writer.start()
            client.ask("ask", 0.5)
            before = writer.rows
            during, ages = client.ask("ask", seconds)
            changed = writer.rows - before
            told = [
                shard["age_s"]
                for one in replicas
                for shard in one.ask("status")["models"][0]["shards"]
            ]
            writer.ending.set()
            writer.join()
            assert publisher.flush()
    p50, p99 = (np.percentile(during, p) / np.percentile(alone, p) for p in (50, 99))
    found = {
        "rows a second": round(changed / seconds),
        "age p99 s": round(float(np.percentile(ages, 99)), 3),
        "ages told s": [round(age, 3) for age in told],
        "predict p50 ms": [round(float(np.median(x)) * 1e3, 2) for x in (alone, during)],
        "predict p99 ms": [round(float(np.percentile(x, 99)) * 1e3, 2) for x in (alone, during)],
    }
    logging.getLogger(__name__).info(json.dumps(found))
    quick = seconds < 10
    assert changed > ROWS_A_SECOND * seconds * (0.3 if quick else 0.9), found
    assert np.percentile(ages, 99) < (5.0 if quick else 1.0), found
    assert max(told) < (5.0 if quick else 1.0), found
    assert p50 < (6.0 if quick else 1.5), found
    assert p99 < (20.0 if quick else 4.0), found
