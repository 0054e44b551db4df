"""The dense tensors and other state of a model in a checkpoint, without rows.

Version 0.1 wrote the dense part as a folder of `torch.distributed.checkpoint`. The metadata of such
a folder is a pickle, which can run any code. It is read only if the caller trusts it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..core.errors import CheckpointError, CheckpointMissingError, InputError
from ..tables.checkpoint.files import check_file, check_plain, chunks_of, sha256_of
from ..tables.checkpoint.manifest import DENSE, CheckpointManifest
from ..tables.checkpoint.writer import Dense

# Types that every release of safetensors since 0.5 reads. Other types are stored as bytes, with one
# more dimension. The entry `_TYPES` of the file's metadata then names the type of each tensor.
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_AS_BYTES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.complex32,
        torch.complex64,
        torch.complex128,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    )
}
_TYPES = "hedgerow types"
_PIECE_BYTES = 2**24


def dense_part(tensors: Mapping[str, Tensor]) -> Dense:
    """Returns the safetensors file of these tensors, for a save to write.

    >>> dense_part({"a": torch.ones(2)}).file_bytes
    136
    """
    for name, tensor in tensors.items():
        _check_header(name, tensor)
    # Larger elements come first, so that every tensor begins at a multiple of its element's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    entries: dict[str, Any] = {}
    types: dict[str, str] = {}
    end = 0
    for name, tensor in ordered:
        shape, word = list(tensor.shape), _NAMES.get(tensor.dtype)
        if word is None:
            types[name] = str(tensor.dtype).removeprefix("torch.")
            shape, word = [*shape, tensor.element_size()], "U8"
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": word, "shape": shape, "data_offsets": [start, end]}
    about = {"__metadata__": {"format": "pt", _TYPES: json.dumps(types)}}
    head = json.dumps(about | entries).encode()
    head += b" " * (-len(head) % 8)

    def write(out: Callable[[Any], object]) -> None:
        out(len(head).to_bytes(8, "little") + head)
        for _, tensor in ordered:
            for piece in _pieces(tensor):
                out(piece)

    return Dense(8 + len(head) + end, write)


def _check_header(name: str, tensor: Tensor) -> None:
    known = tensor.dtype in _NAMES or tensor.dtype in _AS_BYTES.values()
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    wrapped = hasattr(tensor, "__tensor_flatten__")  # DTensor and the tensors of torchao
    if not known or not plain or wrapped or tensor.is_meta:
        raise InputError(
            f"{name} is a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout}, on "
            f"{tensor.device}; a checkpoint holds plain dense tensors. Turn it into one, or leave "
            f"it out of the state."
        )


def _pieces(tensor: Tensor) -> Iterable[memoryview]:
    """Yields the bytes of a tensor in pieces."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if not plain.numel():
        return
    view = plain.view(torch.uint8).numpy().data
    for start in range(0, len(view), _PIECE_BYTES):
        yield view[start : start + _PIECE_BYTES]


class DenseFile:
    """The tensors of a safetensors file whose checksum was verified. Each is read on demand."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        check_plain(path)
        self._path = path
        self._file: Any = self._parsed(lambda: safe_open(str(path), framework="pt"))
        self.names = frozenset(self._parsed(lambda: self._file.keys()))
        self._types = self._read_types()

    def tensor(self, name: str) -> Tensor:
        """Returns a copy of one tensor."""
        if name not in self.names:
            raise CheckpointError(f"{self._path} lacks the tensor {name!r}; it is damaged.")
        found: Tensor = self._parsed(lambda: self._file.get_tensor(name).clone())
        if name in self._types:
            return self._parsed(lambda: _typed(found, self._types[name]))
        if found.dtype == torch.bool:  # a byte in the file may be neither 0 nor 1
            return found.view(torch.uint8).ne(0)
        return found

    def _read_types(self) -> dict[str, torch.dtype]:
        about = self._parsed(lambda: self._file.metadata()) or {}
        types = self._parsed(lambda: json.loads(about.get(_TYPES, "{}")))
        if not isinstance(types, dict) or not all(
            isinstance(word, str) and word in _AS_BYTES for word in types.values()
        ):
            raise CheckpointError(f"{self._path} names unknown types of tensors: {types!r}.")
        return {name: _AS_BYTES[word] for name, word in types.items()}

    def _parsed(self, read: Callable[[], Any]) -> Any:
        """Returns the result of `read`. Turns any error into a `CheckpointError`."""
        try:
            return read()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{self._path} is not a readable safetensors file: {error}."
            ) from error


def _typed(found: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns bytes as a tensor of `dtype`."""
    if found.dtype != torch.uint8 or not found.shape or found.shape[-1] != dtype.itemsize:
        raise CheckpointError(
            f"bytes of shape {tuple(found.shape)} and type {found.dtype} cannot be read as {dtype}"
        )
    return found.reshape(-1).view(dtype).reshape(found.shape[:-1])


def check_shapes(
    where: object, saved: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Raises `CheckpointError` if a saved tensor and the model's tensor differ in shape."""
    for name, shape in shapes.items():
        if tuple(saved[name].shape) != tuple(shape):
            raise CheckpointError(
                f"{where} does not fit the model: {name} has the shape "
                f"{tuple(saved[name].shape)} ({math.prod(saved[name].shape)} numbers) in the "
                f"checkpoint, and {tuple(shape)} in the model."
            )


def check_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Raises `CheckpointError` unless the folder holds just these files with these checksums."""
    if folder.is_symlink() or not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; the manifest names one.")
    paths = sorted(folder.iterdir())
    for path in paths:
        check_plain(path)
    if {path.name: sha256_of(chunks_of(path)) for path in paths} != dict(files):
        raise CheckpointError(
            f"{folder} is damaged: its files are not those of the manifest. Use an older "
            f"checkpoint."
        )


def read_dcp(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns copies of all saved tensors. `wanted` are tensors of the expected shape and type."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata
        state = {name: torch.empty_like(tensor) for name, tensor in wanted.items()}
        for name, about in saved.items():
            if isinstance(about, TensorStorageMetadata):
                empty = torch.empty(about.size, dtype=about.properties.dtype)
                state.setdefault(name, empty)
        with warnings.catch_warnings():  # it warns that this process reads alone
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(state, checkpoint_id=folder, no_dist=True)
    except (CheckpointException, Exception) as error:  # the first is not an Exception
        raise CheckpointError(f"{folder} does not fit the model: {error}") from error
    return state


MODEL, OBJECT = "model.", "object."
"""Prefixes of names in a checkpoint: of the model's tensors, and of its other state."""


@dataclass(frozen=True, slots=True)
class RequestedState:
    """What a caller of `load` needs: extras by name, and a number of modules with tables."""

    extras: tuple[str, ...]
    modules: int
    trusted: bool


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointedModel:
    """The dense part and the other state of a model in a checkpoint, described by its manifest."""

    folder: Path
    manifest: CheckpointManifest
    updates: tuple[int, ...]
    extras: Mapping[str, Any]
    objects: Mapping[str, Any]

    @staticmethod
    def of(folder: Path, manifest: CheckpointManifest, wanted: RequestedState) -> CheckpointedModel:
        """Returns the saved model, after checking it against its manifest and against `wanted`.

        Raises `CheckpointError` if the dense part is damaged or not trusted, or if the number of
        modules or the extras do not match.
        """
        about = manifest.metadata
        if "dense" not in about and manifest.dense is None:
            raise CheckpointMissingError(
                f"{folder} holds tables without a model; use hr.load([table, ...], path)."
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
                f"{folder} was saved from a model with {len(updates)} modules that have tables; "
                f"this model has {wanted.modules}."
            )
        extras = _field(folder, about, "extras", dict)
        for name in wanted.extras:
            if name not in extras:
                raise CheckpointError(
                    f"{folder} was saved without {name.replace('extra.', 'extras: ')}; load "
                    f"without it."
                )
        objects = _field(folder, about, "objects", dict) if "objects" in about else {}
        return CheckpointedModel(folder, manifest, tuple(updates), extras, objects)

    def open(self, wanted: Mapping[str, Tensor]) -> Callable[[str], Tensor]:
        """Returns a function that reads a tensor of the dense part by its name.

        `wanted` are the tensors of the model.
        """
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
        """Returns a value of the model's state dict that is not a tensor."""
        if name not in self.objects:
            raise CheckpointError(
                f"{self.folder} does not fit the model: it lacks {name!r}, which the state of the "
                f"model has."
            )
        return self.objects[name]


def _check_old(folder: Path, manifest: CheckpointManifest, *, trusted: bool) -> None:
    """Checks a dense part of version 0.1. Raises `CheckpointError` if it is not trusted."""
    name = manifest.dense_folder
    if name is None:
        raise CheckpointError(
            f"{folder}: metadata.dense is {manifest.metadata.get('dense')!r}; it must be "
            f"{DENSE!r} with a blob of that name, or a folder that version 0.1 wrote, named "
            f"dense- and 12 hexadecimal digits."
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


_KEYS = (str, int, float, bool, type(None))
_FLOATS = ("inf", "-inf", "nan")


def take_apart(name: str, state: object) -> tuple[Any, list[Tensor]]:
    """Returns `state` with each tensor replaced by its number, and the list of tensors.

    Keys of dicts that are not strings, and tuples, are preserved. Plain JSON would lose both.

    >>> import torch
    >>> plain, tensors = take_apart("optimizer", {"state": {0: torch.ones(2)}, "betas": (0.9, 1)})
    >>> plain
    {'dict': [['state', {'dict': [[0, {'tensor': 0}]]}], ['betas', {'tuple': [0.9, 1]}]]}
    >>> put_together("optimizer", plain, tensors.__getitem__)
    {'state': {0: tensor([1., 1.])}, 'betas': (0.9, 1)}
    """
    tensors: list[Tensor] = []

    def plain(path: str, value: object) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value.detach())
            return {"tensor": len(tensors) - 1}
        if isinstance(value, dict):
            pairs = [[_key(path, k), plain(f"{path}[{k!r}]", v)] for k, v in value.items()]
            return {"dict": pairs}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [plain(f"{path}[{i}]", v) for i, v in enumerate(value)]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(float(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise InputError(
            f"{path} is a {type(value).__name__}, which a checkpoint does not hold; state may have "
            f"tensors, numbers, strings, None, lists, tuples and dicts."
        )

    try:
        return plain(name, state), tensors
    except RecursionError as error:
        raise InputError(
            f"{name} is nested too deeply for a checkpoint, or holds itself."
        ) from error


def _key(path: str, key: object) -> str | int | float | bool | None:
    if isinstance(key, float) and not math.isfinite(key):
        raise InputError(f"{path} has the key {key!r}; keys may be strings and finite numbers.")
    if isinstance(key, _KEYS):
        return key
    raise InputError(f"{path} has the key {key!r}; keys may be strings and numbers.")


def put_together(name: str, plain: Any, tensor: Callable[[int], Tensor]) -> Any:
    """Returns the state that `take_apart` was given. `tensor` returns a tensor by its number."""
    try:
        return _whole(name, plain, tensor)
    except RecursionError as error:
        raise CheckpointError(f"{name} is nested too deeply; the checkpoint is damaged.") from error


def _whole(name: str, plain: Any, tensor: Callable[[int], Tensor]) -> Any:
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    if not isinstance(plain, dict) or len(plain) != 1:
        _damaged(name, plain)
    ((kind, inner),) = plain.items()
    if kind == "tensor" and type(inner) is int and inner >= 0:
        return tensor(inner)
    if kind == "float" and inner in _FLOATS:
        return float(inner)
    if not isinstance(inner, list):
        _damaged(name, plain)
    if kind == "dict":
        for pair in inner:
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], _KEYS):
                _damaged(name, pair)
        return {key: _whole(name, value, tensor) for key, value in inner}
    if kind not in ("list", "tuple"):
        _damaged(name, plain)
    parts = [_whole(name, value, tensor) for value in inner]
    return parts if kind == "list" else tuple(parts)


def _damaged(name: str, plain: Any) -> NoReturn:
    shown = repr(plain)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise CheckpointError(f"{name} has {shown}, which is not a state; the checkpoint is damaged.")
