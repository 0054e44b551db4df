"""From a model on parameter servers to a replica: crashes of a server on the way lose no row."""

from __future__ import annotations

from pathlib import Path

import torch

from hedgerow.nn.collection import collections_of
from hedgerow.ps.server_tables import ServerTables
from hedgerow.serving.row_sources import row_sources
from hedgerow.sync.publisher import Publisher
from hedgerow.tables.store import TableKeys

from ..serving.test_row_sources import learn, on_servers
from .replicas import rows_of, served


def test_a_replica_equals_the_servers_after_crashes_and_deletions(tmp_path: Path) -> None:
    with (
        on_servers(2, checkpoint=tmp_path, durability="log") as (model, started),
        served() as (replica, address),
        Publisher(row_sources(model), address, every="20ms") as publisher,
    ):
        store = collections_of(model)[0].store
        assert isinstance(store, ServerTables)
        for turn in range(4):
            learn(model, list(range(20 * turn, 20 * turn + 30)))
            if turn == 1:
                started[1].crash()
            gone = torch.tensor([20 * turn, 20 * turn + 1])
            store.erase(TableKeys(gone.repeat(2), (0, 2, 4)))
            assert publisher.flush(60)
        wanted = {
            name: {
                key: tuple(row)
                for entries in store.table(k).scan()
                for key, row in zip(entries.ids.tolist(), entries.rows.tolist(), strict=True)
            }
            for k, name in enumerate(store.names)
        }
        assert rows_of(replica.store.tables) == wanted
        assert len(wanted["user"]) == 82
