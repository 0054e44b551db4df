"""MovieLens-100K as batches: who rated what when, with fields of user and movie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from .arrow_columns import Columns
from .movielens_files import movielens_files
from .table_stream import TablePart, TableStream

USER_FIELDS = ("age", "gender", "occupation", "zip_code")
ITEM_FIELDS = ("release_year", "genres")
FEATURES = ("user", "item", *USER_FIELDS, *ITEM_FIELDS)
SPLITS = ("train", "test", "all")
_LIKED = 4.0  # a rating from here on is a label of 1
_TEST_SHARE = 5  # every user's last fifth, rounded down


def movielens_rows(cache: str | Path | None = None) -> Any:
    """All ratings as an Arrow table in the order of time, with the fields of user and item.

    Columns: user, item, rating, timestamp, label, is_test, the fields, title. `is_test` marks the
    last 20 % of each user's ratings (equal times by item).
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
    """A file of text columns; names lose the type that the header gives them."""
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
    """Where each wanted id stands among the known ones."""
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
    """Batches of MovieLens-100K (943 users, 1,682 movies, 100,000 ratings); fetched at first use.

    The label is 1 for a rating of 4 or 5. `split` is "train", "test" (the last 20 % of each user's
    ratings in time) or "all"; "test" comes in the order of time, the others shuffled anew every
    epoch. There are no dense columns. The data is for research and not to be redistributed.

    >>> movielens(batch_size=1024, split="weekend")
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: split is 'weekend'; it must be one of train, test, all.
    """
    if split not in SPLITS:
        raise InputError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}.")
    columns = Columns(features=tuple(features), label="label")
    rows = movielens_rows(cache)
    if split != "all":
        is_test = rows.column("is_test").to_numpy()
        rows = rows.filter(is_test if split == "test" else ~is_test)
    window_rows = 0 if split == "test" else rows.num_rows
    part = TablePart(f"ml-100k.{split}", rows)
    return TableStream([part], columns, batch_size, window_rows=window_rows, seed=seed)
