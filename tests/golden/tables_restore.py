"""Vectors of what a restore must refuse, as our checkpoints have it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.load import load_tables
from hedgerow.tables.checkpoint.manifest_reader import read_manifest
from hedgerow.tables.checkpoint.save import save_tables
from hedgerow.tables.optimizers import Sgd

from ..tables.checkpoint.common import change_manifest
from .tables_area import one_segment
from .tables_rows import SITUATIONS


def _saved() -> AbstractContextManager[str]:
    """A folder with a checkpoint of four shards."""
    folder = tempfile.TemporaryDirectory()
    save_tables([one_segment(Sgd(), 2)], folder.name, router=Router("roundrobin", 4))
    return folder


def _load(folder: str | Path, dim: int = 2) -> None:
    load_tables(folder, [one_segment(Sgd(), dim)])


def _no_files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _load(Path(folder) / "none")


def _absent_shard() -> None:
    with _saved() as folder:
        (Path(folder) / read_manifest(Path(folder)).files[2].file).unlink()
        _load(folder)


def _unlisted_shard() -> None:
    _after(lambda manifest: manifest["files"].pop())


def _other_count() -> None:
    _after(lambda manifest: manifest["router"].update(shards=5))


def _after(change: Callable[[dict[str, Any]], object]) -> None:
    with _saved() as folder:
        change_manifest(Path(folder), change)
        _load(folder)


def _other_dim() -> None:
    with _saved() as folder:
        _load(folder, dim=3)


for _why, _more in (
    {
        "restore from a base name with no files": (_no_files,),
        "restore where one of N file shards is absent or N disagrees between names": (
            _absent_shard,
            _unlisted_shard,
            _other_count,
        ),
        "restore of a row whose dim differs from the config": (_other_dim,),
    }
).items():  # beside the same situations in Monolith's files
    SITUATIONS[_why] = (*SITUATIONS.get(_why, ()), *_more)
