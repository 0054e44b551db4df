"""Saving and loading: what comes back, what is refused, what stays when something fails."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointMissingError,
    DtypeError,
    InputError,
    SaveCancelledError,
    SaveError,
)
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.chain import newest

from .common import change_manifest, config, content, filled, some_ids, step_of


def test_rows_states_and_times_come_back_bit_for_bit(tmp_path: Path) -> None:
    users, items = filled(300, "user"), filled(700, "item", seed=3)
    manifest = hr.save([items, users], tmp_path / "a", step=7, metadata={"epoch": 2})
    assert manifest.rows == users.size() + items.size()
    fresh = [hr.HostTable(config("user")), hr.HostTable(config("item"))]
    loaded = hr.load(fresh, tmp_path / "a")
    assert [content(t) for t in fresh] == [content(users), content(items)]
    assert loaded.rows == {"user": users.size(), "item": items.size()}
    assert (loaded.step, loaded.metadata, loaded.added, loaded.removed) == (7, {"epoch": 2}, (), ())
    assert fresh[0].max_ts() == 9


def test_training_after_a_load_is_the_training_that_went_on(tmp_path: Path) -> None:
    table = filled(400)
    hr.save([table], tmp_path / "a", router=Router("hash_roundrobin", 3))
    resumed = hr.HostTable(config())
    hr.load([resumed], tmp_path / "a")
    ids = some_ids(600, seed=0)
    for step in range(5):
        batch = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(step))[:200]]
        for each in (table, resumed):
            step_of(each, batch, seed=50 + step, ts=20 + step)
    assert content(resumed) == content(table)


@pytest.mark.parametrize("dist_type", ["roundrobin", "hash_roundrobin"])
def test_any_number_of_shards_to_any(tmp_path: Path, dist_type: str) -> None:
    table = filled(120)
    wanted = content(table)
    for n in range(1, 9):
        folder = tmp_path / str(n)
        hr.save([table], folder, router=Router(dist_type, n))
        for m in range(1, 9):
            router, union = Router(dist_type, m), {}
            for shard in range(m):
                part = hr.HostTable(config())
                loaded = hr.load([part], folder, router=router, shard=shard)
                own = content(part)
                assert loaded.rows == {"item": len(own)}
                assert not set(own) & set(union)
                assert set(router.owners(torch.tensor(list(own), dtype=torch.int64)).tolist()) <= {
                    shard
                }
                union |= own
            assert union == wanted


def test_an_empty_table_and_no_table_at_all(tmp_path: Path) -> None:
    hr.save([hr.HostTable(config())], tmp_path / "a", router=Router("roundrobin", 4))
    hr.save([], tmp_path / "b")
    table = filled(10)
    assert hr.load([table], tmp_path / "a").rows == {"item": 0}
    assert table.size() == 0
    assert hr.load([filled(10)], tmp_path / "b").added == ("item",)


def test_names_of_tables_may_be_anything(tmp_path: Path) -> None:
    names = ["../../etc/passwd", "a b", "a_b", "ü" * 300, "con:1"]
    tables = [filled(20, name, seed=i) for i, name in enumerate(names)]
    hr.save(tables, tmp_path / "a")
    fresh = [hr.HostTable(config(name)) for name in names]
    hr.load(fresh, tmp_path / "a")
    assert [content(t) for t in fresh] == [content(t) for t in tables]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_tables_may_come_and_go(tmp_path: Path) -> None:
    hr.save([filled(20, "old"), filled(30, "item")], tmp_path / "a")
    new, item = filled(5, "new"), hr.HostTable(config())
    before = content(new)
    loaded = hr.load([new, item], tmp_path / "a")
    assert (loaded.added, loaded.removed) == (("new",), ("old",))
    assert content(new) == before
    assert item.size() == len(filled(30))


def test_a_load_replaces_and_a_merge_adds(tmp_path: Path) -> None:
    saved = filled(50)
    hr.save([saved], tmp_path / "a")
    live, other = filled(80, seed=9), filled(80, seed=9)
    hr.load([live], tmp_path / "a")
    assert content(live) == content(saved)
    before = content(other)
    hr.load([other], tmp_path / "a", merge=True)
    assert content(other) == before | content(saved)


def test_expired_rows_stay_behind(tmp_path: Path) -> None:
    table = filled(100)
    hr.save([table], tmp_path / "a", keep=lambda ids, ts: ts >= 9)
    fresh = hr.HostTable(config())
    hr.load([fresh], tmp_path / "a")
    assert content(fresh) == {k: v for k, v in content(table).items() if v[0] >= 9}
    assert 0 < fresh.size() < table.size()


def test_blobs_come_back(tmp_path: Path) -> None:
    blobs = {"filter of item": bytes(range(256)), "": b""}
    with pytest.raises(DtypeError, match="non-empty name"):
        hr.save([], tmp_path / "a", blobs=blobs)
    del blobs[""]
    hr.save([], tmp_path / "a", blobs=blobs | {"empty": b""})
    assert hr.load([], tmp_path / "a").blobs == blobs | {"empty": b""}


def test_a_rate_that_is_a_function_does_not_stop_a_save(tmp_path: Path) -> None:
    made = hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=lambda step: 0.1)),))
    table = hr.HostTable(made)
    table.assign(torch.tensor([1]), torch.ones(1, 2))
    assert hr.save([table], tmp_path / "a").tables["item"].config is None
    fresh = hr.HostTable(made)
    assert hr.load([fresh], tmp_path / "a").rows == {"item": 1}


def _one(optimizer: object, dim: int = 2, **settings: object) -> hr.HostTable:
    segment = hr.Segment(dim, hr.Zeros(), optimizer, hr.Fp16())  # pyright: ignore[reportArgumentType]
    return hr.HostTable(hr.TableConfig("item", (segment,), **settings))  # pyright: ignore[reportArgumentType]


def test_another_optimizer_is_refused_or_starts_afresh(tmp_path: Path) -> None:
    table = _one(hr.Adagrad(lr=1.0))
    table.apply_gradients(torch.tensor([3]), torch.ones(1, 2), ts=4)
    hr.save([table], tmp_path / "a")
    adam = _one(hr.Adam())
    with pytest.raises(
        CheckpointError, match=r"table 'item': segments\[0\]\.optimizer: Adagrad .* Adam "
    ):
        hr.load([adam], tmp_path / "a")
    assert adam.size() == 0
    loaded = hr.load([adam], tmp_path / "a", on_state_mismatch="reset")
    assert loaded.reset == ("item",)
    born = _one(hr.Adam())
    born.assign(torch.tensor([3]), table.lookup(torch.tensor([3])).rows_of(), ts=4)
    assert content(adam) == content(born)
    hr.load([_one(hr.Adagrad(lr=0.3))], tmp_path / "a")  # a rate may change


def test_a_serving_table_takes_rows_alone(tmp_path: Path) -> None:
    table = _one(hr.Adagrad(lr=1.0))
    table.assign(torch.tensor([3]), torch.tensor([[0.5, 2.0]]), ts=4)
    hr.save([table], tmp_path / "a")
    serving = _one(None, serving=True)
    hr.load([serving], tmp_path / "a")
    assert content(serving) == {3: (0, [0.5, 2.0])}
    hr.save([serving], tmp_path / "b")
    with pytest.raises(CheckpointError, match="None in the checkpoint, Adagrad"):
        hr.load([table], tmp_path / "b")


def test_other_dims_are_refused_by_name(tmp_path: Path) -> None:
    hr.save([_one(hr.Sgd(lr=1.0))], tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"table 'item': segments\[0\]\.dim: 2 .* 3 in"):
        hr.load([_one(hr.Sgd(lr=1.0), 3)], tmp_path / "a")
    with pytest.raises(CheckpointError, match="segments: 1 in the checkpoint, 3"):
        hr.load([hr.HostTable(config())], tmp_path / "a")


def test_another_rule_needs_reroute(tmp_path: Path) -> None:
    table = filled(60)
    hr.save([table], tmp_path / "a", router=Router("roundrobin", 2))
    router, fresh = Router("hash_roundrobin", 1), hr.HostTable(config())
    with pytest.raises(ValueError, match=r"by roundrobin.*by hash_roundrobin.*reroute=True"):
        hr.load([fresh], tmp_path / "a", router=router)
    hr.load([fresh], tmp_path / "a", router=router, reroute=True)
    assert content(fresh) == content(table)


def test_an_absent_rule_reads_as_roundrobin(tmp_path: Path) -> None:
    hr.save([filled(60)], tmp_path / "a", router=Router("roundrobin", 2))
    change_manifest(tmp_path / "a", lambda m: m["router"].pop("dist_type"))
    fresh = hr.HostTable(config())
    hr.load([fresh], tmp_path / "a", router=Router("roundrobin", 1))
    assert fresh.size() == filled(60).size()


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    table = filled(5)
    with pytest.raises(InputError, match="two tables are named 'item'"):
        hr.save([table, filled(6)], tmp_path / "a")
    with pytest.raises(InputError, match="JSON cannot hold"):
        hr.save([table], tmp_path / "a", metadata={"x": float("nan")})
    assert not (tmp_path / "a").exists()
    with pytest.raises(InputError, match="step"):
        hr.save([table], tmp_path / "a", step=-1)
    hr.save([table], tmp_path / "a")
    with pytest.raises(InputError, match="shard is 1 without a router"):
        hr.load([table], tmp_path / "a", shard=1)
    with pytest.raises(InputError, match="shard is 2; the router has 2"):
        hr.load([table], tmp_path / "a", shard=2, router=Router("hash_roundrobin", 2))
    with pytest.raises(InputError, match="on_state_mismatch is 'keep'"):
        hr.load([table], tmp_path / "a", on_state_mismatch="keep")  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckpointMissingError, match="no complete checkpoint"):
        hr.load([table], tmp_path / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match="cannot save to"):
        hr.save([table], tmp_path / "file")
    assert table.size() == filled(5).size()


def test_a_complete_checkpoint_is_replaced_only_when_told(tmp_path: Path) -> None:
    hr.save([filled(50)], tmp_path, step=1)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointExistsError, match="overwrite=True"):
        hr.save([filled(60)], tmp_path, step=2)
    first = {p.name for p in tmp_path.iterdir()}
    hr.save([filled(60)], tmp_path, step=2, overwrite=True)
    assert hr.load([], tmp_path).step == 2
    kept = {p.name for p in tmp_path.iterdir()}
    assert len(kept) == len(first)  # the replaced files are gone
    assert kept & first == {"manifest.json", "notes.txt"}


def test_remains_of_stopped_saves_are_ignored_then_removed(tmp_path: Path) -> None:
    manifest = hr.save([filled(50)], tmp_path)
    (file,) = manifest.files
    mark = file.file.rsplit("-", 1)[1]
    remains = [tmp_path / file.file.replace(mark, "0123456789ab.arrow.part")]
    remains += [tmp_path / "manifest.json.part", tmp_path / "blob-000-x-0123456789ab.bin"]
    for path in remains:
        path.write_bytes(b"half")
    assert hr.load([hr.HostTable(config())], tmp_path).rows["item"] == manifest.rows
    hr.save([filled(50)], tmp_path, overwrite=True)
    assert not any(path.exists() for path in remains)


def test_the_newest_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        hr.save([], tmp_path / f"step-{step}", step=step)
    (tmp_path / "step-200").mkdir()
    assert newest(tmp_path).name == "step-100"
    with pytest.raises(CheckpointMissingError):
        newest(tmp_path / "step-200")


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("limit", [0, 1, 300, 5_000, 20_000])
def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path, limit: int) -> None:
    old = filled(50)
    hr.save([old], tmp_path / "a", blobs={"filter": bytes(100)})
    files = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    with _largest_file(limit):
        for folder in ("a", "b"):
            with pytest.raises(SaveError, match=r"File too large.*untouched"):
                hr.save(
                    [filled(2000)],
                    tmp_path / folder,
                    router=Router("roundrobin", 3),
                    overwrite=True,
                )
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == files
    assert not (tmp_path / "b").exists()
    fresh = hr.HostTable(config())
    hr.load([fresh], tmp_path / "a")
    assert content(fresh) == content(old)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip(f"no right to mount a small disk: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount command")
@pytest.mark.parametrize("save", [hr.save, lambda *args, **how: hr.save_async(*args, **how).wait()])
def test_a_disk_without_room_keeps_the_old_checkpoint(
    small_disk: Path, save: Callable[..., object]
) -> None:
    old, large = filled(500), filled(9000)
    hr.save([old], small_disk / "a")
    files = {p.name: p.read_bytes() for p in (small_disk / "a").iterdir()}
    for folder in ("a", "b"):
        with pytest.raises(SaveError, match=r"No space left.*untouched"):
            save([large], small_disk / folder, overwrite=True)
    assert {p.name: p.read_bytes() for p in (small_disk / "a").iterdir()} == files
    assert not (small_disk / "b").exists()
    with pytest.raises(SaveError, match="No space left"):
        hr.save_increment([large], small_disk / "a", {"item": some_ids(9000)})
    fresh = hr.HostTable(config())
    hr.load([fresh], small_disk / "a")
    assert content(fresh) == content(old)


class _Slow:
    """A table whose scan waits to be let on."""

    def __init__(self, table: hr.HostTable, fail: bool = False) -> None:
        self.config, self.table, self.fail = table.config, table, fail
        self.go, self.begun = threading.Event(), threading.Event()

    def max_ts(self) -> int:
        return self.table.max_ts()

    def size(self) -> int:
        return self.table.size()

    def scan(self, rows: int | None = None) -> Iterator[object]:
        for entries in self.table.scan(50):
            yield entries
            self.begun.set()
            assert self.go.wait(60)
            if self.fail:
                raise RuntimeError("the table is gone")


def test_a_save_beside_training_tells_how_far_it_is(tmp_path: Path) -> None:
    slow = _Slow(filled(300))
    handle = hr.save_async([slow], tmp_path / "a", step=3)  # pyright: ignore[reportArgumentType]
    assert slow.begun.wait(60)
    assert not handle.done()
    assert handle.progress().rows_total == slow.size()
    with pytest.raises(TimeoutError, match="not done"):
        handle.wait(0.0)
    with pytest.raises(SaveError, match="another save"):
        hr.save([slow.table], tmp_path / "a", overwrite=True)
    slow.go.set()
    assert handle.wait(60).step == 3
    assert handle.done()
    assert handle.progress().rows == slow.size()
    assert handle.progress().file_bytes > 100 * slow.size()


def test_a_cancelled_save_leaves_nothing(tmp_path: Path) -> None:
    slow = _Slow(filled(300))
    handle = hr.save_async([slow], tmp_path / "a")  # pyright: ignore[reportArgumentType]
    assert slow.begun.wait(60)
    handle.cancel()
    slow.go.set()
    with pytest.raises(SaveCancelledError):
        handle.wait(60)
    assert not (tmp_path / "a").exists()


def test_an_error_of_one_table_reaches_the_one_who_waits(tmp_path: Path) -> None:
    slow = _Slow(filled(300), fail=True)
    slow.go.set()
    other = filled(5000, "other")
    handle = hr.save_async([other, slow], tmp_path / "a")  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match="the table is gone"):
        handle.wait(60)
    assert not (tmp_path / "a").exists()


def test_a_save_while_others_write_holds_every_row_that_stayed(tmp_path: Path) -> None:
    table = filled(3000)
    before, stop = set(content(table)), threading.Event()

    def train() -> None:
        step = 0
        while not stop.is_set():
            step_of(table, some_ids(500, seed=step % 7), seed=step, ts=30)
            step += 1

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for i in range(5):
            hr.save_async([table], tmp_path / str(i), router=Router("roundrobin", 3)).wait()
    finally:
        stop.set()
        trainer.join()
    for i in range(5):
        fresh = hr.HostTable(config())
        hr.load([fresh], tmp_path / str(i))
        assert before <= set(content(fresh))


def test_a_row_on_the_wrong_shard_and_an_id_twice_are_found(tmp_path: Path) -> None:
    table = filled(40)
    hr.save([table], tmp_path / "a", router=Router("roundrobin", 2))

    def swap(manifest: dict) -> None:
        first, second = manifest["files"]
        first["shard"], second["shard"] = second["shard"], first["shard"]

    change_manifest(tmp_path / "a", swap)
    with pytest.raises(CheckpointError, match="does not belong to shard"):
        hr.load([hr.HostTable(config())], tmp_path / "a")

    class Twice(_Slow):
        def scan(self, rows: int | None = None) -> Iterator[object]:
            yield from self.table.scan()
            yield from self.table.scan()

    hr.save([Twice(table)], tmp_path / "b")  # pyright: ignore[reportArgumentType]
    live = filled(7, seed=2)
    before = content(live)
    with pytest.raises(CheckpointError, match="an id occurs twice"):
        hr.load([live], tmp_path / "b")
    assert content(live) == before


def test_values_no_row_may_hold_are_refused(tmp_path: Path) -> None:
    class Damaged(_Slow):
        def scan(self, rows: int | None = None) -> Iterator[object]:
            for entries in self.table.scan():
                entries.rows[0, 0] = np.nan
                yield entries

    hr.save([Damaged(filled(40))], tmp_path / "a")  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckpointError, match=r"table 'item'.*nan"):
        hr.load([hr.HostTable(config())], tmp_path / "a")
