"""Writes the graph of a traced program as JSON, and reads it back with a check of every value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from ..core.errors import FileDamagedError, NotSupportedError
from .graph_ops import READ_ROWS, name_of, op_of

GRAPH_FORMAT, GRAPH_VERSION = "hedgerow graph", 1
_PREFIX = "model."  # the name of the user's model in the wrapper that is traced


@dataclass(frozen=True, slots=True)
class PlainGraph:
    """A graph fit for JSON, and its tensors.

    `weights` have the names of the user's model; `constants` have the names of the graph.
    """

    plain: dict[str, Any]
    weights: dict[str, Tensor]
    constants: dict[str, Tensor]


def plain_graph(program: torch.export.ExportedProgram, outputs: Sequence[str]) -> PlainGraph:
    """Returns the graph of a program whose inputs are one list of tensors.

    Values are numbered: first weights, constants and inputs in the graph's order, then one value
    per node.
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
    """Returns one input of the graph as `[kind, name]`, and stores its tensor in a dict."""
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
    """Writes the nodes of a graph in order; `found` has the written form of each node."""

    def __init__(self, module: fx.GraphModule, found: dict[fx.Node, Any], values: int) -> None:
        self._module, self._found, self._values = module, found, values
        self.nodes: list[dict[str, Any]] = []

    def write(self, graph: fx.Graph) -> list[Any]:
        """Appends all nodes and returns the graph's outputs."""
        for node in graph.nodes:
            if node.op == "output":
                return self._plain(node.args[0])
            if node in self._found or node.op == "get_attr":  # a subgraph; its call writes it
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
        """Writes the nodes of a subgraph of set_grad_enabled in place: serving has no gradients."""
        inner: fx.GraphModule = getattr(self._module, str(node.args[1].target))  # type: ignore[union-attr]
        wanted = [one for one in inner.graph.nodes if one.op == "placeholder"]
        for placeholder, value in zip(wanted, node.args[2:], strict=True):
            self._found[placeholder] = self._plain(value)
        outer, self._module = self._module, inner
        results = self.write(inner.graph)
        self._module = outer
        for user in node.users:  # each user takes one of the results
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


_MOST_NODES, _MOST_DEPTH = 50_000, 8
_WORDS: dict[str, dict[str, Any]] = {
    "dtype": {
        str(value).removeprefix("torch."): value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype)
    },
    "layout": {"strided": torch.strided},
    "memory_format": {
        str(value).removeprefix("torch."): value
        for value in (torch.contiguous_format, torch.preserve_format, torch.channels_last)
    },
    "device": {"cpu": torch.device("cpu")},
    "float": {"inf": float("inf"), "-inf": -float("inf"), "nan": float("nan")},
}
# torch's schema types of arguments that are written as words, and the kind of word.
_KINDS = {
    "ScalarType": "dtype",
    "Layout": "layout",
    "MemoryFormat": "memory_format",
    "Device": "device",
}


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that can run. It takes weights, constants and inputs in the order of `values`."""

    values: tuple[tuple[str, str], ...]  # kind and name of each value
    outputs: tuple[str, ...]
    run: Callable[..., tuple[Any, ...]]

    def named(self, kind: str) -> list[str]:
        """Returns the names of the values of one kind."""
        return [name for own, name in self.values if own == kind]


def read_graph(plain: Any, rows: Mapping[str, int], store: str) -> Graph:
    """Returns the graph in `plain`, which reads rows from the store shared as `store`.

    `rows` has the dims of the bundle's tables.

    >>> from hedgerow.serving.graph import GRAPH_FORMAT, GRAPH_VERSION
    >>> double = {"op": "aten.add.Tensor", "args": [{"value": 0}, {"value": 0}], "kwargs": {}}
    >>> graph = read_graph({
    ...     "format": GRAPH_FORMAT, "format_version": GRAPH_VERSION, "values": [["input", "x"]],
    ...     "nodes": [double], "outputs": {"y": {"value": 1}},
    ... }, {}, "")
    >>> graph.run(torch.ones(2))
    (tensor([2., 2.]),)
    """
    if not isinstance(plain, dict) or plain.get("format") != GRAPH_FORMAT:
        raise FileDamagedError("it is no graph of a bundle.")
    if plain.get("format_version") != GRAPH_VERSION:
        raise FileDamagedError(
            f"the graph has format_version {plain.get('format_version')!r}; this release reads "
            f"{GRAPH_VERSION}."
        )
    names = ["format", "format_version", "nodes", "outputs", "values"]
    if sorted(plain) != names:
        raise FileDamagedError(f"the graph has {sorted(map(str, plain))}; it must have {names}.")
    values = tuple(_value(one) for one in _list(plain["values"], "values"))
    kinds = [kind for kind, _ in values]
    if len(set(values)) < len(values) or "input" in kinds[: len(kinds) - kinds.count("input")]:
        raise FileDamagedError("the graph takes a value twice, or an input before a weight.")
    nodes, outputs = _list(plain["nodes"], "nodes"), plain["outputs"]
    if not isinstance(outputs, dict) or not all(isinstance(name, str) for name in outputs):
        raise FileDamagedError("the graph's outputs must be an object.")
    reader = _GraphReader(len(values), rows, store)
    for node in nodes:
        reader.add(node)
    return Graph(values, tuple(outputs), reader.function([*outputs.values()]))


def _check_words(name: str, schema: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raises if a dtype, layout or device is given as a number: torch would not check it."""
    arguments = [] if schema is None else schema.arguments
    given = {**dict(zip((one.name for one in arguments), args, strict=False)), **kwargs}
    for one in arguments:
        kind = _KINDS.get(str(one.real_type).removeprefix("Optional[").removesuffix("]"))
        value = given.get(one.name)
        if kind is not None and value is not None and _kind(value) != kind:
            raise FileDamagedError(f"{name} has a {one.name} of {str(value)[:80]}; it is a {kind}.")


def _kind(value: Any) -> str | None:
    return next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None


def _value(one: Any) -> tuple[str, str]:
    kind, name = one if isinstance(one, list) and len(one) == 2 else (None, None)
    if kind not in ("weight", "constant", "input") or not isinstance(name, str):
        raise FileDamagedError(f"the graph takes {str(one)[:80]}; it takes weights and inputs.")
    return str(kind), name


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST_NODES:
        raise FileDamagedError(f"the graph's {what} must be a list of at most {_MOST_NODES}.")
    return value


class _GraphReader:
    """Builds a torch.fx graph from checked nodes. No name in it comes from the file."""

    def __init__(self, taken: int, rows: Mapping[str, int], store: str) -> None:
        self._graph = fx.Graph()
        self._rows, self._store = rows, store
        self._values = [self._graph.placeholder(f"value{place}") for place in range(taken)]

    def add(self, node: Any) -> None:
        """Checks a node and appends its call."""
        if not isinstance(node, dict) or sorted(node) != ["args", "kwargs", "op"]:
            raise FileDamagedError("a node of the graph must have op, args and kwargs.")
        name, args, kwargs = node["op"], node["args"], node["kwargs"]
        if not (isinstance(name, str) and isinstance(args, list) and isinstance(kwargs, dict)):
            raise FileDamagedError("a node of the graph has an op, args or kwargs of a wrong type.")
        target = op_of(name)
        schema = getattr(target, "_schema", None)
        known = {one.name for one in schema.arguments} if schema is not None else set()
        for key in kwargs:
            if key not in known or not key.isidentifier():
                raise FileDamagedError(f"{name} has no argument {key[:80]!r}.")
        _check_words(name, schema, args, kwargs)
        if name == READ_ROWS:
            args = self._reading(args, kwargs)
        given = tuple(self._argument(value) for value in args)
        named = {key: self._argument(value) for key, value in kwargs.items()}
        self._values.append(self._graph.call_function(target, given, named))

    def _reading(self, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Returns the arguments of the op that reads rows, checked against the bundle's tables."""
        if len(args) != 10 or kwargs:
            raise FileDamagedError("the graph reads rows with a wrong number of arguments.")
        tables, dims = args[3], args[5]
        for one in args[1:6]:
            if not isinstance(one, list) or len(args[2]) != len(args[3]):
                raise FileDamagedError("the graph reads rows of features that are no lists.")
        if len(tables) != len(dims):
            raise FileDamagedError("the graph reads rows of tables without dims.")
        for table, dim in zip(tables, dims, strict=True):
            if not isinstance(table, str) or self._rows.get(table) != dim:
                raise FileDamagedError(
                    f"the graph reads table {table!r} of dim {dim!r}; the bundle has "
                    f"{dict(self._rows)}."
                )
        return [self._store, *args[1:]]

    def _argument(self, value: Any, depth: int = 0) -> Any:
        if depth > _MOST_DEPTH:
            raise FileDamagedError("an argument of the graph is nested too deeply.")
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise FileDamagedError(f"{str(value)[:40]} in the graph does not fit 64 bits.")
            return value
        if isinstance(value, float):
            return value
        if isinstance(value, list):
            return [self._argument(one, depth + 1) for one in value]
        return self._tagged(value, depth)

    def _tagged(self, value: Any, depth: int) -> Any:
        """Returns the value of a tagged argument such as `{"value": 3}`, `{"dtype": "float32"}`."""
        if not isinstance(value, dict) or len(value) != 1:
            raise FileDamagedError(f"{str(value)[:80]} is no argument of a graph.")
        ((kind, inner),) = value.items()
        if kind == "value" and type(inner) is int and 0 <= inner < len(self._values):
            return self._values[inner]
        if kind == "complex" and isinstance(inner, list) and len(inner) == 2:
            real, imaginary = (self._argument(one, depth + 1) for one in inner)
            if isinstance(real, int | float) and isinstance(imaginary, int | float):
                return complex(real, imaginary)
        if isinstance(inner, str) and inner in _WORDS.get(kind, {}):
            return _WORDS[kind][inner]
        raise FileDamagedError(f"{str(value)[:80]} is no argument of a graph.")

    def function(self, outputs: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
        """Returns the function that runs all nodes."""
        found = tuple(self._argument(value) for value in outputs)
        if not all(isinstance(value, fx.Node) for value in found):
            raise FileDamagedError("an output of the graph is no value of it.")
        self._graph.output(found)
        return fx.GraphModule(nn.Module(), self._graph).forward  # type: ignore[return-value]


def tensors_of(outputs: Sequence[str], found: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    """Yields the outputs by name; raises if one is not a tensor."""
    for name, value in zip(outputs, found, strict=True):
        if not isinstance(value, Tensor):
            raise FileDamagedError(f"output {name!r} of the graph is a {type(value).__name__}.")
        yield name, value
