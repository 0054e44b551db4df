"""A disk without room, and folders that take no files: said by name, and nothing is lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import InputError, SaveError
from hedgerow.core.files import write_whole
from hedgerow.planner.times.calibration import Calibration
from hedgerow.tables.checkpoint.increments import compact, reshard
from hedgerow.train.events import JsonLines, TensorBoard
from hedgerow.train.job import job_of

from ..planner.sample import sample
from ..tables.checkpoint.common import content


def _model(rows: int, weights: int) -> nn.Sequential:
    bags = hr.EmbeddingBags([hr.Table("user", 4)], optimizer=hr.Adagrad(lr=0.1))
    bags.table("user").assign(torch.arange(rows), torch.full((rows, 4), float(rows)))
    return nn.Sequential(bags, nn.Linear(weights, 1))


@contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no right to mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount command")
@pytest.mark.parametrize(("rows", "weights"), [(20_000, 10), (10, 200_000)], ids=["rows", "dense"])
def test_a_full_disk_is_told_with_the_file_and_the_room(
    tmp_path: Path, rows: int, weights: int
) -> None:
    with _small_disk(tmp_path / "disk", "256k") as disk:
        small, large = _model(100, 10), _model(rows, weights)
        hr.save(small, disk / "a", step=1)
        before = {path.name: path.read_bytes() for path in (disk / "a").iterdir()}
        for folder in ("a", "b"):
            with pytest.raises(SaveError) as caught:
                hr.save(large, disk / folder, step=2, overwrite=True)
            told = str(caught.value)
            file = "000-user-" if rows > 100 else "dense-"
            assert f"the save to {disk / folder} failed at {disk / folder / file}" in told
            assert "No space left on device. The save needs about " in told
            assert " KiB are free now. Its files were removed" in told
            assert "an earlier checkpoint is untouched; make room, or save elsewhere." in told
            assert "unexpected pos" not in told
            assert "\n" not in told
        assert {path.name: path.read_bytes() for path in (disk / "a").iterdir()} == before
        assert not (disk / "b").exists()
        fresh = _model(0, 10)
        assert hr.load(fresh, disk / "a").step == 1
        assert content(fresh[0].table("user")) == content(small[0].table("user"))


def _log(path: Path) -> None:
    log = JsonLines(path)
    try:
        log.write({"kind": "train", "step": 1})
    finally:
        log.close()


SMALL_FILES: dict[str, Callable[[Path], object]] = {
    "plan": lambda path: sample().save(path),
    "calibration": lambda path: Calibration.default("cpu").save(path),
    "job": lambda path: job_of({"data": {"source": "clicks"}}).save(path),
    "log": _log,
    "events": lambda path: TensorBoard(path),
}


@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount command")
@pytest.mark.parametrize("kind", SMALL_FILES)
def test_small_files_name_themselves_on_a_full_disk(tmp_path: Path, kind: str) -> None:
    with _small_disk(tmp_path / "disk", "16k") as disk:
        (disk / "old").write_text("before")
        with (disk / "fill").open("wb", buffering=0) as fill, suppress(OSError):
            while fill.write(b"x" * 1024):
                continue
        for name in ("new", "old", "below/new"):
            if kind in ("log", "events") and name == "old":  # a log that starts anew is emptied
                continue
            with pytest.raises(SaveError, match=f"{disk / name} could not be written: No space"):
                SMALL_FILES[kind](disk / name)
        assert (disk / "old").read_text() == "before"
        assert not [path for path in disk.rglob("*") if path.suffix == ".part"]


def test_a_small_file_is_written_through_what_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("link", "link"):
        write_whole(tmp_path / name, "text")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_text() == "text"
    write_whole(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("limit", [0, 1, 500, 3000, 5000])
def test_a_limit_of_file_sizes_is_told_too(tmp_path: Path, limit: int) -> None:
    hr.save(_model(5, 10), tmp_path / "a", step=1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    model = _model(200, 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(SaveError, match=r"File too large.*untouched"):
            hr.save(model, tmp_path / "a", overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


_AS_ANOTHER_USER = """
import os, sys
import torch, hedgerow as hr
from hedgerow.core.errors import InputError, SaveError
from hedgerow.tables.checkpoint.increments import compact
from hedgerow.tables.checkpoint.increments import reshard
from pathlib import Path
from tests.nn.test_full_disk import SMALL_FILES, _model
root = sys.argv[1]
model = _model(5, 3)
table = model[0].table("user")
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
calls = {
    "new": lambda: hr.save(model, root + "/new"),
    "below": lambda: hr.save(model, root + "/new/below"),
    "there": lambda: hr.save(model, root + "/there", overwrite=True),
    "tables": lambda: hr.save([table], root + "/there", overwrite=True),
    "async": lambda: hr.save_async([table], root + "/new").wait(),
    "increment": lambda: hr.save_increment([table], root + "/there", {"user": torch.arange(2)}),
    "compact": lambda: compact(root + "/there"),
    "reshard": lambda: reshard(root + "/there", root + "/new", 2),
    "closed": lambda: hr.save(model, root + "/closed/a", overwrite=True),
    "closed itself": lambda: hr.save(model, root + "/closed", overwrite=True),
    **{kind: lambda write=write: write(Path(root) / kind) for kind, write in SMALL_FILES.items()},
}
for name, call in calls.items():
    try:
        call()
        print(name, "saved")
    except SaveError as error:
        print(name, "ok" if "Permission denied" in str(error) else error)
    except BaseException as error:
        print(name, repr(error))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without rights")
def test_folders_without_the_right_to_write_are_a_save_error() -> None:
    root = Path(tempfile.mkdtemp())
    try:
        hr.save(_model(3, 3), root / "there")
        (root / "closed").mkdir(mode=0o700)
        root.chmod(0o755)
        told = subprocess.run(
            [sys.executable, "-c", _AS_ANOTHER_USER, str(root)],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = dict(line.rsplit(" ", 1) for line in told.stdout.splitlines())
        assert len(lines) == 10 + len(SMALL_FILES)
        assert set(lines.values()) == {"ok"}, told.stdout
        assert hr.load(_model(0, 3), root / "there").rows == {"user": 3}
    finally:
        shutil.rmtree(root)


def test_what_stands_where_a_folder_should_is_a_save_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    names = ["file", "file/below", "dangling", "pipe", "x" * 300]
    with pytest.raises(InputError, match="null character"):
        hr.save(_model(1, 1), tmp_path / "a\0b")
    for path in [*(tmp_path / name for name in names), Path("/proc/nowhere")]:
        with pytest.raises(SaveError, match="cannot save to"):
            hr.save(_model(1, 1), path)
    hr.save(_model(1, 1), tmp_path / "a")
    for call in (lambda: reshard(tmp_path / "a", tmp_path / "file", 2), lambda: compact("/proc")):
        with pytest.raises(hr.HedgerowError):
            call()
