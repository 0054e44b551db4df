"""From a model on parameter servers to a replica: crashes of a server on the way lose no row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hedgerow.monolith.sync.strict import publish_strict
from hedgerow.nn.embedding_modules import collections_of
from hedgerow.ps.errors import RolledBackError
from hedgerow.ps.server_tables import ServerTables
from hedgerow.serving.publish import row_sources
from hedgerow.sync.publisher import Publisher
from hedgerow.tables.store import TableKeys

from ..serving.test_row_sources import fresh, learn, on_servers
from .replicas import rows_of, served, wait_for


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


def test_servers_that_lost_their_rows_sweep_no_replica(caplog: pytest.LogCaptureFixture) -> None:
    """Without a checkpoint a server comes back empty; rows that are learned then still arrive."""
    with (
        on_servers(2) as (model, started),
        served() as (replica, address),
        Publisher(row_sources(model), address, every="20ms") as publisher,
    ):
        learn(model, list(range(40)))
        assert publisher.flush(60)
        before = rows_of(replica.store.tables)
        assert len(before["user"]) == 40
        started[1].crash()
        wait_for(lambda: any(s.unswept for t in publisher.status().targets for s in t.streams))
        assert "restarted without rows" in caplog.text
        with pytest.raises(RolledBackError):
            learn(model, list(range(40)))
        learn(model, list(range(100, 140)))
        assert publisher.flush(60)
        after = rows_of(replica.store.tables)
        assert after["user"].keys() == before["user"].keys() | set(range(100, 140))


def test_monolith_rule_loses_keys_where_ours_does_not() -> None:
    """A replica that is away for a moment: it never hears of what changed then, by that rule."""
    model = fresh()
    with served() as (replica, address):
        away = Relisted([address])
        strict = publish_strict(model, away, served_as="ps_0")
        learn(model, [1, 2])
        (pushed,) = strict.push()
        assert [one.update_num for one in pushed.responses] == [4]
        away.addresses = ["127.0.0.1:1"]
        learn(model, [3, 4])
        (failed,) = strict.push()
        assert [one.status_code for one in failed.responses] == [14]
        away.addresses = [address]
        learn(model, [5])
        strict.push()
        assert sorted(rows_of(replica.store.tables)["user"]) == [1, 2, 5]
        strict.stop()
    with served() as (replica, address), Publisher(row_sources(model), address) as publisher:
        assert publisher.flush(60)
        assert sorted(rows_of(replica.store.tables)["user"]) == [1, 2, 3, 4, 5]


class Relisted:
    """Addresses that a test changes."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def current(self) -> list[str]:
        return self.addresses
