"""Where a host table keeps its rows when they are too many for memory: a file without a name."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass

from .. import native
from ..core import checks
from ..core.errors import ConfigError, DtypeError, FileMissingError
from ..core.local_path import local_path


@dataclass(frozen=True, slots=True)
class RowFile:
    """Rows in a file of `folder`, with about `resident_bytes` of them in memory.

    The file has no name and goes with its table, however the process ends. The folder must lie on a
    disk: a file in memory (tmpfs) saves none.

    >>> import hedgerow as hr, tempfile, torch
    >>> config = hr.TableConfig("user", (hr.Segment(16, hr.Zeros(), hr.Sgd()),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = hr.HostTable(config, rows_in=hr.RowFile(folder, 2**20))
    ...     _ = table.assign(torch.arange(50_000), torch.ones(50_000, 16))
    >>> hr.stats(table)["resident_bytes"] <= 2**20 < hr.stats(table)["file_bytes"]
    True
    """

    folder: str | os.PathLike[str]
    resident_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike):
            raise DtypeError(f"folder is {self.folder!r}; pass the path of a folder on a disk.")
        checks.count("resident_bytes", self.resident_bytes)

    def open(self) -> native.RowFile:
        """A new file, for one table."""
        folder = local_path(self.folder)
        if not folder.is_dir():
            raise FileMissingError(
                f"rows_in names the folder {folder}, which is none; make it, or name another."
            )
        try:
            with tempfile.TemporaryFile(dir=folder) as made:
                fd = os.dup(made.fileno())
        except OSError as error:
            raise ConfigError(
                f"no file for rows can be made in {folder}: {error}. Name a folder that this "
                f"process may write to."
            ) from error
        return native.RowFile(fd, str(folder), self.resident_bytes)
