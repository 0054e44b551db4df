"""Two clients that save all servers into one folder: phase by phase, in every order."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import HedgerowError, SaveError
from hedgerow.nn.embedding_modules import ServerGroup
from hedgerow.nn.saved_state import DenseFile, dense_part
from hedgerow.nn.saving import ModelState, save_on_servers
from hedgerow.ps.checkpoint_service import LEASE_S
from hedgerow.ps.messages import Verb
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.saving import _Orders, _written, save_servers
from hedgerow.tables.checkpoint.files import sole_writer
from hedgerow.tables.checkpoint.manifest import MANIFEST, CheckpointManifest
from hedgerow.tables.checkpoint.manifest_reader import read_manifest
from hedgerow.tables.multi.host_tables import HostTables

from .tables import two_tables
from .test_saving import connect, fill, router, start

PHASES = 4


def _phases(shards: list[RemoteShard], folder: Path, step: int) -> Iterator[None]:
    """A save as `save_servers` makes it, which waits after each phase."""
    orders = _Orders(Verb.SAVE, shards, 60.0, folder, router(len(shards)))
    told = [orders.one(0, "open", overwrite=True)]
    told += orders.others("open", overwrite=True)
    mark, newest_s = told[0]["mark"], told[0]["newest_s"]
    yield
    written = orders.all("write", mark=mark, newest_s=newest_s)
    weights = dense_part({"step": torch.tensor(float(step))})
    written.append(_written(folder, weights, mark))
    yield
    orders.one(0, "finish", mark=mark, written=written, step=step, metadata={})
    yield
    orders.all("close", mark=mark)
    yield


def _advance(save: Iterator[None], refused: list[int], step: int) -> None:
    try:
        next(save)
    except StopIteration:
        return
    except SaveError as error:
        if "takes part in another save" not in str(error):
            raise
        refused.append(step)


def _check(folder: Path, possible: set[int]) -> None:
    manifest = read_manifest(folder)
    assert manifest.step in possible
    assert {path.name for path in folder.iterdir()} == manifest.names() | {MANIFEST}
    assert manifest.dense is not None
    assert float(DenseFile(folder / manifest.dense.file).tensor("step")) == manifest.step
    here = HostTables(two_tables())
    assert hr.load(here.tables, folder).rows == {"item": 1000, "user": 1000}


@pytest.mark.timeout(900)
def test_two_saves_of_servers_in_every_order_of_their_phases(tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = start(stack, 2)
        one, two = connect(stack, made), connect(stack, made)
        fill(one)
        for number, places in enumerate(combinations(range(2 * PHASES), PHASES)):
            folder, refused = tmp_path / str(number), []
            saves = {1: _phases(one, folder, 1), 2: _phases(two, folder, 2)}
            for at in range(2 * PHASES):
                step = 1 if at in places else 2
                _advance(saves[step], refused, step)
            assert len(refused) < 2, places
            _check(folder, {1, 2} - set(refused))
            apart = places in (tuple(range(PHASES)), tuple(range(PHASES, 2 * PHASES)))
            assert bool(refused) != apart, places


_DIES = """
import os, sys
from pathlib import Path
from hedgerow.ps.remote_shard import RemoteShard
from tests.ps.tables import two_tables
from tests.ps.test_two_saves import _phases
shards = [RemoteShard(address, two_tables(), deadline_s=30) for address in sys.argv[2:]]
save = _phases(shards, Path(sys.argv[1]), 9)
next(save)
next(save)
os._exit(9)
"""


def test_a_client_that_dies_in_a_save_holds_nobody_off_for_long(tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = start(stack, 2)
        shards = connect(stack, made)
        fill(shards)
        addresses = [one.address for one in made]
        died = subprocess.run([sys.executable, "-c", _DIES, str(tmp_path / "a"), *addresses])
        assert died.returncode == 9
        began, refused = time.monotonic(), []
        while not (tmp_path / "a" / MANIFEST).exists():
            try:
                save_servers(shards, tmp_path / "a", router=router(2), step=2)
            except SaveError as error:
                refused.append(str(error))
            assert time.monotonic() < began + 20 * LEASE_S
        assert refused
        for told in refused:
            assert f"takes part in another save, to {tmp_path / 'a'}" in told
            assert f"it ends {LEASE_S:g} s after" in told
        assert read_manifest(tmp_path / "a").step == 2
        names = read_manifest(tmp_path / "a").names() | {MANIFEST}
        assert {path.name for path in (tmp_path / "a").iterdir()} == names


def _model() -> nn.Sequential:
    bags = hr.EmbeddingBags([hr.Table("user", 2)], optimizer=hr.Sgd(lr=1.0))
    return nn.Sequential(bags, nn.Linear(2, 1))


def test_a_model_on_servers_is_saved_under_the_lock_of_server_0(tmp_path: Path) -> None:
    with ExitStack() as stack:
        addresses = [one.address for one in start(stack, 2)]
        model = hr.distribute(_model(), servers=addresses)
        ids = hr.IdBatch.from_dict({"user": torch.arange(50)})
        model[1](model[0](ids)["user"]).sum().backward()
        folder = tmp_path / "a"
        hr.save(model, folder, step=1)
        before = {path.name for path in folder.iterdir()}
        with sole_writer(folder), pytest.raises(SaveError, match="another save"):
            hr.save(model, folder, step=2, overwrite=True)
        assert {path.name for path in folder.iterdir()} == before
        hr.save(model, folder, step=3, overwrite=True)
        manifest = read_manifest(folder)
        assert {path.name for path in folder.iterdir()} == manifest.names() | {MANIFEST}
        fresh = _model()
        assert hr.load(fresh, folder).rows == {"user": 50}
        assert torch.equal(fresh[1].weight, model[1].weight)
        (folder / MANIFEST).chmod(0o400)
        assert os.listdir(folder)


def test_state_dicts_and_copies_of_rows_on_servers_name_hr_save(tmp_path: Path) -> None:
    import copy

    local = _model()
    state = local.state_dict()
    with ExitStack() as stack:
        model = hr.distribute(_model(), servers=[one.address for one in start(stack, 1)])
        for call in (
            model.state_dict,
            lambda: copy.deepcopy(model),
            lambda: model.load_state_dict(state),
        ):
            with pytest.raises(HedgerowError, match=r"rows are on 1 servers.*hr\.save"):
                call()
        hr.save(model, tmp_path / "a")  # has them all


@pytest.mark.parametrize("mark", ["*", "?" * 12, "[0-9a-f]*", "", None, 7, ["*"], "../x"])
def test_an_order_with_a_mark_of_no_save_removes_nothing(tmp_path: Path, mark: object) -> None:
    with ExitStack() as stack:
        shards = connect(stack, start(stack, 1))
        fill(shards)
        save_servers(shards, tmp_path / "a", router=router(1), step=1)
        before = {path.name for path in (tmp_path / "a").iterdir()}
        orders = _Orders(Verb.SAVE, shards, 60.0, tmp_path / "a", router(1))
        told = orders.one(0, "open", overwrite=True)
        with pytest.raises(HedgerowError, match="mark"):
            orders.one(0, "write", mark=mark, newest_s=told["newest_s"])
        with pytest.raises(HedgerowError, match="mark"):
            orders.one(0, "close", mark=mark, abandon=True)
        assert {path.name for path in (tmp_path / "a").iterdir()} == before
        orders.one(0, "close", mark=told["mark"], abandon=True)


def test_a_manifest_that_no_load_takes_replaces_none(tmp_path: Path) -> None:
    with ExitStack() as stack:
        shards = connect(stack, start(stack, 1))
        fill(shards)
        save_servers(shards, tmp_path / "a", router=router(1), step=1)
        orders = _Orders(Verb.SAVE, shards, 60.0, tmp_path / "a", router(1))
        told = orders.one(0, "open", overwrite=True)
        mark, newest_s = told["mark"], told["newest_s"]
        written = orders.all("write", mark=mark, newest_s=newest_s)
        more = {"written": [*written, *written], "step": 2, "metadata": {}}
        with pytest.raises(HedgerowError, match="a file occurs twice"):
            orders.one(0, "finish", mark=mark, **more)
        orders.all("close", mark=mark, abandon=True)
        manifest = read_manifest(tmp_path / "a")
        assert manifest.step == 1
        assert {path.name for path in (tmp_path / "a").iterdir()} == manifest.names() | {MANIFEST}


class _SavesInBetween:
    """A server's connection that lets another save begin and end as soon as one has let go."""

    def __init__(self, shard: RemoteShard, other: Callable[[], object]) -> None:
        self._shard, self._other = shard, other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def start_ask(self, verb: Verb, order: dict[str, Any], **more: Any) -> Any:
        under_way = self._shard.start_ask(verb, order, **more)
        return _AfterClose(under_way, self._other) if order["phase"] == "close" else under_way


class _AfterClose:
    def __init__(self, under_way: Any, other: Callable[[], object]) -> None:
        self._under_way, self._other = under_way, other

    def wait(self) -> Any:
        told = self._under_way.wait()
        self._other()
        return told


def test_a_save_returns_its_own_manifest_though_another_save_follows_at_once(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        shard = connect(stack, start(stack, 1))[0]
        fill([shard])
        later: list[CheckpointManifest] = []

        bags = hr.EmbeddingBags([hr.Table("item", 4), hr.Table("user", 4)])

        def save(one: Any, step: int) -> CheckpointManifest:
            return save_on_servers(
                bags,
                tmp_path / "a",
                ServerGroup((one,), two_tables()),
                lambda: ModelState({}, dense_part({"step": torch.tensor(float(step))})),
                step=step,
                overwrite=True,
            )

        between = _SavesInBetween(shard, lambda: later.append(save(shard, 2)))
        assert save(between, 1).step == 1
        assert [manifest.step for manifest in later] == [2]
        assert read_manifest(tmp_path / "a").step == 2
