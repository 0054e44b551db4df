"""What a manifest says of a model beside its rows; every field is checked, and named when wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.errors import CheckpointError, CheckpointMissingError
from ..tables.checkpoint.files import check_file
from ..tables.checkpoint.manifest import DENSE, Manifest
from .dense_dcp import check_folder, read_dcp
from .dense_files import DenseFile

MODEL, OBJECT = "model.", "object."
"""How names of the model's tensors begin, and those of what is no tensor in its state."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller of `load` asks for: extras by name, into a model with so many modules."""

    extras: tuple[str, ...]
    modules: int
    trusted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A model's dense part and its state, as a manifest has them."""

    folder: Path
    manifest: Manifest
    updates: tuple[int, ...]
    extras: Mapping[str, Any]
    objects: Mapping[str, Any]

    @staticmethod
    def of(folder: Path, manifest: Manifest, wanted: Wanted) -> Saved:
        """What is there, once it is whole, safe to read, and of such a model with such extras."""
        about = manifest.metadata
        if "dense" not in about and manifest.dense is None:
            raise CheckpointMissingError(
                f"{folder} holds tables without a model; load them with hr.load_tables."
            )
        if manifest.dense is not None and about.get("dense") == DENSE:
            check_file(
                folder / manifest.dense.file, manifest.dense.file_bytes, manifest.dense.sha256
            )
        else:
            _check_old(folder, manifest, trusted=wanted.trusted)
        updates = _field(folder, about, "updates", list)
        if not all(type(step) is int and 0 <= step < 2**63 for step in updates):
            raise CheckpointError(
                f"{folder}: metadata.updates is {updates!r}; it must be a list of whole numbers."
            )
        if len(updates) != wanted.modules:
            raise CheckpointError(
                f"{folder} is of a model with {len(updates)} modules of tables; this one has "
                f"{wanted.modules}."
            )
        extras = _field(folder, about, "extras", dict)
        for name in wanted.extras:
            if name not in extras:
                raise CheckpointError(
                    f"{folder} was saved without {name.replace('extra.', 'extras: ')}; load "
                    f"without it."
                )
        objects = _field(folder, about, "objects", dict) if "objects" in about else {}
        return Saved(folder, manifest, tuple(updates), extras, objects)

    def open(self, wanted: Mapping[str, Tensor]) -> Callable[[str], Tensor]:
        """What gives a tensor of the dense part by name; `wanted` are those of the model."""
        entry, old = self.manifest.dense, self.manifest.dense_folder
        if entry is not None:
            return DenseFile(self.folder / entry.file).tensor
        state = read_dcp(self.folder / str(old), wanted)

        def tensor(name: str) -> Tensor:
            if name not in state:
                raise CheckpointError(f"{self.folder / str(old)} lacks the tensor {name!r}.")
            return state[name]

        return tensor

    def object(self, name: str) -> Any:
        """What the model's state holds under a name, and is no tensor."""
        if name not in self.objects:
            raise CheckpointError(
                f"{self.folder} does not fit the model: it lacks {name!r}, which the state of the "
                f"model has."
            )
        return self.objects[name]


def _check_old(folder: Path, manifest: Manifest, *, trusted: bool) -> None:
    """A dense part of version 0.1 is whole, and the caller trusts it."""
    name = manifest.dense_folder
    if name is None:
        raise CheckpointError(
            f"{folder}: metadata.dense is {manifest.metadata.get('dense')!r}; it must be "
            f"{DENSE!r} beside a blob of that name, or the name of a folder as version 0.1 wrote "
            f"them: dense- and 12 hexadecimal digits."
        )
    if not trusted:
        raise CheckpointError(
            f"{folder} is a checkpoint of version 0.1, whose dense part is a pickle: reading it "
            f"can run any code that its writer chose. If you trust who wrote it, load it once with "
            f"hr.load(..., trusted=True), and hr.save it again."
        )
    files = _field(folder, manifest.metadata, "dense_sha256", dict)
    check_folder(folder / name, files)


def _field(folder: Path, about: Mapping[str, Any], name: str, kind: type) -> Any:
    value = about.get(name)
    if not isinstance(value, kind):
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        word = "an object" if kind is dict else "a list"
        raise CheckpointError(f"{folder}: metadata.{name} is {shown}; it must be {word}.")
    return value
