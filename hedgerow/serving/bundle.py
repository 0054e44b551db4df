"""Loads a bundle, a folder that `export` wrote, as a model; checks everything before it answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..core import process_state
from ..core.errors import FileDamagedError, HedgerowError, NotSupportedError
from ..core.files import local_path
from ..nn.export_ops import ReadableRows
from ..routing.router import Router
from ..tables.config import TableConfig
from ..tables.multi.host_tables import HostTables
from .arguments import Arguments, dtype_of
from .batching import SAMPLES
from .bundle_files import (
    MANIFEST,
    OLD_PROGRAM,
    PROGRAM_FILES,
    ROWS,
    BundleManifest,
    check_plain,
    check_signature,
    checked_bytes,
    manifest_bytes,
    parse_manifest,
    read_key,
)
from .calls import check_batch, check_specs, checked_run
from .live_model import LiveModel
from .model import DEFAULT_SIGNATURE, Joining, Model, Signature, Tensors, TensorSpec
from .program import DenseProgram, read_old_program, read_program
from .remote_rows import Ask, RemoteRows
from .row_signatures import row_signatures
from .rows import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTrust:
    """Which bundles may be loaded.

    With `keys`, only bundles that one of the keys signed. `unsigned` allows bundles without a
    signature. `old` allows bundles of release 0.1, whose files can run code: set it only if you
    trust who made them.

    >>> BundleTrust().unsigned, BundleTrust.of(unsigned=False).keys
    (True, ())
    """

    keys: tuple[bytes, ...] = ()
    unsigned: bool = True
    old: bool = False

    @staticmethod
    def of(
        *, key: str | PathLike[str] | None = None, unsigned: bool = True, old: bool = False
    ) -> BundleTrust:
        """Returns a policy; with a key file, only bundles signed with its key are loaded."""
        keys = () if key is None else (read_key(Path(key)),)
        return BundleTrust(keys=keys, unsigned=unsigned and not keys, old=old)

    def check(self, folder: Path, manifest: BundleManifest, data: bytes) -> None:
        """Raises if the bundle is not trusted; `data` is the content of its manifest file."""
        if self.keys:
            check_signature(folder, self.keys, data)
        elif not self.unsigned:
            raise FileDamagedError(
                f"{folder}: a server that other machines can reach loads only signed bundles. "
                f"Sign them and pass --trust KEY, or pass --trust-unsigned."
            )
        if manifest.is_old and not self.old:
            raise FileDamagedError(
                f"{folder} was written by release 0.1, whose files can run code when they are "
                f"read. Export it again, or, if you trust who made it, load it with trusted=True "
                f"(`hedgerow serve --trust-old`)."
            )


def load_bundle(
    folder: str | PathLike[str],
    name: str,
    *,
    ask: Ask | None = None,
    key: str | PathLike[str] | None = None,
    trusted: bool = False,
) -> Model:
    """Returns a version of a model, ready to answer, under the name `name`.

    Every byte is checked first: a truncated, changed or unknown bundle is refused. Nothing in a
    bundle is run as code. `ask` fetches the rows of a model that was exported with `servers`.
    `key` is the file of a key that must have signed the bundle. `trusted` allows bundles of
    release 0.1, which can run code: use it only if you trust who made them.
    """
    return load_trusted(local_path(folder), name, BundleTrust.of(key=key, old=trusted), ask=ask)


def load_trusted(folder: Path, name: str, trust: BundleTrust, *, ask: Ask | None = None) -> Model:
    """Loads a bundle as load_bundle() does, and logs its version, rows, load time and folder."""
    begin_s = time.monotonic()
    try:
        model = _load(folder, name, trust, ask)
    except HedgerowError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileDamagedError(f"the manifest of {folder} is invalid: {reason}.") from error
    except (MemoryError, OSError, RuntimeError) as error:
        raise FileDamagedError(f"{folder} cannot be loaded: {error}.") from error
    rows = 0 if model.followed is None else model.followed.rows()
    logging.getLogger("hedgerow").info(
        "loaded version %d of model %s: %d rows in %.2f s from %s",
        *(model.version, name, rows, time.monotonic() - begin_s, folder),
    )
    return model


def _load(folder: Path, name: str, trust: BundleTrust, ask: Ask | None) -> Model:
    data = manifest_bytes(folder)
    manifest = parse_manifest(folder / MANIFEST, data)
    trust.check(folder, manifest, data)
    check_plain(folder)
    program = (OLD_PROGRAM,) if manifest.is_old else PROGRAM_FILES
    for file in program if manifest.arguments is not None else ():
        if file not in manifest.files:
            raise FileDamagedError(f"the manifest of {folder} names no {file}.")
    wanted = () if manifest.is_old else PROGRAM_FILES
    configs = {n: TableConfig.from_dict(dict(p)) for n, p in manifest.tables.items()}
    with ExitStack() as stack:
        copies = None
        if trust.keys:  # load a copy: others may be able to write to `folder` after the check
            copies = Path(stack.enter_context(TemporaryDirectory(prefix="hedgerow-bundle-")))
        files = checked_bytes(folder, manifest.files, wanted, copies)
        rows = _rows(copies or folder, manifest, configs, ask)
        return _BundleLoader(folder, copies or folder, manifest, files, rows).model(name)


def _rows(
    folder: Path, manifest: BundleManifest, configs: dict[str, TableConfig], ask: Ask | None
) -> ReadableRows:
    """Returns the rows of the bundle, or a reader of the rows on servers."""
    if manifest.holds_rows:
        if f"{ROWS}/manifest.json" not in manifest.files:
            raise FileDamagedError(f"the manifest of {folder} names no rows.")
        return read_rows(folder / ROWS, configs)
    if configs and ask is None:
        raise NotSupportedError(
            f"{folder} holds no rows: they are on {manifest.servers} servers, ps_0 and on. Serve "
            f"those bundles, and load this one with ask=, which reads rows from them."
        )
    dims = {name: config.dim for name, config in configs.items()}
    return RemoteRows(dims, _routers(manifest), ask or (lambda _: {}))


class _BundleLoader:
    """Makes a model of a bundle whose rows are loaded; `checked` has the checked files."""

    def __init__(
        self,
        folder: Path,
        checked: Path,
        manifest: BundleManifest,
        files: Mapping[str, bytes],
        rows: ReadableRows,
    ) -> None:
        self._folder, self._checked = folder, checked
        self._manifest, self._files, self._rows = manifest, files, rows
        self._close: list[Callable[[], None]] = []

    def model(self, name: str) -> Model:
        """Returns the model with all its signatures."""
        manifest, rows = self._manifest, self._rows
        store = rows if isinstance(rows, HostTables) else None
        if store is not None:
            self._close.append(store.clear)
        try:
            signatures, program = self._graph()
            followed = LiveModel(store, **self._place(), program=program)
            if store is not None:
                own = row_signatures(store, manifest.multi_table, followed.stamp)
                signatures |= followed.guarded(own)
        except BaseException:
            self.free()
            raise
        return Model(name, self._version(), signatures, self.free, followed)

    def free(self) -> None:
        """Frees the rows and the program."""
        for one in self._close:
            one()

    def _version(self) -> int:
        """Returns the number that the folder is named by, else the version in the manifest."""
        name = self._folder.absolute().name
        is_number = name.isascii() and name.isdecimal() and len(name) < 19
        return int(name) if is_number else self._manifest.version

    def _graph(self) -> tuple[dict[str, Signature], DenseProgram | None]:
        manifest, rows = self._manifest, self._rows
        if manifest.arguments is None:
            return {}, None
        arguments = Arguments.from_list(manifest.arguments)
        inputs = [*arguments.specs()]
        if manifest.is_old:
            program, shared = read_old_program(self._checked / OLD_PROGRAM, inputs, rows)
        else:
            program, shared = read_program(self._files, inputs, rows)
        self._close.append(lambda: process_state.release(shared, rows))
        if program.outputs() != [*(manifest.outputs or {})]:
            raise FileDamagedError(
                f"the graph of {self._folder} gives {program.outputs()}; the manifest says "
                f"{[*(manifest.outputs or {})]}."
            )
        return {DEFAULT_SIGNATURE: _default(manifest, arguments, program)}, program

    def _place(self) -> dict[str, Any]:
        """Returns the shard and routers of the rows in this bundle; empty if it has all."""
        manifest = self._manifest
        if manifest.servers <= 1 or not manifest.holds_rows:
            return {}
        number = int(manifest.sub_graph.removeprefix("ps_"))
        return {"shard": number, "routers": _routers(manifest)}


def _routers(manifest: BundleManifest) -> dict[str, Router]:
    return {
        name: Router(rule["dist_type"], manifest.servers, rows=rule["rows"])
        for name, rule in manifest.routing.items()
    }


def _default(
    manifest: BundleManifest, arguments: Arguments, run: Callable[[list[Tensor]], Tensors]
) -> Signature:
    inputs = arguments.specs()
    outputs = {
        name: TensorSpec(dtype_of(plain["dtype"]), tuple(plain["shape"]))
        for name, plain in (manifest.outputs or {}).items()
    }

    def check(given: Tensors) -> None:
        check_specs(inputs, given)
        check_batch(arguments, given)

    def predict(given: Tensors) -> Tensors:
        check_batch(arguments, given)
        with torch.no_grad():
            return run([given[name].contiguous() for name in inputs])

    cuts = {name: plain.get("cut") for name, plain in (manifest.outputs or {}).items()}
    joining = None
    if all(cuts.values()):  # a model that mixes samples has no cuts
        for name, cut in cuts.items():
            if cut != SAMPLES and cut not in outputs:
                raise FileDamagedError(f"output {name!r} is cut by {cut!r}, which is no output.")
        joining = Joining(arguments.samples(), cuts, check)
    run_checked = checked_run(inputs, predict)
    return Signature(inputs, outputs, run_checked, joining, fields=arguments.fields())
