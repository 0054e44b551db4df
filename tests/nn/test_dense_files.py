"""The dense part on disk: every type comes back bit for bit, and hostile files change nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import CheckpointError, InputError
from hedgerow.nn.saved_state import DenseFile, dense_part
from hedgerow.tables.checkpoint.manifest import DENSE, MANIFEST
from hedgerow.tables.checkpoint.manifest_reader import read_manifest

from ..tables.checkpoint.common import change_manifest, content

TYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
]


def _bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), bytes(plain.view(torch.uint8).tolist())


def _noise(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


class _Holder:
    """Anything with a state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def _model() -> nn.Sequential:
    return nn.Sequential(hr.EmbeddingBags([hr.Table("user", 2)]), nn.Linear(2, 3))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_type_and_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = [(), (0,), (3, 0, 2), (1,), (5,), (3, 4), (2, 1, 3)]
    state = {str(dtype): [_noise(dtype, shape) for shape in shapes] for dtype in TYPES}
    base = torch.randn(6, 8)
    views = [base.t(), base[::2, 1::3], base[0].expand(4, 8), base[2], base]  # shared storage
    complex_ = torch.randn(3, dtype=torch.complex64)
    state["views"] = [*views, complex_.conj(), complex_.imag, complex_.conj().imag]
    state["plain"] = {1: True, None: "x", 2.5: (1, (2, []), {}), "inf": float("-inf"), "": -0.0}
    hr.save(_model(), tmp_path / "a", extras={"all": _Holder(state)})
    found = _Holder()
    hr.load(_model(), tmp_path / "a", extras={"all": found})
    assert list(found.state) == list(state)
    for name in [*map(str, TYPES), "views"]:
        assert [_bits(t) for t in found.state[name]] == [_bits(t) for t in state[name]]
    assert found.state["plain"] == state["plain"]
    assert str(found.state["plain"][""]) == "-0.0"


def test_the_file_is_what_safetensors_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = _model()
    hr.save(model, tmp_path / "a")
    (path,) = (tmp_path / "a").glob("dense-*.safetensors")
    assert {n: t.tolist() for n, t in load_file(path).items()} == {
        f"model.{n}": t.tolist() for n, t in model[1].state_dict(prefix="1.").items()
    }


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.LBFGS(p, history_size=3),
        lambda p: torch.optim.RMSprop(p, centered=True),
    ],
)
def test_states_of_optimizers_come_back_exactly(
    tmp_path: Path, optimizer: Callable[..., Any]
) -> None:
    model = _model()
    ours = optimizer(model.parameters())

    def loss() -> torch.Tensor:
        ours.zero_grad()
        value = model[1](torch.ones(4, 2)).square().sum()
        value.backward()
        return value

    for _ in range(3):
        ours.step(loss)
    hr.save(model, tmp_path / "a", optimizer=ours)
    fresh = _model()
    theirs = optimizer(fresh.parameters())
    hr.load(fresh, tmp_path / "a", optimizer=theirs)
    one, two = io_bytes(ours.state_dict()), io_bytes(theirs.state_dict())
    assert one == two


def io_bytes(value: Any) -> Any:
    """A state with tensors as bits."""
    if isinstance(value, torch.Tensor):
        return _bits(value)
    if isinstance(value, dict):
        return {name: io_bytes(inner) for name, inner in value.items()}
    return [io_bytes(inner) for inner in value] if isinstance(value, list | tuple) else value


class _WithState(nn.Module):
    """A module of the user's whose state is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = hr.EmbeddingBags([hr.Table("user", 2)])
        self.extra: Any = {"seen": 3, "last": torch.ones(2, dtype=torch.int8)}

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_what_is_no_tensor_in_a_model_comes_back(tmp_path: Path) -> None:
    hr.save(_WithState(), tmp_path / "a")
    fresh = _WithState()
    fresh.extra = {}
    hr.load(fresh, tmp_path / "a")
    assert io_bytes(fresh.extra) == io_bytes(_WithState().extra)
    change_manifest(tmp_path / "a", lambda m: m["metadata"]["objects"].clear())
    with pytest.raises(CheckpointError, match="lacks '_extra_state'"):
        hr.load(fresh, tmp_path / "a")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged),
    ],
    ids=["sparse", "meta", "nested"],
)
def test_tensors_that_are_not_plain_are_refused_before_a_byte(
    tmp_path: Path, tensor: torch.Tensor
) -> None:
    with pytest.raises(InputError, match=r"extra\.one\.0 is a \w*Tensor"):
        hr.save(_model(), tmp_path / "a", extras={"one": _Holder([tensor])})
    assert not (tmp_path / "a").exists()


# ---- hostile folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "a"
    model = _model()
    model[0].table("user").assign(torch.arange(9), torch.ones(9, 2))
    hr.save(model, folder, extras={"one": _Holder({"a": [torch.ones(2), 1.5]})}, step=4)
    return folder


def _refused(folder: Path, match: str | None = None, **how: Any) -> None:
    """The load raises one of our errors, and nothing of the model has changed."""
    model, extra = _model(), _Holder("before")
    before = io_bytes(model[1].state_dict())
    with pytest.raises(CheckpointError, match=match):
        hr.load(model, folder, extras={"one": extra}, **how)
    assert extra.state == "before"
    assert io_bytes(model[1].state_dict()) == before
    assert content(model[0].table("user")) == {}


def _with_dense(folder: Path, data: bytes) -> None:
    """Puts other bytes in the place of the dense part, with a size and a checksum that fit."""
    (path,) = folder.glob("dense-*")
    path.write_bytes(data)

    def change(manifest: dict[str, Any]) -> None:
        (blob,) = [b for b in manifest["blobs"] if b["name"] == DENSE]
        blob["bytes"], blob["sha256"] = len(data), hashlib.sha256(data).hexdigest()

    change_manifest(folder, change)


def _file(head: Any, data: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE = {
    "nothing": b"",
    "a short length": b"\1\2\3",
    "a huge head": struct.pack("<Q", 2**63 - 1) + b"{}",
    "a head of 4 GiB": struct.pack("<Q", 2**32) + b"{}",
    "a head beyond the file": struct.pack("<Q", 99) + b"{}",
    "no JSON": _file(b"\xff\xfe{"),
    "a list": _file([1, 2]),
    "nested": _file(b'{"a":' * 50_000),
    "a nested list": _file(b"[" * 100_000 + b"]" * 100_000),
    "no tensors": _file({}),
    "offsets beyond": _file({"model.1.weight": _entry(offsets=[0, 400])}, bytes(4)),
    "offsets turned round": _file({"model.1.weight": _entry(offsets=[4, 0])}, bytes(4)),
    "negative offsets": _file({"model.1.weight": _entry(offsets=[-4, 0])}, bytes(4)),
    "a shape that lies": _file({"model.1.weight": _entry(shape=[2**40, 2**40])}, bytes(4)),
    "a negative shape": _file({"model.1.weight": _entry(shape=[-1])}, bytes(4)),
    "an unknown type": _file({"model.1.weight": _entry("PICKLE")}, bytes(4)),
    "a hole": _file({"model.1.weight": _entry(offsets=[4, 8])}, bytes(8)),
    "more bytes": _file({"model.1.weight": _entry()}, bytes(99)),
    "other tensors": _file({"other": _entry()}, bytes(4)),
    "types that are none": _file({"__metadata__": {"hedgerow types": '{"a": "object"}'}}),
    "types in a list": _file({"__metadata__": {"hedgerow types": "[1]"}}),
    "types nested": _file({"__metadata__": {"hedgerow types": "[" * 100_000}}),
    "a pickle": pickle.dumps(print),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_dense_part_is_refused(whole: Path, tmp_path: Path, kind: str) -> None:
    copy = shutil.copytree(whole, tmp_path / "a")
    _with_dense(copy, HOSTILE[kind])
    _refused(copy)


def test_noise_in_the_dense_part_is_refused_or_harmless(whole: Path, tmp_path: Path) -> None:
    """With a checksum that fits: what an enemy writes, who may write all of the folder."""
    copy = shutil.copytree(whole, tmp_path / "a")
    (path,) = copy.glob("dense-*")
    good, at_random, outcomes = path.read_bytes(), random.Random(3), set()
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(at_random.randrange(1, 4)):
            bad[at_random.randrange(len(bad))] = at_random.randrange(256)
        cut = at_random.randrange(len(bad)) if at_random.random() < 0.2 else len(bad)
        _with_dense(copy, bytes(bad[:cut]))
        try:
            hr.load(_model(), copy, extras={"one": _Holder()})
            outcomes.add("loaded")  # the noise fell on a value
        except CheckpointError:
            outcomes.add("refused")
    assert outcomes == {"loaded", "refused"}


def _set(*way: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in way[:-1]:
            place = place[key]
        place[way[-1]] = value

    return change


NAMES = ["../../etc", "/etc", "..", ".", "a/b", "dense-0\0", "", "\ud800", "dense-" + "0" * 300]
JUNK: list[Any] = [None, True, -1, 1.5, "x", [], {}, [[]], {"a": 1}, ["x"], [2**70], 10**400]
ABOUT = [
    *[_set("metadata", "dense", value=value) for value in [*NAMES, *JUNK]],
    *[_set("metadata", "updates", value=value) for value in [*JUNK, [], [1, 2], ["1"], [-1]]],
    *[_set("metadata", "extras", value=value) for value in [*JUNK, {"extra.one": [1]}]],
    *[
        _set("metadata", "extras", "extra.one", value=value)
        for value in [
            *JUNK[5:10],
            {"tensor": 7},
            {"tensor": -1},
            {"tensor": True},
            {"tensor": "0"},
            {"tensor": [0]},
            {"float": "1e9"},
            {"float": [1]},
            {"dict": [[1]]},
            {"dict": [[[1], 2]]},
            {"dict": {"a": 1}},
            {"list": 5},
            {"object": []},
            {"list": [], "dict": []},
        ]
    ],
    *[_set("metadata", value=value) for value in ({}, {"dense": DENSE}, {"dense_sha256": {}})],
    *[_set("blobs", 0, "file", value=name) for name in NAMES],
    *[_set("files", 0, "file", value=name) for name in NAMES],
    _set("blobs", value=[]),
]


@pytest.mark.parametrize("number", range(len(ABOUT)))
@pytest.mark.parametrize("trusted", [False, True])
def test_bad_metadata_is_one_of_our_errors(
    whole: Path, tmp_path: Path, number: int, trusted: bool
) -> None:
    copy = shutil.copytree(whole, tmp_path / "a")
    try:
        change_manifest(copy, ABOUT[number])
    except (UnicodeEncodeError, ValueError):  # no file holds this
        return
    model, extra = _model(), _Holder("before")
    with pytest.raises(CheckpointError):
        hr.load(model, copy, extras={"one": extra}, trusted=trusted)
    assert extra.state == "before"


class _Picky(nn.Linear):
    """Has a state that is no tensor, and takes it at its word."""

    def get_extra_state(self) -> Any:
        return {"kind": 7}

    def set_extra_state(self, state: Any) -> None:
        self.kind = state["kind"] + 1


@pytest.mark.parametrize("state", [None, 3, {"list": []}, {"dict": []}, {"dict": [["kind", "x"]]}])
def test_a_state_that_a_module_does_not_take_is_refused(tmp_path: Path, state: Any) -> None:
    model = nn.Sequential(_model(), _Picky(2, 2))
    hr.save(model, tmp_path / "a")
    change = _set("metadata", "objects", "1._extra_state", value=state)
    change_manifest(tmp_path / "a", change)
    with pytest.raises(CheckpointError, match="the state of the model does not fit"):
        hr.load(model, tmp_path / "a")


@pytest.mark.parametrize(
    "state", [{"dict": []}, None, 3, {"list": []}, {"dict": [["param_groups", {"list": [1]}]]}]
)
def test_a_state_that_an_optimizer_does_not_take_is_refused(tmp_path: Path, state: Any) -> None:
    model = _model()
    adam = torch.optim.Adam(model.parameters(), lr=0.5)
    hr.save(model, tmp_path / "a", optimizer=adam)
    change_manifest(tmp_path / "a", _set("metadata", "extras", "optimizer", value=state))
    before = io_bytes(model[1].state_dict())
    with pytest.raises(CheckpointError, match="the state of optimizer does not fit"):
        hr.load(model, tmp_path / "a", optimizer=adam)
    assert io_bytes(model[1].state_dict()) == before


def test_a_state_that_is_nested_too_deeply_is_refused(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "a")
    deep: Any = 1
    for _ in range(300):
        deep = {"list": [deep]}
    text = json.dumps(deep)
    for _ in range(3):
        text = text.replace("[1]", f"[{text}]")
    from hedgerow.tables.checkpoint.manifest import seal

    values = json.loads((copy / MANIFEST).read_text())
    del values["checksum"]
    values["metadata"]["extras"]["extra.one"] = "HERE"
    (copy / MANIFEST).write_bytes(seal(json.dumps(values).replace('"HERE"', text)))
    _refused(copy)
    holder = _Holder()
    holder.state = [holder.state]
    holder.state.append(holder.state)
    with pytest.raises(InputError, match="holds itself"):
        hr.save(_model(), tmp_path / "b", extras={"one": holder})


@pytest.mark.timeout(60)  # a pipe without a writer would be waited for
@pytest.mark.parametrize("what", ["dense", "rows", MANIFEST])
@pytest.mark.parametrize("kind", ["pipe", "link", "device", "folder", "link to a pipe", "socket"])
def test_only_plain_files_are_opened(whole: Path, tmp_path: Path, what: str, kind: str) -> None:
    import socket
    import stat

    copy = shutil.copytree(whole, tmp_path / "a")
    names = {"dense": next(copy.glob("dense-*")), "rows": next(copy.glob("*.arrow"))}
    path = names.get(what, copy / MANIFEST)
    held = socket.socket(socket.AF_UNIX)
    path.rename(tmp_path / "real")
    if kind == "link":  # to the very bytes that belong there
        path.symlink_to(tmp_path / "real")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a pipe":
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    elif kind == "device":
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    elif kind == "socket":
        here = os.open(copy, os.O_RDONLY)
        held.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
    else:
        path.mkdir()
    with held:
        _refused(copy, "no plain file but")


# ---- version 0.1


class _Runs:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def _as_version_0(folder: Path) -> Path:
    """The checkpoint as version 0.1 wrote it: the dense part in a folder of torch's own."""
    import torch.distributed.checkpoint as dcp

    entry = read_manifest(folder).dense
    assert entry is not None
    file = DenseFile(folder / entry.file)
    dense = folder / entry.file.removesuffix(".safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(
            {name: file.tensor(name) for name in file.names}, checkpoint_id=dense, no_dist=True
        )
    (folder / entry.file).unlink()

    def change(manifest: dict[str, Any]) -> None:
        manifest["blobs"] = [b for b in manifest["blobs"] if b["name"] != DENSE]
        manifest["metadata"]["dense"] = dense.name
        manifest["metadata"]["dense_sha256"] = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dense.iterdir()
        }

    change_manifest(folder, change)
    return dense


def test_a_checkpoint_of_version_0_1_needs_trust(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "a")
    dense = _as_version_0(copy)
    _refused(copy, r"version 0\.1.*can run any code.*trusted=True")
    one, two = (_model(), _Holder()), (_model(), _Holder())
    hr.load(one[0], whole, extras={"one": one[1]})
    assert hr.load(two[0], copy, extras={"one": two[1]}, trusted=True).step == 4
    assert io_bytes([two[0][1].state_dict(), two[1].state]) == io_bytes(
        [one[0][1].state_dict(), one[1].state]
    )
    assert content(two[0][0].table("user")) == content(one[0][0].table("user"))
    hr.save(two[0], copy, overwrite=True)  # in the new form; the old folder goes
    assert not dense.exists()
    hr.load(_model(), copy)


def test_code_in_an_old_checkpoint_runs_only_if_trusted(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "a")
    dense = _as_version_0(copy)
    (dense / ".metadata").write_bytes(pickle.dumps(_Runs(tmp_path / "ran")))
    sums = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in dense.iterdir()}
    change_manifest(copy, lambda m: m["metadata"].update(dense_sha256=sums))
    _refused(copy, "trusted=True")
    assert not (tmp_path / "ran").exists()
    _refused(copy, trusted=True)  # it ran, and was no checkpoint
    assert (tmp_path / "ran").exists()


def test_an_old_dense_part_that_is_damaged_is_refused(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "a")
    dense = _as_version_0(copy)
    (dense / "more").write_bytes(b"")
    _refused(copy, "not those of the manifest", trusted=True)
    (dense / "more").unlink()
    os.mkfifo(dense / "more")
    _refused(copy, "no plain file but a pipe", trusted=True)
    shutil.move(dense, tmp_path / "moved")
    _refused(copy, "is not a folder", trusted=True)
    dense.symlink_to(tmp_path / "moved")
    _refused(copy, "is not a folder", trusted=True)


def test_a_save_over_an_old_checkpoint_that_is_killed_leaves_it_whole(
    whole: Path, tmp_path: Path
) -> None:
    from hedgerow.tables.checkpoint import save

    copy = shutil.copytree(whole, tmp_path / "a")
    dense = _as_version_0(copy)

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save, "write_checkpoint", stopped)
        with pytest.raises(KeyboardInterrupt):
            hr.save(_model(), copy, overwrite=True)
    assert dense.is_dir()
    assert hr.load(_model(), copy, trusted=True).step == 4


def test_the_bytes_of_a_dense_part_are_counted_before_they_are_written() -> None:
    part, found = (
        dense_part({"b": torch.ones(3), "a": torch.ones(2, dtype=torch.int8)}),
        bytearray(),
    )
    part.write(found.extend)
    assert len(found) == part.file_bytes


def test_reshard_and_compact_keep_the_dense_part(whole: Path, tmp_path: Path) -> None:
    from hedgerow.tables.checkpoint.increments import compact, reshard

    copy = shutil.copytree(whole, tmp_path / "a")
    model = _model()
    hr.load(model, copy)
    hr.save_increment([model[0].table("user")], copy, {"user": torch.arange(3)}, step=9)
    compact(copy)
    reshard(copy, tmp_path / "b", 3)
    for folder in (copy, tmp_path / "b"):
        fresh = _model()
        hr.load(fresh, folder)
        assert io_bytes(fresh[1].state_dict()) == io_bytes(model[1].state_dict())
        assert len(list(folder.glob("dense-*"))) == 1
