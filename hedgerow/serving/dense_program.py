"""The dense graph of a loaded model, whose weights can be replaced while it answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.errors import HedgerowError, InputError
from .graph_reader import Graph, tensors_of
from .model import ServingError, Tensors


@dataclass(frozen=True, slots=True)
class _Held:
    """Weights by name, and with the constants in the order in which the graph takes them."""

    weights: dict[str, Tensor]
    ordered: tuple[Tensor, ...]


class DenseProgram:
    """Runs a graph; a run sees old weights or new, whole. One thread may `replace`."""

    def __init__(
        self, graph: Graph, weights: Mapping[str, Tensor], constants: Mapping[str, Tensor]
    ) -> None:
        self._graph, self._constants = graph, dict(constants)
        self._held = self._hold(dict(weights))
        self._made_s = time.monotonic()

    def _hold(self, weights: dict[str, Tensor]) -> _Held:
        held = {"weight": weights, "constant": self._constants}
        taken = [(kind, name) for kind, name in self._graph.values if kind != "input"]
        return _Held(weights, tuple(held[kind][name] for kind, name in taken))

    def __call__(self, inputs: list[Tensor]) -> Tensors:
        """Outputs by name."""
        try:
            found = self._graph.run(*self._held.ordered, *inputs)
            return dict(tensors_of(self._graph.outputs, found))
        except HedgerowError:
            raise
        except Exception as error:  # whatever the operations of a graph raise
            text = f"the model's graph failed: {type(error).__name__}: {error}"
            raise ServingError("INTERNAL", text) from error

    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [*self._graph.outputs]

    def weights(self) -> dict[str, Tensor]:
        """The weights by the names that the user's model has for them."""
        return dict(self._held.weights)

    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Runs with other weights from the next request on; a weight that is not given stays."""
        own = self._held.weights
        for name, value in weights.items():
            if name in own and own[name].shape != value.shape:
                raise InputError(
                    f"weight {name!r} has shape {tuple(value.shape)}; the model served here has "
                    f"{tuple(own[name].shape)}. Export the model again."
                )
        missing = sorted({*own} - {*weights})
        if missing:
            raise InputError(f"weights without {', '.join(missing[:3])}, which is served here.")
        # Copies: what is given lies in the memory of a request.
        fresh = {n: weights[n].to(dtype=own[n].dtype, copy=True) for n in own}
        self._held, self._made_s = self._hold(fresh), time.monotonic()

    def age_s(self) -> float:
        """Seconds since the weights came."""
        return time.monotonic() - self._made_s
