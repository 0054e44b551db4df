"""All servers under one manifest, and back into any number of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import CheckpointError, HedgerowError, InputError
from hedgerow.ps.errors import RolledBackError
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.saving import load_servers, save_servers
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.manifest_reader import read_manifest
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys

from .servers import ServerProcess
from .tables import counting_table, two_tables

IDS = torch.arange(-500, 500)


def start(stack: ExitStack, n: int, **settings: object) -> list[ServerProcess]:
    made = [ServerProcess(i, n, **settings) for i in range(n)]
    for one in made:
        stack.callback(one.reap)
    return made


def connect(stack: ExitStack, made: list[ServerProcess]) -> list[RemoteShard]:
    shards = [RemoteShard(one.address, two_tables(), deadline_s=30) for one in made]
    for shard in shards:
        stack.callback(shard.close)
    return shards


def router(n: int) -> dict[str, Router]:
    return {"item": Router("hash_roundrobin", n), "user": Router("roundrobin", n)}


def own(n: int, shard: int) -> TableKeys:
    items, users = (IDS[rule.owners(IDS) == shard] for rule in router(n).values())
    return TableKeys(torch.cat([items, users]), (0, len(items), len(items) + len(users)))


def rows_of(keys: TableKeys) -> torch.Tensor:
    items, users = keys.ids_of(0), keys.ids_of(1)
    return torch.cat([items.float().repeat_interleave(8), users.float().repeat_interleave(2)])


def fill(shards: list[RemoteShard]) -> None:
    for i, shard in enumerate(shards):
        keys = own(len(shards), i)
        shard.start_assign(keys, rows_of(keys), ts=5).wait()


def full(shards: list[RemoteShard]) -> None:
    for i, shard in enumerate(shards):
        keys = own(len(shards), i)
        assert shard.start_sizes().wait() == (len(keys.ids_of(0)), len(keys.ids_of(1)))
        assert torch.equal(shard.start_lookup(keys).wait().rows, rows_of(keys))


def test_two_servers_to_three_to_none(tmp_path: Path) -> None:
    with ExitStack() as stack:
        two = connect(stack, start(stack, 2))
        fill(two)
        saved = save_servers(two, tmp_path / "a", router=router(2), step=7, metadata={"by": "me"})
        assert saved.rows == 2000
        manifest = read_manifest(tmp_path / "a")
        assert (manifest.step, manifest.metadata, manifest.routing.shards) == (7, {"by": "me"}, 2)
        three = connect(stack, start(stack, 3))
        assert load_servers(three, tmp_path / "a", router=router(3)) == 7
        full(three)
        assert save_servers(three, tmp_path / "b", router=router(3)).rows == 2000
        here = HostTables(two_tables())
        assert hr.load(here.tables, tmp_path / "b").rows == {"item": 1000, "user": 1000}
        with pytest.raises(HedgerowError, match="holds a checkpoint"):
            save_servers(two, tmp_path / "a", router=router(2))
        assert save_servers(two, tmp_path / "a", router=router(2), overwrite=True).rows == 2000
        with pytest.raises(InputError, match="3 shards for 2 servers"):
            save_servers(two, tmp_path / "c", router=router(3))
        other = Router("roundrobin", 2)
        with pytest.raises(CheckpointError, match="reroute=True"):
            load_servers(two, tmp_path / "a", router=other)


def test_servers_start_from_the_newest_checkpoint_of_all(tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = start(stack, 2, checkpoint=tmp_path)
        two = connect(stack, made)
        fill(two)
        for shard in two:
            assert shard.checkpoint() == 0
        assert save_servers(two, tmp_path / "step-4", router=router(2), step=4).rows == 2000
        made[1].crash()
        with pytest.raises(RolledBackError, match="step 4"):
            two[1].start_sizes().wait()
        full(two)
        full(connect(stack, start(stack, 3, checkpoint=tmp_path)))


def test_a_load_is_in_the_log(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = connect(stack, start(stack, 1))
        fill(first)
        save_servers(first, tmp_path / "saved", router=router(1), step=3)
        made = start(stack, 2, checkpoint=tmp_path / "own", durability="log")
        two = connect(stack, made)
        load_servers(two, tmp_path / "saved", router=router(2))
        for one in made:
            one.crash()
        full(two)


def test_a_server_that_dies_in_a_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = start(stack, 2, checkpoint=tmp_path / "own", durability="log")
        two = connect(stack, made)
        fill(two)
        save_servers(two, tmp_path / "all", router=router(2), step=1)
        made[1].kill()
        with pytest.raises(HedgerowError, match=r"no answer to save from .* deadline of 0.5 s"):
            save_servers(two, tmp_path / "all", router=router(2), overwrite=True, deadline_s=0.5)
        assert read_manifest(tmp_path / "all").step == 1
        made[1].restart()
        again = save_servers(two, tmp_path / "all", router=router(2), step=2, overwrite=True)
        assert again.rows == 2000
        full(two)


def test_one_table_from_another_kind_of_client_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = start(stack, 1, checkpoint=tmp_path)
        connect(stack, made)
        with pytest.raises(HedgerowError, match="tables of this server are different"):
            RemoteShard(made[0].address, counting_table())
