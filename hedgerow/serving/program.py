"""The dense graph of a model in a file: made by torch.export, with one op where rows are read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..core import registry
from ..core.errors import FileDamagedError, InputError, NotSupportedError
from ..core.ids import Ragged
from ..nn.freeze import freeze
from ..nn.frozen import FrozenRows
from ..nn.read_op import ReadableRows, read_rows
from .arguments import LENGTHS, Arguments
from .joining import Cuts, find_cuts
from .model import TensorSpec

OUTPUT = "output"


class ByName(nn.Module):
    """A model whose inputs are the tensors of a request, and whose outputs have names."""

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        super().__init__()
        self.model, self._arguments = model, arguments

    def forward(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        """Outputs by name."""
        named = dict(zip(self._arguments.specs(), inputs, strict=True))
        return named_outputs(self.model(*self._arguments.build(named)))


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


def write_program(
    model: nn.Module, arguments: Arguments, path: Path, known: Mapping[str, Tensor]
) -> tuple[dict[str, TensorSpec], Cuts | None]:
    """Traces the model in eval, for any number of samples; what its outputs are, and their cuts.

    `known` has ids of each feature that own rows, to try the model with.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise InputError(f"{name} is on {tensor.device}; export model.cpu().")
    frozen = freeze(model, name=f"export-{secrets.token_hex(6)}")
    inputs, named = [*arguments.made_up().values()], ByName(frozen, arguments).eval()
    try:
        with torch.no_grad():
            program = torch.export.export(named, (inputs,), dynamic_shapes=(arguments.shapes(),))
            cuts = find_cuts(program.module(), arguments, known)
    finally:
        for module in frozen.modules():
            if isinstance(module, FrozenRows):
                registry.release(module.name, module.store)
    torch.export.save(program, path)
    return _output_specs(program), cuts


def _output_specs(program: torch.export.ExportedProgram) -> dict[str, TensorSpec]:
    """Names from the structure of the outputs, types and shapes from the graph."""
    names: list[str] = program.call_spec.out_spec.context  # pyright: ignore[reportOptionalMemberAccess]
    values = [node.meta["val"] for node in program.graph.output_node().args[0]]  # pyright: ignore
    return {
        name: TensorSpec(value.dtype, tuple(s if type(s) is int else None for s in value.shape))
        for name, value in zip(names, values, strict=True)
    }


def read_program(path: Path, rows: ReadableRows) -> tuple[Callable[[], Any], str]:
    """What makes the graph, reading `rows`, and the shared name that it knows them by.

    Each that is made has weights of its own once others are loaded into it.
    """
    try:
        program = torch.export.load(path)
    except Exception as error:  # torch raises whatever its readers meet
        raise FileDamagedError(
            f"{path} is no program that torch {torch.__version__} loads: {error}. Export again."
        ) from error
    name = f"bundle-{secrets.token_hex(8)}"
    for node in _reads(program):
        _check_tables(path, rows, node.args[3], node.args[5])
        node.args = (name, *node.args[1:])
    program.graph_module.recompile()
    registry.register(name, rows)
    return program.module, name


def _reads(program: torch.export.ExportedProgram) -> Iterator[fx.Node]:
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is read_rows:
            yield node


def _check_tables(path: Path, rows: ReadableRows, tables: Any, dims: Any) -> None:
    there = dict(zip(rows.names, rows.dims, strict=True))
    for table, dim in zip(tables, dims, strict=True):
        if there.get(table) != dim:
            raise FileDamagedError(
                f"{path} reads table {table!r} of dim {dim}; the bundle has {there}."
            )
