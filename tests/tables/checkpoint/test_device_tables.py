"""Tables on a device in the common format: to the host and back, with rows, states and times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import CheckpointError
from hedgerow.routing.router import Router
from hedgerow.tables import admission, initializers, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.eviction import Ttl
from hedgerow.tables.host import HostTable
from hedgerow.tables.local_table import table_stats

from ...support import everything

pytest.importorskip("pyarrow")

CONFIG = TableConfig(
    "items",
    (
        Segment(1, initializers.Normal(0.1), optimizers.Adam()),
        Segment(2, initializers.Uniform(0.3), optimizers.RowAdagrad()),
    ),
    admit=admission.Within(1000, 2),
    evict=Ttl("1h"),
)


def _trained(device: torch.device, rows: int = 40) -> DeviceTable:
    table = DeviceTable(CONFIG, capacity_rows=128, device=device)
    ids = torch.arange(-5, rows - 5, device=device)
    for ts in (5000, 9000):
        chosen = ids if ts == 5000 else ids[5:]
        grads = torch.randn(len(chosen), 3, device=device)
        table.apply_gradients(chosen, grads, ts=ts, counts=torch.full_like(chosen, 2))
        table.apply_gradients(chosen, grads, ts=ts)
    return table


def test_rows_go_to_the_host_and_back(device: torch.device, tmp_path: Path) -> None:
    ours = _trained(device)
    kept = {key: row for key, row in everything(ours).items() if row[2] > 5400}
    assert len(kept) == 35
    assert hr.save([ours], tmp_path / "a", router=Router("roundrobin", 3)).rows == 35
    host = HostTable(CONFIG)
    hr.load([host], tmp_path / "a")
    assert everything(host) == kept
    hr.save([host], tmp_path / "b")
    small = DeviceTable(CONFIG, capacity_rows=16, device=device)
    small.assign(torch.tensor([99], device=device), torch.ones(1, 3, device=device))
    loaded = hr.load([small], tmp_path / "b")
    assert loaded.rows == {"items": 35}
    assert everything(small) == kept
    assert small.max_ts() == 9000
    assert table_stats(small)["rows"] == 35


@pytest.mark.long
def test_a_load_that_fails_changes_nothing(device: torch.device, tmp_path: Path) -> None:
    ours = _trained(device)
    hr.save([ours], tmp_path / "a")
    live = _trained(device, rows=12)
    before = everything(live)
    (file,) = (tmp_path / "a").glob("*.arrow")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CheckpointError):
        hr.load([live], tmp_path / "a")
    assert everything(live) == before


@pytest.mark.long
def test_a_save_beside_training_has_the_rows_of_its_instant(
    device: torch.device, tmp_path: Path
) -> None:
    ours = _trained(device)
    wanted = {key: row for key, row in everything(ours).items() if row[2] > 5400}
    handle = hr.save_async([ours], tmp_path / "a")
    ids = torch.arange(30, device=device)
    ours.apply_gradients(ids, torch.ones(30, 3, device=device), ts=9500)
    ours.erase(ids[:9])
    assert handle.wait(60).rows == 35
    host = HostTable(CONFIG)
    hr.load([host], tmp_path / "a")
    assert everything(host) == wanted


@pytest.mark.long
def test_increments_know_what_changed_on_the_device(device: torch.device, tmp_path: Path) -> None:
    ours = _trained(device)
    ours.touched("disk", all_changes=True, capacity=100)
    hr.save([ours], tmp_path, consumer="disk")
    ids = torch.tensor([3, 4], device=device)
    ours.apply_gradients(ids, torch.ones(2, 3, device=device), ts=9100)
    ours.erase(ids[:1])
    done = hr.save_increment([ours], tmp_path, consumer="disk")
    assert (done.rows, done.tables["items"].deletions) == (1, 1)
    copy = DeviceTable(CONFIG, capacity_rows=128, device=device)
    hr.load([copy], tmp_path)
    assert everything(copy) == {key: row for key, row in everything(ours).items() if row[2] > 5400}


@pytest.mark.long
def test_filters_count_on_and_start_afresh_elsewhere(device: torch.device, tmp_path: Path) -> None:
    ours = _trained(device)
    ids = torch.tensor([777], device=device)
    grads = torch.ones(1, 3, device=device)
    assert ours.apply_gradients(ids, grads, ts=9000).refused == 1
    hr.save([ours], tmp_path)
    copy, host = DeviceTable(CONFIG, capacity_rows=128, device=device), HostTable(CONFIG)
    hr.load([copy], tmp_path)
    hr.load([host], tmp_path)
    assert copy.apply_gradients(ids, grads, ts=9000).inserted == 1
    assert host.apply_gradients(ids.cpu(), grads.cpu(), ts=9000).inserted == 0
