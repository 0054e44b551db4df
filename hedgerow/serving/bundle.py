"""From a folder that `export` wrote to a model that answers: all is checked before it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core import registry
from ..core.errors import ConfigError, DtypeError, FileDamagedError, NotSupportedError
from ..core.local_path import local_path
from ..nn.read_op import ReadableRows
from ..routing.router import Router
from ..tables.config import TableConfig
from ..tables.multi.host_tables import HostTables
from .arguments import Arguments, dtype_of
from .check_inputs import answers, check_batch, check_specs
from .dense_program import DenseProgram
from .followed import Followed
from .manifest import PROGRAM, ROWS, Manifest, check_files, read_manifest
from .model import DEFAULT_SIGNATURE, Joining, Model, Signature, Tensors, TensorSpec
from .program import read_program
from .remote_rows import Ask, RemoteRows
from .row_signatures import row_signatures
from .rows import read_rows


def load_bundle(folder: Path, name: str, *, ask: Ask | None = None) -> Model:
    """A version of a model, ready to answer, under the name `name`.

    Every byte is checked first: a bundle that is cut off, changed or of another form is refused.
    `ask` brings rows from the servers of a model that was exported with `servers`.
    """
    folder = local_path(folder)
    manifest = read_manifest(folder)
    _check_version(folder, manifest)
    check_files(folder, manifest)
    try:
        configs = {n: TableConfig.from_dict(plain) for n, plain in manifest.tables.items()}
        rows = _rows(folder, manifest, configs, ask)
        return _model(folder, manifest, name, rows)
    except (ConfigError, DtypeError, KeyError, TypeError) as error:
        raise FileDamagedError(f"the manifest of {folder} makes no sense: {error}.") from error


def _check_version(folder: Path, manifest: Manifest) -> None:
    if folder.resolve().name != str(manifest.version):
        raise FileDamagedError(
            f"{folder} holds version {manifest.version}; its folder must have that name."
        )


def _rows(
    folder: Path, manifest: Manifest, configs: dict[str, TableConfig], ask: Ask | None
) -> ReadableRows:
    """The rows, here or on servers."""
    if manifest.holds_rows:
        if f"{ROWS}/manifest.json" not in manifest.files:
            raise FileDamagedError(f"the manifest of {folder} names no rows.")
        return read_rows(folder / ROWS, configs)
    if configs and ask is None:
        raise NotSupportedError(
            f"{folder} holds no rows: they are on {manifest.servers} servers, ps_0 and on. Serve "
            f"those bundles, and load this one with ask=, which brings rows from them."
        )
    dims = {name: config.dim for name, config in configs.items()}
    return RemoteRows(dims, _routers(manifest), ask or (lambda _: {}))


def _model(folder: Path, manifest: Manifest, name: str, rows: ReadableRows) -> Model:
    signatures: dict[str, Signature] = {}
    close: list[Callable[[], None]] = []
    program: DenseProgram | None = None
    if manifest.arguments is not None:
        make, shared_name = read_program(folder / PROGRAM, rows)
        program = DenseProgram(make)
        signatures[DEFAULT_SIGNATURE] = _default(manifest, program)
        close.append(lambda: registry.release(shared_name, rows))
    store = rows if isinstance(rows, HostTables) else None
    followed = Followed(store, **_place(manifest), program=program)
    if store is not None:
        own = row_signatures(store, manifest.multi_table, followed.stamp)
        signatures |= followed.guarded(own)
        close.append(store.clear)

    def free() -> None:
        for one in close:
            one()

    return Model(name, manifest.version, signatures, free, followed)


def _place(manifest: Manifest) -> dict[str, Any]:
    """Which rows are here: all, or those of one of several servers."""
    if manifest.servers <= 1 or not manifest.holds_rows:
        return {}
    number = int(manifest.sub_graph.removeprefix("ps_"))
    return {"shard": number, "routers": _routers(manifest)}


def _routers(manifest: Manifest) -> dict[str, Router]:
    return {
        name: Router(rule["dist_type"], manifest.servers, rows=rule["rows"])
        for name, rule in manifest.routing.items()
    }


def _default(manifest: Manifest, run: Callable[[list[Tensor]], Tensors]) -> Signature:
    arguments = Arguments.from_list(manifest.arguments or [])
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
    if all(cuts.values()):  # none of a bundle that an older release wrote
        joining = Joining(arguments.samples(), cuts, check)
    return Signature(inputs, outputs, answers(inputs, predict), joining)
