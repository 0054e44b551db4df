"""Bundles: broken ones are refused, a killed export leaves none, and rows may be elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.errors import (
    FileDamagedError,
    FileMissingError,
    HedgerowError,
    InputError,
    NotSupportedError,
)
from hedgerow.serving.bundle import load_bundle
from hedgerow.serving.export import export, versions_in, write_version
from hedgerow.serving.model import Model, ServingError, Tensors
from hedgerow.serving.process import find_models
from hedgerow.serving.registry import Registry
from hedgerow.serving.remote_rows import Ask

from .trained import batch, request, tables, trained

PROGRAM = {"graph.json", "weights.safetensors", "constants.safetensors"}
pytestmark = pytest.mark.xdist_group("bundle")  # one worker trains and exports for all


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A trained DeepFM, which no test changes."""
    torch.manual_seed(0)
    return trained(hr.models.DeepFM(tables(), dense=4, init=hr.Uniform(0.3)))


@pytest.fixture(scope="module")
def whole(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, which no test changes."""
    return export(model, tmp_path_factory.mktemp("base"), example=batch(2), version=4)


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of its bundle."""
    return Path(shutil.copytree(whole, tmp_path / "4"))


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_every_file_counts(copied: Path) -> None:
    load_bundle(copied, "ctr").close()
    names = {path.relative_to(copied).parts[0] for path in files_of(copied)}
    assert names == {*PROGRAM, "bundle.json", "rows"}
    for path in files_of(copied):
        right = path.read_bytes()
        flipped = bytearray(right)
        flipped[len(right) // 2] ^= 1
        for wrong in (bytes(flipped), right[:-1], right[: len(right) // 2], b"", right + b"\0"):
            path.write_bytes(wrong)
            with pytest.raises(HedgerowError):
                load_bundle(copied, "ctr")
        path.unlink()
        with pytest.raises(HedgerowError):
            load_bundle(copied, "ctr")
        path.write_bytes(right)
    load_bundle(copied, "ctr").close()


def test_errors_name_the_file(copied: Path) -> None:
    program = copied / "graph.json"
    program.write_bytes(program.read_bytes()[:-7])
    with pytest.raises(FileDamagedError, match=r"graph\.json is damaged: \d+ bytes"):
        load_bundle(copied, "ctr")
    program.unlink()
    with pytest.raises(FileDamagedError, match=r"graph\.json is missing"):
        load_bundle(copied, "ctr")
    with pytest.raises(FileMissingError, match="is no bundle"):
        load_bundle(copied.parent, "ctr")


def test_a_copy_under_another_number_is_that_version(copied: Path) -> None:
    """So an older version comes back: it is copied to a number above the newest."""
    served = load_bundle(Path(shutil.copytree(copied, copied.with_name("12"))), "ctr")
    assert served.version == 12
    assert load_bundle(copied, "ctr").version == 4


def test_a_link_under_another_number_is_that_version(copied: Path) -> None:
    link = copied.with_name("12")
    link.symlink_to(copied.name)
    registry = Registry(load_bundle)
    registry.watch("ctr", copied.parent, "all")
    assert registry.versions("ctr") == [4, 12]
    registry.close()


def test_a_model_that_is_not_the_one_asked_for_is_closed() -> None:
    closed: list[str] = []
    other = Model("ctr", 5, {}, lambda: closed.append("5"))
    registry = Registry()
    assert not registry.load("ctr", 4, lambda: other)
    assert closed == ["5"]
    registry.close()


def test_two_models_below_a_folder_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    """`entry` has the name of the folder above, as another one may have, too."""
    for name in ("entry", "ctr"):
        (tmp_path / "ctr" / name / "1").mkdir(parents=True)
    with pytest.raises(InputError, match=r"two models below .* would be called 'ctr'"):
        find_models(tmp_path / "ctr")
    ((name, folder, _),) = find_models(tmp_path / "ctr" / "entry")
    assert (name, folder.name) == ("ctr", "entry")


def test_a_manifest_of_another_time(copied: Path) -> None:
    path = copied / "bundle.json"
    body = json.loads(path.read_text())
    for change, words in (
        ({"format_version": 3}, "format_version 3"),
        ({"format": "other"}, "no manifest of a bundle"),
        ({"version": 9}, "its checksum is wrong"),
    ):
        path.write_text(json.dumps({**body, **change}))
        with pytest.raises(FileDamagedError, match=words):
            load_bundle(copied, "ctr")
    path.write_text("[1, 2")
    with pytest.raises(FileDamagedError, match="is damaged"):
        load_bundle(copied, "ctr")


KILLED = """
import os, signal, sys, torch
from hedgerow.serving.export import export

def dies(*_):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(sys.modules["hedgerow.serving.export"], sys.argv[2], dies)
export(torch.nn.Linear(1, 1), sys.argv[1], example=torch.ones(1, 1), version=3)
"""


@pytest.mark.parametrize("where", [pytest.param("entries_below", marks=pytest.mark.long), "_flush"])
def test_a_killed_export_leaves_no_version(where: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), where]
    done = subprocess.run(command, check=False, timeout=120, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert os.listdir(tmp_path / "entry")
    assert versions_in(tmp_path / "entry") == []
    again = export(nn.Linear(1, 1), tmp_path, example=torch.ones(1, 1), version=3)
    assert load_bundle(again, "m").version == 3
    assert os.listdir(tmp_path / "entry") == ["3"]  # what was left is cleared away


WRITES = """
import sys
from pathlib import Path
from hedgerow.serving.export import write_version

def slow(part):
    (part / "half").write_text("written")
    print("writing", flush=True)
    sys.stdin.read()

write_version(Path(sys.argv[1]), slow)
"""


def test_a_folder_that_another_process_writes_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES, str(tmp_path / "1")]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "writing\n"
            write_version(tmp_path / "2", lambda part: (part / "whole").touch())
            assert len(os.listdir(tmp_path)) == 2
            other.communicate(timeout=60)
        finally:
            other.kill()
    assert other.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]
    assert os.listdir(tmp_path / "1") == ["half"]


def test_what_another_machine_writes_stays(tmp_path: Path) -> None:
    (tmp_path / ".1-01234567-0123456789ab.part").mkdir()
    write_version(tmp_path / "2", lambda part: (part / "whole").touch())
    assert sorted(os.listdir(tmp_path)) == [".1-01234567-0123456789ab.part", "2"]


# ---- rows


def ids_of(model: nn.Module) -> dict[str, Tensor]:
    names = ("item", "user")
    return {n: torch.cat([e.ids for e in model.bags.table(n).scan()]) for n in names}  # pyright: ignore


def test_lookup_and_raw_lookup_give_the_rows_of_the_model(model: nn.Module, whole: Path) -> None:
    served = load_bundle(whole, "ctr")
    ids = {name: torch.cat([known, known[:3], known - 1]) for name, known in ids_of(model).items()}
    expected = {n: model.bags.table(n).lookup(i).rows_of(0) for n, i in ids.items()}  # pyright: ignore
    found = served.signatures["lookup"].run(ids)
    raw = {
        "id": torch.cat([ids["item"], ids["user"]]),
        "id_split": torch.tensor([0, len(ids["item"]), len(ids["item"]) + len(ids["user"])]),
    }
    flat = served.signatures["raw_lookup"].run(raw)["flat_emb"]
    assert torch.equal(flat, torch.cat([expected["item"].view(-1), expected["user"].view(-1)]))
    for name, rows in expected.items():
        assert torch.equal(found[name], rows)


def test_pushed_rows_are_served_at_once(whole: Path) -> None:
    served = load_bundle(whole, "ctr")
    run = {name: signature.run for name, signature in served.signatures.items()}
    new = torch.tensor([-(2**63), 0, 2**63 - 1])
    result = run["hashtable_assign"](
        {
            "item_id": new,
            "item_value": torch.ones(3, 9),
            "user_id": new[:0],
            "user_value": torch.ones(0, 9),
        }
    )
    assert {n: (int(t), t.dtype, t.dim()) for n, t in result.items()} == {
        "item_result": (3, torch.int32, 0),
        "user_result": (0, torch.int32, 0),
    }
    done = run["MonolithMultiHashTable_0/raw_assign"](
        {
            "id": new[1:].repeat(2),
            "id_split": torch.tensor([0, 2, 4]),
            "flat_value": torch.arange(36.0),
        }
    )
    assert int(done["result"]) == 0
    found = run["lookup"]({"item": new, "user": new})
    assert found["item"][:, 0].tolist() == [1.0, 0.0, 9.0]
    assert found["user"][:, 0].tolist() == [0.0, 18.0, 27.0]
    gone = run["hashtable_remove"]({"item_id": new, "user_id": new})
    assert {n: int(t) for n, t in gone.items()} == {"item_result": 3, "user_result": 2}
    assert not run["lookup"]({"item": new, "user": new})["item"].any()


def test_wrong_pushes_change_nothing(whole: Path) -> None:
    served = load_bundle(whole, "ctr")
    run = {name: signature.run for name, signature in served.signatures.items()}
    raw = run["MonolithMultiHashTable_0/raw_assign"]
    new, ones = torch.tensor([-9]), torch.ones(1, 9)
    right = {"item_id": new, "item_value": ones, "user_id": new, "user_value": ones}
    nan = torch.full((1, 9), float("nan"))
    for wrong in (
        {**right, "user_value": torch.ones(2, 9)},
        {**right, "user_value": torch.ones(1, 8)},
        {**right, "user_value": nan},
    ):
        with pytest.raises(ServingError) as refused:
            run["hashtable_assign"](wrong)
        assert refused.value.code == "INVALID_ARGUMENT"
    for splits, floats in (([0, 1], 9), ([0, 2, 1], 9), ([0, 0, 1], 8), ([1, 1, 1], 9)):
        with pytest.raises(ServingError):
            raw({"id": new, "id_split": torch.tensor(splits), "flat_value": torch.ones(floats)})
        with pytest.raises(ServingError):
            run["raw_lookup"]({"id": new[:0], "id_split": torch.tensor([*splits, 7])})
    assert not run["lookup"]({"item": new, "user": new})["item"].any()


# ---- rows on servers


def asking(servers: Mapping[str, Model], asked: list[int]) -> Ask:
    """Asks models of this process, and keeps count of ids."""

    def ask(requests: Mapping[str, Tensors]) -> dict[str, Tensors]:
        asked.append(sum(len(inputs["id"]) for inputs in requests.values()))
        return {n: servers[n].signatures["raw_lookup"].run(i) for n, i in requests.items()}

    return ask


@pytest.fixture(scope="module")
def split(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base folder of an export over three servers."""
    base = tmp_path_factory.mktemp("split")
    export(model, base, example=batch(2), version=4, servers=3)
    return base


def test_servers_share_the_rows_and_entry_asks_them(model: nn.Module, split: Path) -> None:
    assert sorted(os.listdir(split)) == ["entry", "ps_0", "ps_1", "ps_2"]
    servers = {f"ps_{i}": load_bundle(split / f"ps_{i}/4", f"ps_{i}") for i in range(3)}
    for i, server in enumerate(servers.values()):
        assert f"MonolithMultiHashTable_{i}/raw_assign" in server.signatures
        assert "serving_default" not in server.signatures
    ids = ids_of(model)
    parts = [server.signatures["lookup"].run(ids) for server in servers.values()]
    for name, known in ids.items():
        rows = model.bags.table(name).lookup(known).rows_of(0)  # pyright: ignore
        assert torch.equal(sum(part[name] for part in parts), rows)  # pyright: ignore
        assert all(part[name].any() for part in parts)
    item = ids["item"]  # roundrobin: the unsigned id modulo 3
    owner = torch.tensor([(i % 2**64) % 3 for i in item.tolist()])
    assert not parts[1]["item"][owner != 1].any()
    asked: list[int] = []
    entry = load_bundle(split / "entry/4", "entry", ask=asking(servers, asked))
    assert [*entry.signatures] == ["serving_default"]
    for samples in (0, 1, 40):
        dense, batch_ids = batch(samples, seed=samples)
        found = entry.signatures["serving_default"].run(request(dense, batch_ids))["output"]
        torch.testing.assert_close(found, model(dense, batch_ids).detach(), rtol=0, atol=1e-6)
    assert 0 < asked[-1] < len(batch_ids.values)  # every id once


def test_entry_without_its_servers(split: Path) -> None:
    with pytest.raises(NotSupportedError, match="on 3 servers"):
        load_bundle(split / "entry/4", "entry")
    entry = load_bundle(split / "entry/4", "entry", ask=lambda _: {})
    with pytest.raises(ServingError, match="did not answer") as failed:
        entry.signatures["serving_default"].run(request(*batch(9)))
    assert failed.value.code == "INTERNAL"
