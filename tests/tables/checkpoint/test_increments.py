"""Increments: against a model, and every way in which a chain can be broken."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow.core.errors import (
    CheckpointError,
    CheckpointMissingError,
    DtypeError,
    InputError,
    SaveError,
    UnknownNameError,
)
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.chain import Chain
from hedgerow.tables.checkpoint.increments import compact, reshard

from .common import config, content, filled, step_of

_KEYS = st.lists(st.sampled_from([0, -1, 2**63 - 1, -(2**63), 3, 4, 5, 6, 7, 8]), min_size=1)
_STEPS = st.lists(st.tuples(st.sampled_from(["train", "erase"]), _KEYS), max_size=4)


def _fresh(folder: Path, **options: int) -> dict:
    table = hr.HostTable(config())
    hr.load([table], folder, **options)  # pyright: ignore[reportArgumentType]
    return content(table)


@settings(max_examples=25)
@given(st.lists(_STEPS, min_size=1, max_size=5), st.integers(1, 4))
def test_a_chain_is_the_table_at_every_increment(rounds: list[list], shards: int) -> None:
    table, states = hr.HostTable(config()), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "a"
        step_of(table, torch.arange(5), seed=0)
        hr.save([table], folder, router=Router("roundrobin", shards))
        states.append(content(table))
        for number, steps in enumerate(rounds, start=1):
            touched: list[int] = [99]  # never there: a deletion of nothing
            for verb, keys in steps:
                ids = torch.tensor(keys)
                touched += keys
                table.erase(ids) if verb == "erase" else step_of(table, ids, seed=number)
            done = hr.save_increment([table], folder, {"item": torch.tensor(touched)}, step=number)
            assert done.number == number
            states.append(content(table))
        for number, wanted in enumerate(states):
            assert _fresh(folder, increments=number) == wanted
        reshard(folder, Path(name) / "b", 3, dist_type="hash_roundrobin")
        compact(folder)
        assert not Chain.read(folder).increments
        assert _fresh(folder) == _fresh(Path(name) / "b") == states[-1]


def test_a_consumer_goes_on_after_a_chain_was_compacted(tmp_path: Path) -> None:
    table, folder = filled(50), tmp_path / "a"
    ids = next(iter(table.scan())).ids
    hr.save([table], folder, consumer="saver")
    step_of(table, ids[:9].clone(), seed=1)
    hr.save_increment([table], folder, consumer="saver")
    step_of(table, ids[9:12].clone(), seed=2)
    compact(folder)
    compact(folder)  # of a base alone, too
    with pytest.raises(CheckpointError, match="has not collected"):
        hr.save_increment([table], folder, consumer="other")
    done = hr.save_increment([table], folder, consumer="saver")
    assert (done.number, done.rows) == (1, 3)
    assert _fresh(folder) == content(table)


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, Path]:
    """A base with three increments: the folder of the base, that of the increments."""
    table = filled(50)
    hr.save([table], tmp_path / "a", blobs={"filter": b"0"})
    ids = next(iter(table.scan())).ids
    for i in range(3):
        step_of(table, ids[i : i + 9].clone(), seed=i)
        blobs = {"filter": b"%d" % (i + 1)}
        hr.save_increment([table], tmp_path / "a", {"item": ids[i : i + 9].clone()}, blobs=blobs)
    (inside,) = (tmp_path / "a").glob("increments-*")
    return tmp_path / "a", inside


def test_a_missing_increment_is_found(chain: tuple[Path, Path]) -> None:
    folder, inside = chain
    assert hr.load([], folder).blobs == {"filter": b"3"}
    with pytest.raises(CheckpointMissingError, match="increment 4 is missing"):
        hr.load([], folder, increments=4)
    shutil.rmtree(inside / "00000002")
    with pytest.raises(CheckpointError, match="increment 2 is missing, but increment 3 exists"):
        hr.load([], folder)


def test_an_incomplete_one_in_the_middle_is_found_and_at_the_end_ignored(
    chain: tuple[Path, Path],
) -> None:
    folder, inside = chain
    (inside / "00000003" / "manifest.json").unlink()
    assert hr.load([], folder).blobs == {"filter": b"2"}
    (inside / "00000001" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="00000001 is incomplete"):
        hr.load([], folder)


def test_a_repeated_increment_is_found(chain: tuple[Path, Path]) -> None:
    folder, inside = chain
    shutil.copytree(inside / "00000002", inside / "00000004")
    with pytest.raises(CheckpointError, match="00000004 repeats increment 2"):
        hr.load([], folder)


def test_increments_out_of_order_are_found(chain: tuple[Path, Path]) -> None:
    folder, inside = chain
    (inside / "00000002").rename(inside / "x")
    (inside / "00000003").rename(inside / "00000002")
    (inside / "x").rename(inside / "00000003")
    with pytest.raises(CheckpointError, match="00000002 is out of order: it is increment 3"):
        hr.load([], folder)


def test_a_truncated_increment_is_found(chain: tuple[Path, Path]) -> None:
    folder, inside = chain
    file = next((inside / "00000002").glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=f"{file.name} is damaged"):
        hr.load([], folder)


def test_an_increment_of_another_base_is_found(chain: tuple[Path, Path], tmp_path: Path) -> None:
    folder, inside = chain
    table = filled(20, seed=4)
    hr.save([table], tmp_path / "b")
    hr.save_increment([table], tmp_path / "b", {"item": torch.tensor([1])})
    shutil.rmtree(inside / "00000003")
    shutil.copytree(next((tmp_path / "b").glob("increments-*")) / "00000001", inside / "00000003")
    with pytest.raises(CheckpointError, match="out of order"):
        hr.load([], folder)
    with pytest.raises(CheckpointError, match="holds increment 1, not a base"):
        hr.load([], inside / "00000001")


def test_a_new_base_ends_the_old_chain(chain: tuple[Path, Path]) -> None:
    folder, inside = chain
    table = filled(10, seed=6)
    hr.save([table], folder, overwrite=True)
    assert not inside.exists()
    assert _fresh(folder) == content(table)


def test_what_cannot_be_saved_as_an_increment(chain: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = chain
    table, ids = filled(10), torch.tensor([1])
    with pytest.raises(UnknownNameError, match="unknown table 'user'"):
        hr.save_increment([table], folder, {"user": ids})
    with pytest.raises(DtypeError, match=r"changed\['item'\]"):
        hr.save_increment([table], folder, {"item": ids.int()})
    with pytest.raises(CheckpointMissingError, match="no complete checkpoint"):
        hr.save_increment([table], tmp_path / "none", {"item": ids})
    other = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    with pytest.raises(InputError, match="another schema"):
        hr.save_increment([other], folder, {"item": ids})
    with pytest.raises(InputError, match="both"):
        reshard(folder, folder, 2)
    assert len(Chain.read(folder).increments) == 3


def test_expired_rows_become_deletions_and_tables_may_come_later(tmp_path: Path) -> None:
    item, late = filled(30), filled(30, "late")
    hr.save([item], tmp_path / "a")
    ids = next(iter(item.scan())).ids.clone()
    changed = {"item": ids, "late": ids}
    done = hr.save_increment([item, late], tmp_path / "a", changed, keep=lambda ids, ts: ts >= 9)
    fresh = [hr.HostTable(config()), hr.HostTable(config("late"))]
    hr.load(fresh, tmp_path / "a")
    for table, live in zip(fresh, (item, late), strict=True):
        assert content(table) == {k: v for k, v in content(live).items() if v[0] >= 9}
    assert done.tables["item"].deletions == item.size() - fresh[0].size()


def test_an_increment_beside_a_save_is_refused(chain: tuple[Path, Path]) -> None:
    from hedgerow.tables.checkpoint.files import sole_writer

    folder, _ = chain
    with sole_writer(folder), pytest.raises(SaveError, match="another save"):
        hr.save_increment([filled(10)], folder, {"item": torch.tensor([1])})
