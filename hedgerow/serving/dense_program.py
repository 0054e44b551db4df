"""The dense graph of a loaded model, whose weights can be replaced while it answers."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from .model import Tensors

_PREFIX = "model."  # a program is traced through a wrapper that names its inputs


class DenseProgram:
    """Runs a graph. `replace` takes one caller at a time; a run sees old weights or new, whole."""

    def __init__(self, module: Any) -> None:
        self._module = module
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
        fresh = copy.deepcopy(self._module, _shared(self._module))
        with torch.no_grad():
            for name, value in fresh.state_dict().items():
                value.copy_(weights[name.removeprefix(_PREFIX)])
        self._module, self._made_s = fresh, time.monotonic()

    def age_s(self) -> float:
        """Seconds since the weights came."""
        return time.monotonic() - self._made_s


def _shared(module: Any) -> dict[int, Any]:
    """What a copy of a graph has in common with it: how inputs and outputs are nested."""
    info = getattr(getattr(module.graph, "_codegen", None), "pytree_info", None)
    specs = [*(info or ()), getattr(module, "_in_spec", None), getattr(module, "_out_spec", None)]
    return {id(spec): spec for spec in specs if spec is not None}
