"""From a graph's plain values to a function: every value is checked, and no text is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..core.errors import FileDamagedError
from .graph_ops import READ_ROWS, op_of
from .graph_writer import GRAPH_FORMAT, GRAPH_VERSION

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
# What torch calls the types of such arguments.
_KINDS = {
    "ScalarType": "dtype",
    "Layout": "layout",
    "MemoryFormat": "memory_format",
    "Device": "device",
}


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that runs: it takes weights, constants and inputs in the order of `values`."""

    values: tuple[tuple[str, str], ...]  # kind and name of each
    outputs: tuple[str, ...]
    run: Callable[..., tuple[Any, ...]]

    def named(self, kind: str) -> list[str]:
        """The names of one kind."""
        return [name for own, name in self.values if own == kind]


def read_graph(plain: Any, rows: Mapping[str, int], store: str) -> Graph:
    """The function of a graph that reads rows under the shared name `store`.

    `rows` has the dims of the tables that are there.

    >>> from hedgerow.serving.graph_writer import GRAPH_FORMAT, GRAPH_VERSION
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
    reader = _Reader(len(values), rows, store)
    for node in nodes:
        reader.add(node)
    return Graph(values, tuple(outputs), reader.function([*outputs.values()]))


def _check_words(name: str, schema: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Types and the like are words: torch takes numbers for them, too, and looks at none."""
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


class _Reader:
    """Makes torch's own graph of nodes that were checked. Names in it are ours."""

    def __init__(self, taken: int, rows: Mapping[str, int], store: str) -> None:
        self._graph = fx.Graph()
        self._rows, self._store = rows, store
        self._values = [self._graph.placeholder(f"value{place}") for place in range(taken)]

    def add(self, node: Any) -> None:
        """Appends a call."""
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
        """The arguments of the op that reads rows: of this bundle's tables, with their dims."""
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
        """`{"value": 3}`, `{"dtype": "float32"}` and so on."""
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
        """What runs all nodes."""
        found = tuple(self._argument(value) for value in outputs)
        if not all(isinstance(value, fx.Node) for value in found):
            raise FileDamagedError("an output of the graph is no value of it.")
        self._graph.output(found)
        return fx.GraphModule(nn.Module(), self._graph).forward  # type: ignore[return-value]


def tensors_of(outputs: Sequence[str], found: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    """Outputs by name, if each is a tensor."""
    for name, value in zip(outputs, found, strict=True):
        if not isinstance(value, Tensor):
            raise FileDamagedError(f"output {name!r} of the graph is a {type(value).__name__}.")
        yield name, value
