"""From a trained model to folders that servers load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import nn

from ..core import checks
from ..core.clock import Clock, SystemClock
from ..core.errors import DtypeError, StateError
from ..core.local_path import local_path
from ..nn.collection import collections_of, undressed
from .arguments import Arguments
from .bundle_files import entries_below
from .bundle_keys import read_key, sign
from .manifest import MANIFEST, ROWS, Manifest, plain_outputs, read_manifest
from .program import trace
from .row_signatures import multi_name
from .rows import ServedTable, known_ids, plain_routing, served_tables, write_rows
from .version_folders import check_sub_graph, next_version, publish

ENTRY = "entry"


def export(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    example: object,
    version: int | None = None,
    rows: str = "fp32",
    name: str = ENTRY,
    servers: int = 0,
    fields: Mapping[str, str] | None = None,
    sigmoid: bool = False,
    key: str | PathLike[str] | None = None,
    clock: Clock | None = None,
) -> Path:
    """Writes a version of a model that a server loads: `<path>/<name>/<version>`, which it gives.

    `example` is what the model is called with: one argument, or a tuple of them. Only names,
    types and widths are taken from it. `version` is the time in seconds if not given. `rows` is
    how a server keeps them: "fp32", "fp16" or "int8".

    Clients may send strings for the features in `fields`, `{"user": "user"}` say: the server makes
    `hr.id64(value, field)` of them, as training did. With `sigmoid` a model that gives logits is
    served with probabilities. `key` is a file with a key that signs the bundle.

    With `servers` the rows go to bundles of their own, `<path>/ps_0` to `ps_<servers - 1>`, which
    are written first, and the model asks those who serve them. Every bundle is whole or not
    there. A version that is there already is left as it is. The model must not train meanwhile.

    >>> import tempfile, hedgerow as hr
    >>> from hedgerow.serving.bundle import load_bundle
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    >>> ids = hr.IdBatch.from_lists({"user": [[7], [8]]})
    >>> bags(ids)["user"].sum().backward()
    >>> with tempfile.TemporaryDirectory() as base:
    ...     served = load_bundle(hr.serving.export(bags, base, example=ids, version=3), "demo")
    >>> ask = {"user": torch.tensor([7, 9]), "user_lengths": torch.tensor([1, 1])}
    >>> served.signatures["serving_default"].run(ask)["user"].tolist(), served.version
    ([[-1.0, -1.0], [0.0, 0.0]], 3)
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"export of a {type(model).__name__}; pass an nn.Module.")
    base, servers = local_path(path), checks.count("servers", servers)
    names = [*(f"ps_{i}" for i in range(servers)), check_sub_graph(name)]
    if version is None:
        version = next_version(base, names, clock or SystemClock())
    job = _Export(
        updates=_updates(model),  # before a row is looked at
        model=undressed(model),
        arguments=Arguments.of(undressed(model), example, fields),
        tables=served_tables(model, rows),
        version=checks.count("version", version),
        servers=servers,
        sigmoid=sigmoid,
        key=None if key is None else read_key(Path(key)),
    )
    for i, own in enumerate(names):
        job.write(base / own / str(version), i if i < servers else None)
    return base / name / str(version)


def _updates(model: nn.Module) -> list[int]:
    return [one.updates.step for one in collections_of(model)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Export:
    """One version, some of whose bundles are written."""

    updates: list[int]
    model: nn.Module
    arguments: Arguments
    tables: dict[str, ServedTable]
    version: int
    servers: int
    sigmoid: bool
    key: bytes | None

    def write(self, folder: Path, server: int | None) -> None:
        """The bundle of a server of rows, or of the model itself."""
        if folder.exists():
            read_manifest(folder)  # refuses to leave something else in its place
            return
        publish(folder, lambda part: self._fill(part, folder.parent.name, server))

    def _fill(self, part: Path, sub_graph: str, server: int | None) -> None:
        holds_rows = bool(self.tables) and (server is not None or not self.servers)
        outputs = None
        if server is None:
            known = known_ids(self.model, self.tables)
            written = trace(self.model, self.arguments, known, sigmoid=self.sigmoid)
            written.save(part)
            outputs = plain_outputs(written.outputs, written.cuts)
        if holds_rows:
            write_rows(self.tables, part / ROWS, server or 0, max(1, self.servers))
        manifest = Manifest(
            sub_graph=sub_graph,
            version=self.version,
            arguments=None if server is not None else self.arguments.to_list(),
            outputs=outputs,
            tables={name: table.config.to_dict() for name, table in self.tables.items()},
            routing=plain_routing(self.tables),
            holds_rows=holds_rows,
            servers=self.servers,
            multi_table=multi_name(server or 0),
            made_with={"torch": str(torch.__version__)},
            files=entries_below(part),
        )
        text = manifest.to_text()
        (part / MANIFEST).write_text(text)
        if self.key is not None:
            sign(part, self.key, text.encode())
        if _updates(self.model) != self.updates:
            raise StateError(
                f"the model was trained while version {self.version} of {sub_graph} was written, "
                f"which is thrown away: it mixes two states. Export between two steps."
            )
