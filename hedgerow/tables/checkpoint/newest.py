"""Finds the newest complete checkpoint among the folders of a job."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ...core.errors import CheckpointMissingError
from ...core.local_path import local_path
from .chain import Chain
from .manifest import MANIFEST


def newest(folder: str | PathLike[str]) -> Path:
    """The folder below `folder` whose complete checkpoint has the highest step.

    Saves that were stopped have no manifest and do not count; a damaged manifest is an error.

    >>> import tempfile, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save_tables([table], folder + "/step-9", step=9)
    ...     _ = hr.save_tables([table], folder + "/step-10", step=10)
    ...     newest(folder).name
    'step-10'
    """
    try:
        found = [path for path in local_path(folder).iterdir() if (path / MANIFEST).is_file()]
    except OSError as error:
        raise CheckpointMissingError(f"cannot look into {folder}: {error.strerror}.") from error
    if not found:
        raise CheckpointMissingError(f"{folder} has no folder with a complete checkpoint.")
    return max(found, key=lambda path: (Chain.read(path).last.step, path.name))
