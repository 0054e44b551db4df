"""The dense graph of a loaded model, whose weights can be replaced while it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..core.errors import InputError
from .model import Tensors

_PREFIX = "model."  # a program is traced through a wrapper that names its inputs


class DenseProgram:
    """Runs a graph that `make` makes; a run sees old weights or new, whole. One may `replace`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._module = make, make()
        self._made_s = time.monotonic()

    def __call__(self, inputs: list[Tensor]) -> Tensors:
        """Outputs by name."""
        return self._module(inputs)

    def weights(self) -> dict[str, Tensor]:
        """The weights by the names that the user's model has for them."""
        return {name.removeprefix(_PREFIX): t for name, t in self._module.state_dict().items()}

    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Runs with other weights from the next request on; a weight that is not given stays."""
        own = self.weights()
        for name, value in weights.items():
            if name in own and own[name].shape != value.shape:
                raise InputError(
                    f"weight {name!r} has shape {tuple(value.shape)}; the model served here has "
                    f"{tuple(own[name].shape)}. Export the model again."
                )
        missing = sorted({*own} - {*weights})
        if missing:
            raise InputError(f"weights without {', '.join(missing[:3])}, which is served here.")
        fresh = self._make()
        state = {}
        for name, value in fresh.state_dict().items():
            given = weights[name.removeprefix(_PREFIX)]
            state[name] = given.to(dtype=value.dtype, copy=True)  # of the request's memory
        fresh.load_state_dict(state, assign=True)
        self._module, self._made_s = fresh, time.monotonic()

    def age_s(self) -> float:
        """Seconds since the weights came."""
        return time.monotonic() - self._made_s
