"""The graph of a traced program as plain values for a file, and the tensors that it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from ..core.errors import NotSupportedError
from .graph_ops import name_of

GRAPH_FORMAT, GRAPH_VERSION = "hedgerow graph", 1
_PREFIX = "model."  # a program is traced through a wrapper that names its inputs


@dataclass(frozen=True, slots=True)
class PlainGraph:
    """A graph fit for JSON, and its tensors: `weights` by the names that the user's model has for
    them, and `constants`.
    """

    plain: dict[str, Any]
    weights: dict[str, Tensor]
    constants: dict[str, Tensor]


def plain_graph(program: torch.export.ExportedProgram, outputs: Sequence[str]) -> PlainGraph:
    """The graph of a program whose inputs are one list of tensors.

    Values are numbered: weights, constants and inputs as the graph takes them, then one a node.
    """
    weights: dict[str, Tensor] = {}
    constants: dict[str, Tensor] = {}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise NotSupportedError(
                f"the model changes {spec.target!r} while it answers; a served model must not."
            )
    taken: list[list[str]] = []
    found: dict[fx.Node, Any] = {}
    graph = program.graph_module.graph
    for node in graph.nodes:
        if node.op == "placeholder":
            found[node] = {"value": len(taken)}
            taken.append(_input(specs[node.name], program, weights, constants))
    writer = _Writer(program.graph_module, found, len(taken))
    results = writer.write(graph)
    plain = {
        "format": GRAPH_FORMAT,
        "format_version": GRAPH_VERSION,
        "values": taken,
        "nodes": writer.nodes,
        "outputs": dict(zip(outputs, results, strict=True)),
    }
    return PlainGraph(plain, weights, constants)


def _input(
    spec: InputSpec,
    program: torch.export.ExportedProgram,
    weights: dict[str, Tensor],
    constants: dict[str, Tensor],
) -> list[str]:
    """What one value is that the graph takes, as `[kind, name]`; its tensor is noted."""
    target = spec.target or ""
    if spec.kind is InputKind.USER_INPUT:
        return ["input", spec.arg.name]
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
        name = target.removeprefix(_PREFIX)
        held: Mapping[str, Any] = program.state_dict
        weights[name] = _tensor(held[target] if target in held else program.constants[target])
        return ["weight", name]
    if spec.kind is InputKind.CONSTANT_TENSOR:
        constants[target] = _tensor(program.constants[target])
        return ["constant", target]
    raise NotSupportedError(
        f"the model's graph holds {target or spec.arg.name!r}, a {spec.kind.name.lower()}; a "
        f"served model holds tensors alone."
    )


def _tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise _refused(f"a {type(value).__name__}")
    return value


class _Writer:
    """Writes the nodes of a graph in order; `found` has what each node is in the file."""

    def __init__(self, module: fx.GraphModule, found: dict[fx.Node, Any], values: int) -> None:
        self._module, self._found, self._values = module, found, values
        self.nodes: list[dict[str, Any]] = []

    def write(self, graph: fx.Graph) -> list[Any]:
        """Appends all nodes; what the graph gives."""
        for node in graph.nodes:
            if node.op == "output":
                return self._plain(node.args[0])
            if node in self._found or node.op == "get_attr":  # a part's graph, written where called
                continue
            if node.op != "call_function":
                raise _refused(f"a {node.op} of {node.target!r}")
            self._call(node)
        raise _refused("no output")

    def _call(self, node: fx.Node) -> None:
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            self._inline(node)
            return
        name = name_of(node.target)
        if name is None:
            raise _refused(f"{node.target}")
        args = [self._plain(value) for value in node.args]
        kwargs = {key: self._plain(value) for key, value in node.kwargs.items()}
        self._found[node] = {"value": self._values + len(self.nodes)}
        self.nodes.append({"op": name, "args": args, "kwargs": kwargs})

    def _inline(self, node: fx.Node) -> None:
        """Writes the nodes of a part that is run with or without gradients: none is served."""
        inner: fx.GraphModule = getattr(self._module, str(node.args[1].target))  # type: ignore[union-attr]
        wanted = [one for one in inner.graph.nodes if one.op == "placeholder"]
        for placeholder, value in zip(wanted, node.args[2:], strict=True):
            self._found[placeholder] = self._plain(value)
        outer, self._module = self._module, inner
        results = self.write(inner.graph)
        self._module = outer
        for user in node.users:  # each picks one of the results
            self._found[user] = results[user.args[1]]  # type: ignore[index]

    def _plain(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            if value not in self._found:
                raise _refused(f"a use of {value.target!r}")
            return self._found[value]
        if isinstance(value, tuple | list):
            return [self._plain(one) for one in value]
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, complex):
            return {"complex": [self._plain(value.real), self._plain(value.imag)]}
        for kind in (torch.dtype, torch.layout, torch.memory_format):
            if isinstance(value, kind):
                return {kind.__name__: str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": value.type}
        raise _refused(f"an argument that is a {type(value).__name__}")


def _refused(what: str) -> NotSupportedError:
    return NotSupportedError(
        f"the model's graph holds {what}, which a bundle cannot hold: servers run only operations "
        f"of a fixed list. Write this part of the model with other operations."
    )
