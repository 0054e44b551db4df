"""MovieLens-100K: downloads its files and yields its ratings as batches."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import FileDamagedError, FileMissingError, InputError
from ..core.files import local_path
from .arrow_columns import ColumnRoles
from .table_stream import TablePart, TableStream

TERMS = (
    "MovieLens-100K, by GroupLens at the University of Minnesota: for research, not to be "
    "redistributed. In publications cite: F. Maxwell Harper and Joseph A. Konstan. 2015. The "
    "MovieLens Datasets: History and Context. ACM Transactions on Interactive Intelligent Systems "
    "5, 4: 19:1-19:19."
)
# A wheel on the package index that contains the data. It is not installed, and its code not run.
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
    """Returns the folder with the three files. Downloads them if they are missing.

    `cache` is the folder for downloads, `~/.cache/hedgerow` if None.
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
    """Whether the files exist, so that nothing must be downloaded."""
    return _is_complete(_folder(cache))


def _folder(cache: str | Path | None) -> Path:
    return (local_path(cache) if cache is not None else cache_folder()) / "ml-100k"


def cache_folder() -> Path:
    """Returns the folder for downloads."""
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
            part.replace(folder / name)  # atomic, also if two processes do it at once
    (folder / "TERMS.txt").write_text(TERMS + "\n")


USER_FIELDS = ("age", "gender", "occupation", "zip_code")
ITEM_FIELDS = ("release_year", "genres")
FEATURES = ("user", "item", *USER_FIELDS, *ITEM_FIELDS)
SPLITS = ("train", "test", "all")
_LIKED = 4.0  # ratings of at least this have the label 1
_TEST_SHARE = 5  # the test split has the last fifth of each user's ratings, rounded down


def movielens_rows(cache: str | Path | None = None) -> Any:
    """Returns all ratings as an Arrow table ordered by time, with the fields of user and item.

    The columns are user, item, rating, timestamp, label, is_test, the fields, and title. `is_test`
    marks the latest 20 % of each user's ratings; ratings of equal time are ordered by item.
    """
    import pyarrow as pa

    folder = movielens_files(cache)
    ratings = _read(folder / "ml-100k.inter")
    users, items = _read(folder / "ml-100k.user"), _read(folder / "ml-100k.item")
    user, item = _ints(ratings, "user_id"), _ints(ratings, "item_id")
    time_s = ratings.column("timestamp").cast("float64").to_numpy().astype(np.int64)
    rating = ratings.column("rating").cast("float32").to_numpy()
    columns = {
        "user": user,
        "item": item,
        "rating": rating,
        "timestamp": time_s,
        "label": (rating >= _LIKED).astype(np.float32),
        "is_test": _last_fifth(user, time_s, item),
    }
    of_user = _places(_ints(users, "user_id"), user)
    of_item = _places(_ints(items, "item_id"), item)
    columns |= {name: users.column(name).take(of_user) for name in USER_FIELDS}
    columns["release_year"] = items.column("release_year").take(of_item)
    columns["title"] = items.column("movie_title").take(of_item)
    genres = [text.split(" ") for text in items.column("class").to_pylist()]
    columns["genres"] = pa.array(genres, pa.list_(pa.string())).take(of_item)
    return pa.table(columns).take(np.lexsort((item, user, time_s)))


def _read(path: Path) -> Any:
    """Returns a file as text columns, whose names are without the types in the header."""
    import pyarrow as pa
    from pyarrow import csv

    names = [name.split(":")[0] for name in path.read_text().split("\n", 1)[0].split("\t")]
    return csv.read_csv(
        path,
        csv.ReadOptions(column_names=names, skip_rows=1),
        csv.ParseOptions(delimiter="\t", quote_char=False),
        csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )


def _ints(table: Any, name: str) -> NDArray[np.int64]:
    return table.column(name).cast("int64").to_numpy()


def _places(known: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the position of each wanted id among the known ones."""
    order = np.argsort(known)
    return order[np.searchsorted(known, wanted, sorter=order)]


def _last_fifth(
    user: NDArray[np.int64], time_s: NDArray[np.int64], item: NDArray[np.int64]
) -> NDArray[np.bool_]:
    order = np.lexsort((item, time_s, user))
    _, counts = np.unique(user, return_counts=True)
    totals = np.repeat(counts, counts)
    ranks = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    last = np.zeros(len(user), np.bool_)
    last[order] = ranks >= totals - totals // _TEST_SHARE
    return last


def movielens(
    batch_size: int,
    split: str = "train",
    *,
    features: Sequence[str] = FEATURES,
    seed: int = 0,
    cache: str | Path | None = None,
) -> TableStream:
    """Returns batches of MovieLens-100K: 943 users, 1,682 movies, 100,000 ratings.

    The data is downloaded at first use. The label is 1 for a rating of 4 or 5. `split` is "train",
    "test" (the latest 20 % of each user's ratings) or "all". "test" is ordered by time; the others
    are shuffled anew in every epoch. There are no dense columns. The data is for research and must
    not be redistributed.

    >>> movielens(batch_size=1024, split="weekend")
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: split is 'weekend'; it must be one of train, test, all.
    """
    if split not in SPLITS:
        raise InputError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}.")
    columns = ColumnRoles(features=tuple(features), label="label")
    rows = movielens_rows(cache)
    if split != "all":
        is_test = rows.column("is_test").to_numpy()
        rows = rows.filter(is_test if split == "test" else ~is_test)
    window_rows = 0 if split == "test" else rows.num_rows
    part = TablePart(f"ml-100k.{split}", rows)
    return TableStream([part], columns, batch_size, window_rows=window_rows, seed=seed)
