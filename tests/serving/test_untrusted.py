"""Bundles of strangers: nothing in one runs, whatever it holds; signed ones are told apart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.errors import ConfigError, FileDamagedError, HedgerowError
from hedgerow.serving import bundle
from hedgerow.serving.bundle import load_bundle
from hedgerow.serving.bundle_files import new_key, read_manifest
from hedgerow.serving.export import export
from hedgerow.serving.model import Model
from hedgerow.tables.config import TableConfig

from . import old_bundles
from .old_bundles import EXPLOITS, make_old, reseal, seal

pytestmark = pytest.mark.xdist_group("untrusted")
ASKED = {
    "dense": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "user": torch.tensor([7, 8, 9]),
    "user_lengths": torch.tensor([1, 2]),
}


class Small(nn.Module):
    """Two numbers and one feature."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Uniform(0.5))
        self.top = nn.Linear(4, 1)

    def forward(self, dense: Tensor, ids: hr.IdBatch) -> Tensor:
        return self.top(torch.cat([dense, self.bags(ids)["user"]], dim=1)).squeeze(1)


EXAMPLE = (torch.zeros(2, 2), hr.IdBatch.from_lists({"user": [[7], [8, 9]]}))


@pytest.fixture(scope="module")
def model() -> Small:
    torch.manual_seed(0)
    made = Small()
    made(*EXAMPLE).sum().backward()
    return made


@pytest.fixture(scope="module")
def good(model: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(model, tmp_path_factory.mktemp("base"), example=EXAMPLE, version=4)


@pytest.fixture(scope="module")
def old(model: Small, good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(good, tmp_path_factory.mktemp("old") / "4"))
    make_old(folder, model, EXAMPLE)
    return folder


@pytest.fixture
def copied(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "m" / "entry" / "4"))


def predict(served: Model) -> list[float]:
    return served.signatures["serving_default"].run(ASKED)["output"].tolist()


def served_by_a_process(base: Path, *more: str) -> tuple[int, str]:
    """The exit status of a `hedgerow serve` that should refuse to start, and what it says."""
    command = [sys.executable, "-m", "hedgerow", "serve", str(base), "--http", "off"]
    command += ["--grpc", "127.0.0.1:0", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr


# ---- release 0.1


def test_an_old_bundle_loads_only_where_its_maker_is_trusted(
    old: Path, model: Small, good: Path
) -> None:
    with pytest.raises(FileDamagedError, match="trusted=True"):
        load_bundle(old, "m")
    expected = predict(load_bundle(good, "m"))
    found = load_bundle(old, "m", trusted=True)
    assert predict(found) == pytest.approx(expected)
    found.close()


@pytest.mark.parametrize("exploit", EXPLOITS)
def test_an_old_bundle_that_runs_code_is_not_read(
    exploit: Callable[[Path, Path], None], old: Path, tmp_path: Path
) -> None:
    marker, folder = tmp_path / "marker", tmp_path / "m" / "entry" / "4"
    shutil.copytree(old, folder)
    exploit(folder / "dense.pt2", marker)
    reseal(folder)
    with pytest.raises(FileDamagedError, match=r"release 0\.1"):
        load_bundle(folder, "m")
    status, text = served_by_a_process(tmp_path / "m")
    assert status == 1
    assert "release 0.1" in text
    assert not marker.exists()
    with suppress(HedgerowError):  # the exploit is one: with trust it runs
        load_bundle(folder, "m", trusted=True).close()
    assert marker.exists()


# ---- today's


def graph_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "graph.json").read_text())


def _node(op: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"op": op, "args": list(args), "kwargs": kwargs}


def _add(op: str, *args: Any, **kwargs: Any) -> Callable[[dict[str, Any], str], None]:
    def change(graph: dict[str, Any], code: str) -> None:
        given = [code if one == "CODE" else one for one in args]
        named = {k.replace("CODE", code): code if v == "CODE" else v for k, v in kwargs.items()}
        graph["nodes"].append(_node(op.replace("CODE", code), *given, **named))

    return change


def _rename(what: str) -> Callable[[dict[str, Any], str], None]:
    def change(graph: dict[str, Any], code: str) -> None:
        if what == "output":
            graph["outputs"] = {f"x = {code}": one for one in graph["outputs"].values()}
        else:
            for one in graph["values"]:
                if one[0] == what:
                    one[1] = code

    return change


def _replace_op(graph: dict[str, Any], code: str) -> None:
    graph["nodes"][0]["op"] = f"aten.cat.default({code})"


def _text_in_read_rows(graph: dict[str, Any], code: str) -> None:
    for node in graph["nodes"]:
        if node["op"] == "hedgerow.read_rows.default":
            node["args"][1] = [f"'); {code}; ('"]
            node["args"][4] = [f"first {code}"]


CRAFTED: dict[str, Callable[[dict[str, Any], str], None]] = {
    "a call of Python": _add("builtins.eval", "CODE"),
    "a function of os": _add("os.system", "CODE"),
    "a function found by attribute": _add("operator.attrgetter", "CODE"),
    "an op that writes a file": _add("aten.from_file.default", "/tmp/hedgerow-marker", True, 8),
    "an op of another library": _add("prim.CallMethod.default", "CODE"),
    "torch by name": _add("torch.ops.aten.add.Tensor", 1, 2),
    "torch.load": _add("torch.load", "CODE"),
    "memory as it is": _add("aten.as_strided.default", {"value": 0}, [10**6], [1]),
    "code as an op": _replace_op,
    "code as an op of sizes": _add("operator.add; CODE", 1, 2),
    "code as an argument": _add("aten.einsum.default", "CODE", [{"value": 0}]),
    "code as the name of an argument": _add("aten.add.Tensor", {"value": 0}, 1, **{"x=CODE": 1}),
    "code as a dtype": _add("aten.to.dtype", {"value": 0}, {"dtype": "float32; CODE"}),
    "an expression of a size": _add("aten.full.default", [{"expr": "CODE"}], 1),
    "code as a weight's name": _rename("weight"),
    "code as an input's name": _rename("input"),
    "code as an output's name": _rename("output"),
    "code where rows are read": _text_in_read_rows,
    "endless numbers": lambda graph, _: graph["nodes"].extend(
        [_node("operator.pow", 10, 10**9), _node("operator.add", {"value": 1}, 10**400)]
    ),
    "itself": lambda graph, _: graph["nodes"].append(_node("aten.neg.default", {"value": 10**6})),
    "lists in lists": lambda graph, _: graph["nodes"].append(
        _node("aten.cat.default", json.loads("[" * 60 + "]" * 60))
    ),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_graph_runs_nothing(kind: str, copied: Path, tmp_path: Path) -> None:
    marker, graph = tmp_path / "marker", graph_of(copied)
    CRAFTED[kind](graph, f"__import__('os').system('touch {marker}')")
    (copied / "graph.json").write_text(json.dumps(graph))
    reseal(copied)
    with suppress(HedgerowError):
        served = load_bundle(copied, "m")
        served.signatures["serving_default"].run(ASKED)
    assert not marker.exists()
    assert not Path("/tmp/hedgerow-marker").exists()


REFUSED = [one for one in CRAFTED if one not in {"code as an argument", "code where rows are read"}]


def test_crafted_graphs_are_refused_by_a_server(good: Path, tmp_path: Path) -> None:
    """All of them as versions of one model: the good one answers, and no other."""
    base, marker = tmp_path / "m" / "entry", tmp_path / "marker"
    for version, kind in enumerate(REFUSED, 10):
        folder = Path(shutil.copytree(good, base / str(version)))
        graph = graph_of(folder)
        CRAFTED[kind](graph, f"__import__('os').system('touch {marker}')")
        (folder / "graph.json").write_text(json.dumps(graph))
        reseal(folder)
    status, text = served_by_a_process(base)
    assert status == 1, text
    assert not marker.exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "constants.safetensors", "graph.json"])
def test_a_pickle_in_place_of_a_file_is_not_read(name: str, copied: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (copied / name).write_bytes(old_bundles.pickle_bytes(marker))
    reseal(copied)
    with pytest.raises(FileDamagedError):
        load_bundle(copied, "m")
    buffer = copied / name
    torch.save(old_bundles.Touches(marker), buffer)
    reseal(copied)
    with pytest.raises(FileDamagedError):
        load_bundle(copied, "m")
    assert not marker.exists()


# ---- names and kinds of files


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("make", [_fifo, _link, _device, _folder])
def test_no_file_may_be_a_link_fifo_device_or_folder(
    make: Callable[[Path], None], copied: Path
) -> None:
    for path in _files(copied):
        right = path.read_bytes()
        path.unlink()
        make(path)
        with pytest.raises(HedgerowError):
            load_bundle(copied, "m")
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_bytes(right)
    load_bundle(copied, "m").close()


def test_a_link_to_the_same_bytes_is_refused_too(copied: Path, good: Path) -> None:
    for path in _files(copied):
        right = path.read_bytes()
        path.unlink()
        path.symlink_to(good / path.relative_to(copied))
        with pytest.raises(HedgerowError):
            load_bundle(copied, "m")
        path.unlink()
        path.write_bytes(right)
    rows = copied / "rows"
    shutil.rmtree(rows)
    rows.symlink_to(good / "rows")
    with pytest.raises(HedgerowError, match="no plain file"):
        load_bundle(copied, "m")


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "rows/../../out", "a/b/c", "", "."])
def test_names_cannot_leave_the_folder(name: str, copied: Path) -> None:
    (copied.parent / "out").write_bytes(b"x")
    path = copied / "bundle.json"
    body = json.loads(path.read_text())
    body.pop("checksum")
    body["files"][name] = next(iter(body["files"].values()))
    seal(path, body)
    with pytest.raises(FileDamagedError, match="files"):
        load_bundle(copied, "m")


def test_the_manifest_has_the_checksum_of_every_file(good: Path) -> None:
    named = {*json.loads((good / "bundle.json").read_text())["files"]}
    there = {path.relative_to(good).as_posix() for path in _files(good)}
    assert named == there - {"bundle.json"}


# ---- metadata

_WRONG: tuple[Any, ...] = (None, 7, -1, 1.5, "x", True, [], [1], {}, {"x": 1}, {"x": {}}, [[]])


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(place for key, one in inner for place in _places(one, (*at, key)))]


def test_wrong_metadata_gives_our_errors(copied: Path) -> None:
    """Every value of the manifest but checksums, replaced by values of every other kind."""
    path = copied / "bundle.json"
    body = json.loads(path.read_text())
    body.pop("checksum")
    tried = 0
    for place in _places(body)[1:]:
        if place[0] == "files":
            continue
        for number, wrong in enumerate(_WRONG):
            if (number + len(str(place))) % 3:  # a third of all: there are thousands
                continue
            changed = json.loads(json.dumps(body))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = wrong
            seal(path, changed)
            with suppress(HedgerowError):
                load_bundle(copied, "m").close()
            tried += 1
    assert tried > 100


MUTATED = """
import json, random, shutil, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
import torch
from hedgerow.core.errors import HedgerowError
from hedgerow.serving.bundle import load_bundle
from tests.serving.old_bundles import reseal
from tests.serving.test_untrusted import ASKED, _changed_json

good, work, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
dice, counts = random.Random(seed), {"refused": 0, "loaded": 0, "answered": 0}
for number in range(100):
    folder = work / str(number)
    shutil.copytree(good, folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    path = dice.choice([p for p in files if p.name != "bundle.json"] * 3 + files)
    data = bytearray(path.read_bytes())
    if path.suffix == ".json" and dice.random() < 0.7:
        data = bytearray(_changed_json(bytes(data), dice))
    else:
        for _ in range(dice.randint(1, 5)):
            at = dice.randrange(len(data) or 1)
            if dice.random() < 0.7 and data:
                data[at] = dice.randrange(256)
            else:
                del data[at : at + dice.randint(1, 9)]
    path.write_bytes(data)
    if dice.random() < 0.8:  # with right checksums, so that the contents are looked at
        try:
            reseal(folder)
        except (ValueError, KeyError, TypeError, AttributeError, HedgerowError):
            pass  # the manifest itself was changed
    try:
        served = load_bundle(folder, "m")
        counts["loaded"] += 1
        served.signatures["serving_default"].run(ASKED)
        counts["answered"] += 1
        served.close()
    except HedgerowError:
        counts["refused"] += 1
    shutil.rmtree(folder)
print(json.dumps(counts))
"""


def _changed_json(data: bytes, dice: Any) -> bytes:
    """A document with one value replaced by one of another place, or of another kind."""
    body = json.loads(data)
    places = _places(body)[1:]
    if not places:
        return data
    for _ in range(dice.randint(1, 3)):
        place, other = dice.choice(places), dice.choice(places)
        try:
            inner, value = body, body
            for key in other:
                value = value[key]
            for key in place[:-1]:
                inner = inner[key]
            given = dice.choice([value, dice.choice(_WRONG), 2**70, -(2**63), "x" * 1000])
            inner[place[-1]] = json.loads(json.dumps(given))
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    return json.dumps(body).encode()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_100_changed_bundles_are_refused_or_answer(seed: int, good: Path, tmp_path: Path) -> None:
    """In a process of its own: a crash or a hang would show."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", MUTATED, str(good), str(tmp_path), str(seed), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["refused"] + counts["answered"] == 100
    assert counts["refused"] > 20


# ---- signatures


def test_only_what_a_trusted_key_signed_is_loaded(model: Small, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    new_key(ours)
    new_key(theirs)
    assert ours.stat().st_mode & 0o077 == 0
    signed = export(model, tmp_path / "a", example=EXAMPLE, version=4, key=ours)
    load_bundle(signed, "m", key=ours).close()
    load_bundle(signed, "m").close()  # without a key any good bundle
    with pytest.raises(FileDamagedError, match="not signed with a key"):
        load_bundle(signed, "m", key=theirs)
    path = signed / "bundle.json"
    body = json.loads(path.read_text())
    body.pop("checksum")
    seal(path, {**body, "made_with": {"torch": "another"}})
    with pytest.raises(FileDamagedError, match="not signed with a key"):
        load_bundle(signed, "m", key=ours)
    (signed / "signature.json").unlink()
    with pytest.raises(FileDamagedError, match="is not signed"):
        load_bundle(signed, "m", key=ours)
    for text in ("", "[]", "{}", '{"algorithm": "none", "signature": ""}', "\x00", "[" * 9999):
        (signed / "signature.json").write_text(text)
        with pytest.raises(FileDamagedError):
            load_bundle(signed, "m", key=ours)
    short = tmp_path / "short"
    short.write_text("abc\n")
    with pytest.raises(ConfigError, match="32 to 4096"):
        load_bundle(signed, "m", key=short)
    with pytest.raises(HedgerowError, match="could not be written"):
        new_key(ours)


def test_rows_that_the_manifest_does_not_name_are_not_read(model: Small, tmp_path: Path) -> None:
    """An increment beside the rows of a signed bundle, from who may only write to its folder."""
    key = tmp_path / "key"
    new_key(key)
    signed = export(model, tmp_path, example=EXAMPLE, version=4, key=key)
    served = load_bundle(signed, "m", key=key)
    right = predict(served)
    others = [
        hr.HostTable(TableConfig.from_dict(dict(plain)))
        for plain in read_manifest(signed).tables.values()
    ]
    ids = torch.tensor([7, 8, 9])
    others[0].assign(ids, torch.full((3, 2), 666.0))
    hr.save_increment(others, signed / "rows", {"user": ids})
    for trusted in (key, None):
        assert predict(load_bundle(signed, "m", key=trusted)) == right


def test_rows_that_are_exchanged_after_the_check_are_not_read(
    model: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    new_key(key)
    signed = export(model, tmp_path / "a", example=EXAMPLE, version=4, key=key)
    right = predict(load_bundle(signed, "m", key=key))
    torch.manual_seed(1)
    other = Small()
    other(*EXAMPLE).sum().backward()
    theirs = export(other, tmp_path / "b", example=EXAMPLE, version=4)
    check = bundle.checked_bytes

    def check_then_exchange(*given: Any) -> dict[str, bytes]:
        found = check(*given)
        shutil.rmtree(signed / "rows")
        shutil.copytree(theirs / "rows", signed / "rows")
        return found

    monkeypatch.setattr(bundle, "checked_bytes", check_then_exchange)
    assert predict(load_bundle(signed, "m", key=key)) == right


def test_a_file_that_is_larger_than_the_manifest_says_is_not_read(copied: Path) -> None:
    """Not even into memory: a file with holes may have any size."""
    with (copied / "weights.safetensors").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(FileDamagedError, match=r"weights\.safetensors has 1099511627776 bytes"):
        load_bundle(copied, "m")


def test_off_loopback_a_server_loads_signed_bundles_alone(model: Small, tmp_path: Path) -> None:
    key, base = tmp_path / "key", tmp_path / "ctr"
    new_key(key)
    export(model, base, example=EXAMPLE, version=1)
    status, text = served_by_a_process(base, "--grpc", "0.0.0.0:0", "--insecure")
    assert status == 1
    assert "--trust KEY" in text
    status, text = served_by_a_process(base, "--trust", str(key))
    assert status == 1
    assert "is not signed" in text
    export(model, base, example=EXAMPLE, version=2, key=key)
    for more in (("--trust", str(key)), ("--trust-unsigned",)):
        command = [sys.executable, "-m", "hedgerow", "serve", str(base), "--http", "off"]
        command += ["--grpc", "0.0.0.0:0", "--insecure", *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("grpc 0.0.0.0:")
            process.terminate()
            assert process.wait(120) == 0
