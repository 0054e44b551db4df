"""Fetches the files of MovieLens-100K once and keeps them in the user's cache."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ..core.errors import FileDamagedError, FileMissingError
from ..core.local_path import local_path

TERMS = (
    "MovieLens-100K, by GroupLens at the University of Minnesota: for research, not to be "
    "redistributed. In publications cite: F. Maxwell Harper and Joseph A. Konstan. 2015. The "
    "MovieLens Datasets: History and Context. ACM Transactions on Interactive Intelligent Systems "
    "5, 4: 19:1-19:19."
)
# A wheel on the package index that carries the data. Nothing of it is installed or run.
PACKAGE = "recbole==1.2.1"
WHEEL = "recbole-1.2.1-py3-none-any.whl"
WHEEL_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
FILES_SHA256 = {
    "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
    "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
    "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
}
_INSIDE = "recbole/dataset_example/ml-100k"
_FETCH_TIMEOUT_S = 180


def movielens_files(cache: str | Path | None = None) -> Path:
    """The folder with the three files, which are fetched if it does not have them.

    `cache` is where hedgerow keeps what it fetched: `~/.cache/hedgerow` if None.
    """
    folder = _folder(cache)
    if _is_complete(folder):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        by_hand, scratch = folder / WHEEL, Path(name)
        wheel = by_hand if by_hand.is_file() else _download(scratch, folder)
        _unpack(wheel, scratch, folder)
    logging.getLogger(__name__).warning("Fetched to %s: %s", folder, TERMS)
    return folder


def movielens_is_here(cache: str | Path | None = None) -> bool:
    """Whether nothing has to be fetched."""
    return _is_complete(_folder(cache))


def _folder(cache: str | Path | None) -> Path:
    return (local_path(cache) if cache is not None else cache_folder()) / "ml-100k"


def cache_folder() -> Path:
    """Where what was fetched is kept."""
    return Path.home() / ".cache/hedgerow"


def _is_complete(folder: Path) -> bool:
    paths = {folder / name: sha for name, sha in FILES_SHA256.items()}
    return all(path.is_file() for path in paths) and all(
        _sha256(path.read_bytes()) == sha for path, sha in paths.items()
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(scratch: Path, folder: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-input", "--no-deps", "--only-binary", ":all:", "--retries", "1"),
        *("--timeout", "20", "--dest", str(scratch), PACKAGE),
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S)
        problem = run.stderr.strip().splitlines()[-1:] if run.returncode else []
    except subprocess.TimeoutExpired:
        problem = [f"no answer within {_FETCH_TIMEOUT_S} s"]
    wheel = scratch / WHEEL
    if problem or not wheel.is_file():
        raise FileMissingError(
            f"MovieLens-100K could not be fetched: `pip download --no-deps {PACKAGE}` failed "
            f"({' '.join(problem) or 'it left no wheel'}). Check that pip reaches a package index, "
            f"or bring {WHEEL} to {folder} by hand; hr.data.clicks needs no file at all."
        )
    return wheel


def _unpack(wheel: Path, scratch: Path, folder: Path) -> None:
    found = _sha256(wheel.read_bytes())
    if found != WHEEL_SHA256:
        raise FileDamagedError(
            f"{wheel} has SHA-256 {found}, and {WHEEL_SHA256} is expected: it is not the file this "
            f"release knows. Remove it and fetch it again from an index you trust."
        )
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES_SHA256:
            part = scratch / name
            part.write_bytes(archive.read(f"{_INSIDE}/{name}"))
            part.replace(folder / name)  # whole or not at all, also with two processes at once
    (folder / "TERMS.txt").write_text(TERMS + "\n")
