"""The dense graph of a model in files: made by torch.export, with one op where rows are read."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import registry
from ..core.errors import FileDamagedError, InputError, NotSupportedError
from ..core.ids import Ragged
from ..nn.freeze import freeze
from ..nn.frozen import FrozenRows
from ..nn.read_op import ReadableRows
from .arguments import LENGTHS, Arguments
from .dense_program import DenseProgram
from .graph_reader import read_graph
from .graph_writer import PlainGraph, plain_graph
from .joining import Cuts, find_cuts
from .model import TensorSpec
from .tensor_file import read_tensors, tensor_bytes

GRAPH, WEIGHTS, CONSTANTS = "graph.json", "weights.safetensors", "constants.safetensors"
OUTPUT = "output"


class ByName(nn.Module):
    """A model whose inputs are the tensors of a request, and whose outputs have names.

    With `sigmoid` outputs of floats are probabilities in place of logits.
    """

    def __init__(self, model: nn.Module, arguments: Arguments, *, sigmoid: bool = False) -> None:
        super().__init__()
        self.model, self._arguments, self._sigmoid = model, arguments, sigmoid

    def forward(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        """Outputs by name."""
        named = dict(zip(self._arguments.specs(), inputs, strict=True))
        found = named_outputs(self.model(*self._arguments.build(named)))
        if self._sigmoid:
            return {n: t.sigmoid() if t.is_floating_point() else t for n, t in found.items()}
        return found


def named_outputs(result: object) -> dict[str, Tensor]:
    """What a model returned, by name: `output`, `output_0` and on, or the keys of its dict.

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
class Written:
    """What was traced: the outputs, how they are cut where requests ran together, the graph."""

    outputs: dict[str, TensorSpec]
    cuts: Cuts | None
    graph: PlainGraph

    def save(self, folder: Path) -> None:
        """Writes the files of a bundle that hold it: JSON and plain tensors."""
        (folder / GRAPH).write_text(json.dumps(self.graph.plain, allow_nan=False) + "\n")
        (folder / WEIGHTS).write_bytes(tensor_bytes(self.graph.weights))
        (folder / CONSTANTS).write_bytes(tensor_bytes(self.graph.constants))


def trace(
    model: nn.Module, arguments: Arguments, known: Mapping[str, Tensor], *, sigmoid: bool = False
) -> Written:
    """Traces the model in eval, for any number of samples.

    `known` has ids of each feature that own rows, to try the model with.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise InputError(f"{name} is on {tensor.device}; export model.cpu().")
    frozen = freeze(model, name=f"export-{secrets.token_hex(6)}")
    inputs = [*arguments.made_up().values()]
    named = ByName(frozen, arguments, sigmoid=sigmoid).eval()
    try:
        with torch.no_grad():
            program = torch.export.export(named, (inputs,), dynamic_shapes=(arguments.shapes(),))
            cuts = find_cuts(program.module(), arguments, known)
    finally:
        for module in frozen.modules():
            if isinstance(module, FrozenRows):
                registry.release(module.name, module.store)
    return Written(output_specs(program), cuts, _plain(program))


def _plain(program: torch.export.ExportedProgram) -> PlainGraph:
    """The graph for a file; operations that none may hold are written as simpler ones."""
    try:
        return plain_graph(program, output_names(program))
    except NotSupportedError as error:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # torch's, about torch's own calls
                simpler = program.run_decompositions()
            return plain_graph(simpler, output_names(program))
        except NotSupportedError:
            raise error from None


def output_names(program: torch.export.ExportedProgram) -> list[str]:
    """The names of the outputs, from their structure."""
    return program.call_spec.out_spec.context  # pyright: ignore[reportOptionalMemberAccess]


def output_specs(program: torch.export.ExportedProgram) -> dict[str, TensorSpec]:
    """Types and shapes of the outputs, from the graph."""
    values = [node.meta["val"] for node in program.graph.output_node().args[0]]  # pyright: ignore
    return {
        name: TensorSpec(value.dtype, tuple(s if type(s) is int else None for s in value.shape))
        for name, value in zip(output_names(program), values, strict=True)
    }


def read_program(
    files: Mapping[str, bytes], inputs: list[str], rows: ReadableRows
) -> tuple[DenseProgram, str]:
    """The program in the bytes of a bundle's files, which reads `rows`; and the shared name that
    it knows them by. `inputs` are those of the signature.
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
    """A program that runs a graph, every value of which is checked here."""
    name = f"bundle-{secrets.token_hex(8)}"
    graph = read_graph(written.plain, dict(zip(rows.names, rows.dims, strict=True)), name)
    taken = len(graph.named("input"))
    if taken != len(inputs):
        raise FileDamagedError(f"the graph takes {taken} inputs; the manifest names {len(inputs)}.")
    for kind, held in (("weight", written.weights), ("constant", written.constants)):
        if {*graph.named(kind)} != {*held}:
            raise FileDamagedError(f"the graph's {kind}s are not those of the file of {kind}s.")
    program = DenseProgram(graph, written.weights, written.constants)
    registry.register(name, rows)
    return program, name
