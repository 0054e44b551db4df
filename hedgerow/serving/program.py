"""The dense part of a model: traced by torch.export, saved to files, loaded and run."""

from __future__ import annotations

import json
import math
import secrets
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import process_state
from ..core.errors import DtypeError, FileDamagedError, HedgerowError, InputError, NotSupportedError
from ..core.ids import Ragged
from ..nn.export_ops import ReadableRows
from ..nn.freeze import FrozenRows, freeze
from .arguments import LENGTHS, Arguments
from .batching import Cuts, find_cuts
from .graph import Graph, PlainGraph, plain_graph, read_graph, tensors_of
from .model import ServingError, Tensors, TensorSpec

# The dtype names of the safetensors format.
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_WORDS = {dtype: word for word, dtype in _DTYPES.items()}
_MOST_HEADER_BYTES = 100_000_000  # the format's own limit
_MOST_DIMS = 64


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Returns the bytes of a safetensors file with these tensors.

    >>> read_tensors(tensor_bytes({"w": torch.ones(2)}), "weights")
    {'w': tensor([1., 1.])}
    """
    header: dict[str, Any] = {}
    parts, at = [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _WORDS:
            raise DtypeError(f"{name} is {tensor.dtype}, which no file of weights holds.")
        dense = tensor.detach().cpu().contiguous()
        part = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        header[name] = {
            "dtype": _WORDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(part)],
        }
        parts.append(part)
        at += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the values
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def read_tensors(data: bytes | bytearray, what: str) -> dict[str, Tensor]:
    """Returns the tensors in a safetensors file's bytes, checked; `what` names it in errors."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _MOST_HEADER_BYTES):
        raise FileDamagedError(f"{what} is cut off: it has no whole header.")
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
    except (ValueError, RecursionError) as error:
        raise FileDamagedError(f"{what} has a header that is no JSON: {error}.") from error
    if not isinstance(header, dict):
        raise FileDamagedError(f"{what} has a header that is no JSON object.")
    header.pop("__metadata__", None)
    values = bytearray(memoryview(data)[8 + size :])  # a writable copy, which the tensors share
    found, end = {}, 0
    for name, entry in header.items():
        found[name], end = _tensor(values, entry, end, f"{what}, {name!r}")
    if end != len(values):
        raise FileDamagedError(f"{what} holds {len(values)} bytes of values; its header {end}.")
    return found


def _tensor(values: bytearray, entry: Any, begin: int, what: str) -> tuple[Tensor, int]:
    """Returns a tensor whose bytes start at `begin`, and where they end."""
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise FileDamagedError(f"{what} must have dtype, shape and data_offsets.")
    dtype, shape, span = _word(entry["dtype"]), entry["shape"], entry["data_offsets"]
    for sizes in (shape, span):
        if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes):
            raise FileDamagedError(f"{what} has a shape or offsets that are no whole numbers.")
    if dtype is None or len(shape) > _MOST_DIMS:
        raise FileDamagedError(f"{what} has an unknown dtype or too many dimensions.")
    end = begin + math.prod(shape) * dtype.itemsize
    if span != [begin, end] or end > len(values):
        raise FileDamagedError(f"{what} has offsets {span}; its shape needs {[begin, end]}.")
    if begin == end:
        return torch.zeros(shape, dtype=dtype), end
    flat = torch.frombuffer(values, dtype=torch.uint8, count=end - begin, offset=begin)
    if begin % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).view(shape), end


def _word(word: object) -> torch.dtype | None:
    return _DTYPES.get(word) if isinstance(word, str) else None


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights by name, and weights and constants in the order in which the graph takes them."""

    weights: dict[str, Tensor]
    ordered: tuple[Tensor, ...]


class DenseProgram:
    """Runs a graph; each run sees old or new weights, never a mix. One thread may `replace`."""

    def __init__(
        self, graph: Graph, weights: Mapping[str, Tensor], constants: Mapping[str, Tensor]
    ) -> None:
        self._graph, self._constants = graph, dict(constants)
        self._held = self._hold(dict(weights))
        self._made_s = time.monotonic()

    def _hold(self, weights: dict[str, Tensor]) -> _Weights:
        held = {"weight": weights, "constant": self._constants}
        taken = [(kind, name) for kind, name in self._graph.values if kind != "input"]
        return _Weights(weights, tuple(held[kind][name] for kind, name in taken))

    def __call__(self, inputs: list[Tensor]) -> Tensors:
        """Returns the outputs by name."""
        try:
            found = self._graph.run(*self._held.ordered, *inputs)
            return dict(tensors_of(self._graph.outputs, found))
        except HedgerowError:
            raise
        except Exception as error:  # the operations of a graph may raise anything
            text = f"the model's graph failed: {type(error).__name__}: {error}"
            raise ServingError("INTERNAL", text) from error

    def outputs(self) -> list[str]:
        """Returns the names of the outputs."""
        return [*self._graph.outputs]

    def weights(self) -> dict[str, Tensor]:
        """Returns the weights by their names in the user's model."""
        return dict(self._held.weights)

    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Replaces all weights, from the next run on; ignores names that the graph lacks."""
        own = self._held.weights
        for name, value in weights.items():
            if name in own and own[name].shape != value.shape:
                raise InputError(
                    f"weight {name!r} has shape {tuple(value.shape)}; the model served here has "
                    f"{tuple(own[name].shape)}. Export the model again."
                )
        missing = sorted({*own} - {*weights})
        if missing:
            raise InputError(
                f"the weights lack {', '.join(missing[:3])}, which the model served here has."
            )
        # Copies: the given tensors are views of a request's bytes.
        fresh = {n: weights[n].to(dtype=own[n].dtype, copy=True) for n in own}
        self._held, self._made_s = self._hold(fresh), time.monotonic()

    def age_s(self) -> float:
        """Returns the seconds since the weights were loaded or replaced."""
        return time.monotonic() - self._made_s


GRAPH, WEIGHTS, CONSTANTS = "graph.json", "weights.safetensors", "constants.safetensors"
OUTPUT = "output"


class NamedTensorModel(nn.Module):
    """A wrapper of a model whose inputs are a request's tensors and whose outputs have names.

    With `sigmoid`, floating-point outputs (logits) become probabilities.
    """

    def __init__(self, model: nn.Module, arguments: Arguments, *, sigmoid: bool = False) -> None:
        super().__init__()
        self.model, self._arguments, self._sigmoid = model, arguments, sigmoid

    def forward(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        """Returns the outputs by name."""
        named = dict(zip(self._arguments.specs(), inputs, strict=True))
        found = named_outputs(self.model(*self._arguments.build(named)))
        if self._sigmoid:
            return {n: t.sigmoid() if t.is_floating_point() else t for n, t in found.items()}
        return found


def named_outputs(result: object) -> dict[str, Tensor]:
    """Returns a model's result by name: `output`, `output_0` and on, or the keys of its dict.

    >>> list(named_outputs((torch.ones(1), torch.ones(2))))
    ['output_0', 'output_1']
    """
    if isinstance(result, Tensor | Ragged):
        return _output(OUTPUT, result)
    if isinstance(result, Mapping):
        parts = {str(name): value for name, value in result.items()}
    elif isinstance(result, tuple | list):
        parts = {f"{OUTPUT}_{i}": value for i, value in enumerate(result)}
    else:
        parts = {OUTPUT: result}
    return {n: t for name, value in parts.items() for n, t in _output(name, value).items()}


def _output(name: str, value: object) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, Ragged):
        return {name: value.values, name + LENGTHS: value.row_splits.diff()}
    raise NotSupportedError(
        f"the model's {name} is a {type(value).__name__}; a served model returns a tensor, or a "
        f"tuple or dict of tensors and Ragged rows."
    )


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """A traced program: its outputs, how to cut them for joined requests, and its graph."""

    outputs: dict[str, TensorSpec]
    cuts: Cuts | None
    graph: PlainGraph

    def save(self, folder: Path) -> None:
        """Writes the program's files of a bundle: JSON and plain tensors."""
        (folder / GRAPH).write_text(json.dumps(self.graph.plain, allow_nan=False) + "\n")
        (folder / WEIGHTS).write_bytes(tensor_bytes(self.graph.weights))
        (folder / CONSTANTS).write_bytes(tensor_bytes(self.graph.constants))


def trace(
    model: nn.Module, arguments: Arguments, known: Mapping[str, Tensor], *, sigmoid: bool = False
) -> TracedProgram:
    """Traces the model in eval mode, for any number of samples.

    `known` has some ids of each feature that have rows, for trial requests.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise InputError(f"{name} is on {tensor.device}; export model.cpu().")
    frozen = freeze(model, name=f"export-{secrets.token_hex(6)}")
    inputs = [*arguments.made_up().values()]
    named = NamedTensorModel(frozen, arguments, sigmoid=sigmoid).eval()
    try:
        with torch.no_grad():
            program = torch.export.export(named, (inputs,), dynamic_shapes=(arguments.shapes(),))
            cuts = find_cuts(program.module(), arguments, known)
    finally:
        for module in frozen.modules():
            if isinstance(module, FrozenRows):
                process_state.release(module.name, module.store)
    return TracedProgram(output_specs(program), cuts, _plain(program))


def _plain(program: torch.export.ExportedProgram) -> PlainGraph:
    """Returns the graph for a file; decomposes operations that a file may not contain."""
    try:
        return plain_graph(program, output_names(program))
    except NotSupportedError as error:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # torch warns about its own calls
                simpler = program.run_decompositions()
            return plain_graph(simpler, output_names(program))
        except NotSupportedError:
            raise error from None


def output_names(program: torch.export.ExportedProgram) -> list[str]:
    """Returns the names of the outputs."""
    return program.call_spec.out_spec.context  # pyright: ignore[reportOptionalMemberAccess]


def output_specs(program: torch.export.ExportedProgram) -> dict[str, TensorSpec]:
    """Returns dtypes and shapes of the outputs."""
    values = [node.meta["val"] for node in program.graph.output_node().args[0]]  # pyright: ignore
    return {
        name: TensorSpec(value.dtype, tuple(s if type(s) is int else None for s in value.shape))
        for name, value in zip(output_names(program), values, strict=True)
    }


def read_program(
    files: Mapping[str, bytes], inputs: list[str], rows: ReadableRows
) -> tuple[DenseProgram, str]:
    """Returns the program in a bundle's files, and the shared name under which it reads `rows`.

    `inputs` are the names of the signature's inputs.
    """
    try:
        plain: Any = json.loads(files[GRAPH])
    except (ValueError, RecursionError) as error:
        raise FileDamagedError(f"{GRAPH} is no JSON: {error}.") from error
    weights = read_tensors(files[WEIGHTS], WEIGHTS)
    constants = read_tensors(files[CONSTANTS], CONSTANTS)
    return make_program(PlainGraph(plain, weights, constants), inputs, rows)


def make_program(
    written: PlainGraph, inputs: list[str], rows: ReadableRows
) -> tuple[DenseProgram, str]:
    """Returns a program that runs a graph, after a check of every value, and its shared name."""
    name = f"bundle-{secrets.token_hex(8)}"
    graph = read_graph(written.plain, dict(zip(rows.names, rows.dims, strict=True)), name)
    taken = len(graph.named("input"))
    if taken != len(inputs):
        raise FileDamagedError(f"the graph takes {taken} inputs; the manifest names {len(inputs)}.")
    for kind, held in (("weight", written.weights), ("constant", written.constants)):
        if {*graph.named(kind)} != {*held}:
            raise FileDamagedError(f"the graph's {kind}s are not those of the file of {kind}s.")
    program = DenseProgram(graph, written.weights, written.constants)
    process_state.register(name, rows)
    return program, name


def read_old_program(path: Path, inputs: list[str], rows: ReadableRows) -> tuple[DenseProgram, str]:
    """Reads a file of release 0.1. Trust its maker: torch unpickles the file."""
    try:
        program = torch.export.load(path)
        written = plain_graph(program, output_names(program))
    except HedgerowError:
        raise
    except Exception as error:  # torch's readers may raise anything
        raise FileDamagedError(
            f"{path} is no program that torch {torch.__version__} loads: {error}. Export again."
        ) from error
    return make_program(written, inputs, rows)
