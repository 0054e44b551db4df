"""One shard's part of a save into a folder that all shards share; shard 0 completes the save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

from ...core import checks
from ...core.errors import HedgerowError, SaveError
from ...core.files import local_path
from .blobs import BlobShard
from .files import sole_writer
from .manifest import CheckpointManifest
from .routers import Routers, TableRouters
from .save import (
    Saveable,
    by_name,
    clean_after,
    clean_before,
    complete_there,
    hold_tables,
    remove_empty,
    table_source,
)
from .workers import Meter
from .writer import (
    Dense,
    Header,
    TableSource,
    WrittenFiles,
    disk_error,
    needed_bytes,
    new_mark,
    no_remains,
    remove_remains,
    write_files,
    write_manifest,
)


@contextmanager
def _nothing_beside() -> Iterator[Mapping[str, bytes]]:
    yield {}


class SharedSave:
    """The steps of one shard. The caller lets all shards finish a step before the next one starts.

    - `open`: shard 0 locks the folder and makes the mark of the save.
    - `write`: every shard writes its files, which are not part of a checkpoint yet.
    - `finish`: shard 0 writes the manifest, which completes the save.
    - `abandon`: every shard removes its files, if one shard failed.
    - `close`: always last.
    """

    def __init__(
        self,
        tables: Iterable[Saveable],
        path: str | PathLike[str],
        *,
        router: Routers,
        shard: int,
        overwrite: bool = False,
    ) -> None:
        self._tables = by_name(tables)
        self._folder = local_path(path)
        self._routers = TableRouters.of(router, self._tables)
        self._place = BlobShard(shard, self._routers.default.shards)
        self._overwrite = checks.flag("overwrite", overwrite)
        self._held = ExitStack()
        self._made = False
        self._sources: list[TableSource] = []

    @property
    def folder(self) -> Path:
        """The folder of the save."""
        return self._folder

    def open(self) -> str:
        """Locks the folder against other saves and cleans it; returns the mark of this save."""
        self._made = self._held.enter_context(sole_writer(self._folder, make=True))
        old = complete_there(self._folder, self._overwrite)
        clean_before(self._folder, old)
        return new_mark()

    def newest_s(self) -> dict[str, int]:
        """Returns the largest `ts` of each table of this shard."""
        return {name: table.max_ts() for name, table in self._tables.items()}

    def write(
        self,
        mark: str,
        newest_s: Mapping[str, int],
        instant: Callable[[], AbstractContextManager[Mapping[str, bytes]]] = _nothing_beside,
        dense: Dense | None = None,
    ) -> WrittenFiles:
        """Writes the files of this shard, without the rows that have expired at `newest_s`.

        `instant` is entered while the rows are frozen. It gives named bytes of the same moment,
        which are saved with the rows. If this raises, `abandon` removes the files; other shards
        still write theirs. `dense` is the dense part of a model, which one of the shards writes.
        """
        needed = 0
        try:
            with ExitStack() as held:
                with instant() as beside:
                    frozen = hold_tables(self._tables, held, lambda _: None, self._place)
                self._sources = [
                    table_source(
                        table.config, replace(frozen.tables[name], newest_s=newest_s[name]), None
                    )
                    for name, table in self._tables.items()
                ]
                meter = Meter(sum(table.size() for table in self._tables.values()))
                header = Header(blobs={**beside, **frozen.blobs}, dense=dense)
                needed = needed_bytes(self._sources, header)
                return write_files(
                    self._folder,
                    self._sources,
                    self._routers,
                    header,
                    meter,
                    mark,
                    shard=self._place.shard,
                )
        except OSError as error:
            if isinstance(error, HedgerowError):
                raise
            raise disk_error(self._folder, error, complete=False, needed=needed) from error

    def finish(
        self, mark: str, written: Sequence[WrittenFiles], header: Header
    ) -> CheckpointManifest:
        """Writes the manifest for the files of all shards, then removes the files it replaces."""
        files = sorted(
            (file for one in written for file in one.files), key=lambda f: (f.table, f.shard)
        )
        together = WrittenFiles(tuple(files), tuple(blob for one in written for blob in one.blobs))
        self._check_there(together)
        with no_remains(self._folder, mark):
            manifest = write_manifest(self._folder, self._sources, self._routers, header, together)
            clean_after(self._folder, manifest)
        return manifest

    def _check_there(self, written: WrittenFiles) -> None:
        for entry in (*written.files, *written.blobs):
            path = self._folder / entry.file
            if not path.exists() or path.stat().st_size != entry.file_bytes:
                raise SaveError(
                    f"{path} was written by another rank, and rank 0 does not see it; save to a "
                    f"folder that all ranks share."
                )

    def abandon(self, mark: str) -> None:
        """Removes the files of this save, unless it is complete."""
        if self._folder.exists():
            remove_remains(self._folder, mark, owner=self._place.shard == 0)

    def close(self) -> None:
        """Unlocks the folder; removes it if this save made it and left it empty."""
        if self._made:
            remove_empty(self._folder)  # while it is still locked
        self._made = False
        self._held.close()
