"""Saves and loads the tables of a running server, on its own or as part of all servers."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..core import checks
from ..core.errors import HedgerowError, InputError, SaveError
from ..routing.router import Router
from ..tables.checkpoint.files import sync_folder
from ..tables.checkpoint.load import LoadJob
from ..tables.checkpoint.manifest import MANIFEST, BlobEntry, FileEntry
from ..tables.checkpoint.manifest_reader import read_manifest
from ..tables.checkpoint.save import checked_header, save_tables, save_tables_async
from ..tables.checkpoint.shared_save import SharedSave
from ..tables.checkpoint.writer import WrittenFiles, is_mark
from ..tables.host import HostTable
from .clients import BLOB, blob_name, pack
from .errors import FrameError
from .messages import ServerRequest, Verb, config_of, document_of, text_of
from .recovery import CLEAN, ROWS, Log
from .request_scheduler import RequestScheduler

LOG_BYTES = 2**30  # size of the log at which the rows are saved and the log restarts
LEASE_S = 15.0  # a save of all servers ends if its client is silent for this long
Order = dict[str, Any]
E = TypeVar("E", FileEntry, BlobEntry)
_KINDS = {"str": str, "int": int}  # types of the fields of an entry


class CheckpointService:
    """Executes the saves and loads that clients order, and saves on its own when the log is long.

    `folder` is the server's own folder.
    """

    def __init__(
        self,
        scheduler: RequestScheduler,
        shard: int,
        shards: int,
        *,
        folder: Path | None,
        log: Log | None,
    ) -> None:
        self._scheduler, self._shard, self._shards = scheduler, shard, shards
        self._folder, self._log = folder, log
        self._saving = threading.Lock()
        self._job: SharedSave | None = None
        self._job_number, self._heard_s = "", 0.0  # of the open save; time of its last order
        self._load: LoadJob | None = None
        self._told: dict[tuple[str, str], Order] = {}  # answers by job number and phase
        self._phases: dict[tuple[Verb, str], Callable[[Order], Order]] = {
            (Verb.SAVE, "open"): self._save_open,
            (Verb.SAVE, "hold"): self._save_hold,
            (Verb.SAVE, "write"): self._save_write,
            (Verb.SAVE, "finish"): self._save_finish,
            (Verb.SAVE, "close"): self._save_close,
            (Verb.LOAD, "bring"): self._load_bring,
            (Verb.LOAD, "finish"): self._load_finish,
            (Verb.LOAD, "close"): self._load_close,
        }

    def serve(self, verb: Verb, order: Order) -> Order:
        """Executes `order`. A repeated order is executed once."""
        if verb == Verb.CHECKPOINT:
            return {"step": self.checkpoint(_step(order))}
        phase, number = str(order.get("phase")), str(order.get("number"))
        if (verb, phase) not in self._phases:
            raise FrameError(f"an order to {verb.name.lower()} with phase {phase!r}.")
        if (number, phase) not in self._told:
            told = self._phases[verb, phase](order)
            open_now = {number, self._job_number}
            self._told = {key: one for key, one in self._told.items() if key[0] in open_now}
            self._told[number, phase] = told
        if number == self._job_number:
            self._heard_s = time.monotonic()
        return self._told[number, phase]

    def begin(self) -> None:
        """Saves recovered tables that are not in the log. Called before the first client."""
        if self._log is None or self._folder is None or not self._scheduler.service.is_open:
            return
        if not (self._folder / ROWS / MANIFEST).exists():
            self.checkpoint()

    # ---- checkpoints of this server

    def checkpoint(self, step: int = 0) -> int:
        """Saves the rows and the client records and returns the step.

        Removes older log segments.
        """
        if self._folder is None:
            raise SaveError(
                f"server {self._scheduler.name} has no folder; start it with --checkpoint."
            )
        if not self._scheduler.service.is_open:
            return 0
        with self._saving:
            with self._scheduler.between_writes():
                tables, saved = self._saved(step)
                handle = save_tables_async(tables, self._folder / ROWS, **saved)
            handle.wait()
            self._end_checkpoint()
        return int(saved["step"])

    def _saved(self, step: int) -> tuple[tuple[HostTable, ...], dict[str, Any]]:
        """Returns the content of a checkpoint and starts a new log segment."""
        scheduler, segment = self._scheduler, 0
        if self._log is not None:
            segment = self._log.rotate()
        beside = {BLOB: pack(scheduler.clients, segment)}
        step = max(step, scheduler.last_step)
        return scheduler.service.store.tables, {"step": step, "blobs": beside, "overwrite": True}

    def _end_checkpoint(self) -> None:
        if self._log is not None:
            self._log.remove_before(self._log.number)
        self._scheduler.counters.add("checkpoints")

    def after_writes(self) -> None:
        """Saves in the background if the log is long.

        A failure is logged, and the save is tried again.
        """
        if self._log is None or self._log.file_bytes < LOG_BYTES or self._saving.locked():
            return
        threading.Thread(target=self._shorten, name="hedgerow shorten log", daemon=True).start()

    def _shorten(self) -> None:
        try:
            self.checkpoint()
        except (HedgerowError, OSError) as error:
            self._scheduler.counters.add("checkpoint_failures")
            logging.getLogger("hedgerow").warning("the log cannot be shortened: %s", error)

    def leave(self) -> None:
        """Saves the last checkpoint of a server that stops cleanly."""
        if self._folder is None or not self._scheduler.service.is_open:
            return
        with self._saving, self._scheduler.between_writes():  # no client is waiting any more
            tables, saved = self._saved(0)
            save_tables(tables, self._folder / ROWS, **saved)
            self._end_checkpoint()
        path = self._folder / CLEAN
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w") as file:
            file.write(str(self._scheduler.incarnation))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)

    # ---- the part of this server in a save of all servers

    def _save_open(self, order: Order) -> Order:
        if self._job is not None and time.monotonic() < self._heard_s + LEASE_S:
            raise SaveError(
                f"server {self._scheduler.name} takes part in another save, to {self._job.folder}; "
                f"wait for it. If its client died, it ends {LEASE_S:g} s after that."
            )
        self._end_save()
        self._job = SharedSave(
            self._scheduler.service.store.tables,
            _path(order),
            router=_routers(order),
            shard=self._shard,
            overwrite=bool(order.get("overwrite")),
        )
        try:
            mark = self._job.open() if self._shard == 0 else ""
        except BaseException:
            self._end_save()
            raise
        self._job_number, self._heard_s = str(order.get("number")), time.monotonic()
        return {"mark": mark, "newest_s": self._job.newest_s()}

    def _save_hold(self, order: Order) -> Order:
        self._open_job(order)
        return {}

    def _save_write(self, order: Order) -> Order:
        with self._saving:
            written = self._open_job(order).write(
                _mark(order), _times(order, self._scheduler.service.store.names), self._instant
            )
        return dataclasses.asdict(written)

    @contextmanager
    def _instant(self) -> Iterator[Mapping[str, bytes]]:
        with self._scheduler.between_writes():
            yield {blob_name(self._shard, self._shards): pack(self._scheduler.clients)}

    def _save_finish(self, order: Order) -> Order:
        written = _written(order)
        header = checked_header(_step(order), _metadata(order), None)
        manifest = self._open_job(order).finish(_mark(order), written, header)
        return {"rows": manifest.rows, "checksum": manifest.checksum}

    def _save_close(self, order: Order) -> Order:
        if self._job is not None and self._job_number == str(order.get("number")):
            if order.get("abandon"):
                self._job.abandon(_mark(order))
            self._end_save()
        return {}

    def _open_job(self, order: Order) -> SharedSave:
        if self._job is None or self._job_number != str(order.get("number")):
            raise SaveError(
                f"server {self._scheduler.name} was restarted during the save, or another save "
                f"began; save again."
            )
        return self._job

    def _end_save(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job, self._job_number = None, ""

    # ---- the part of this server in a load

    def _load_bring(self, order: Order) -> Order:
        path, service = _path(order), self._scheduler.service
        if not service.is_open:
            self._open_tables(path)
        self._load = LoadJob(
            path,
            service.store.tables,
            router=_routers(order),
            shard=self._shard,
            reroute=bool(order.get("reroute")),
            among=True,
        )
        return {"rows": self._load.bring()}

    def _open_tables(self, path: Path) -> None:
        """Creates the tables of a checkpoint. They are logged before any write to them."""
        config = config_of([table.config for table in read_manifest(path).tables.values()])
        with self._scheduler.between_writes():
            if self._scheduler.service.is_open:
                return
            if self._log is not None:
                text = text_of(document_of(config))
                self._log.append([[ServerRequest(Verb.OPEN).head(), text]])
            self._scheduler.service.open(config)

    def _load_finish(self, order: Order) -> Order:
        if self._load is None:
            raise SaveError(
                f"server {self._scheduler.name} was restarted during the load; load again."
            )
        brought = _row_counts(order)
        job, self._load = self._load, None
        job.prove(brought)
        with self._scheduler.between_writes():
            loaded = job.finish()
            self._scheduler.last_step = loaded.step
        if self._folder is not None:
            self.checkpoint(loaded.step)  # these rows are in no log and no older checkpoint
        return {"rows": loaded.rows, "step": loaded.step, "metadata": loaded.metadata}

    def _load_close(self, order: Order) -> Order:
        self._load = None
        return {}


def _path(order: Order) -> Path:
    path = order.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        raise InputError(f"the folder is {path!r}; name one that all servers can reach.")
    return Path(path)


def _step(order: Order) -> int:
    return checks.count("step", order.get("step", 0))


def _mark(order: Order) -> str:
    mark = order.get("mark")
    if not isinstance(mark, str) or not is_mark(mark):
        raise FrameError(f"an order whose mark is {mark!r:.100}, which is not valid.")
    return mark


def _metadata(order: Order) -> dict[str, Any]:
    return _object("metadata", order.get("metadata") or {})


def _routers(order: Order) -> dict[str, Router]:
    given = _object("routers", order.get("routers"))
    return {name: Router.from_dict(_object(name, rule)) for name, rule in given.items()}


def _times(order: Order, names: Sequence[str]) -> dict[str, int]:
    given = _object("newest_s", order.get("newest_s"))
    if not given.keys() >= set(names):
        raise FrameError(f"an order with newest_s of {sorted(given)}; tables are {list(names)}.")
    return {name: checks.count(name, time) for name, time in given.items()}


def _row_counts(order: Order) -> list[Counter[str]]:
    """Returns the number of rows of each table that each server has read; 0 if not named."""
    told = [_object("brought", one) for one in _list("brought", order.get("brought"))]
    return [Counter({name: checks.count(name, n) for name, n in one.items()}) for one in told]


def _written(order: Order) -> list[WrittenFiles]:
    told = [_object("written", one) for one in _list("written", order.get("written"))]
    return [
        WrittenFiles(
            tuple(_entry(FileEntry, file) for file in _list("files", one.get("files"))),
            tuple(_entry(BlobEntry, blob) for blob in _list("blobs", one.get("blobs"))),
        )
        for one in told
    ]


def _entry(kind: type[E], given: object) -> E:
    values = _object("a file", given)
    wanted = {field.name: _KINDS[str(field.type)] for field in dataclasses.fields(kind)}
    if values.keys() != wanted.keys():
        raise FrameError(f"an order with a file that has {sorted(values)}, not {sorted(wanted)}.")
    for name, value in values.items():
        if not isinstance(value, wanted[name]):
            raise FrameError(f"an order with a file whose {name} is {value!r:.100}.")
    return kind(**values)


def _object(what: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise FrameError(f"an order whose {what} is {given!r:.100}; it must be an object.")
    return given


def _list(what: str, given: object) -> list[Any]:
    if not isinstance(given, list):
        raise FrameError(f"an order whose {what} is {given!r:.100}; it must be a list.")
    return given
