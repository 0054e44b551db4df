"""The inputs of a signature by name, and the arguments of a model that they become."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError, DtypeError, InputError
from ..core.id_batch import IdBatch
from ..nn.pytree import traced_batch
from .model import TensorSpec

LENGTHS, WEIGHTS = "_lengths", "_weights"
_SAMPLES = 5  # of the batch a graph is traced with; 0 and 1 would become part of the graph


@dataclass(frozen=True, slots=True)
class Numbers:
    """A tensor with one entry a sample: its name, element type and the sizes after the first."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]

    def specs(self) -> dict[str, TensorSpec]:
        """Itself."""
        return {self.name: TensorSpec(self.dtype, (None, *self.sizes))}

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {"name": self.name, "dtype": dtype_name(self.dtype), "sizes": list(self.sizes)}


@dataclass(frozen=True, slots=True)
class Ids:
    """An IdBatch: of every feature all ids, how many each sample has, and their weights if any."""

    features: tuple[str, ...]
    weighted: bool

    def specs(self) -> dict[str, TensorSpec]:
        """Two or three inputs a feature."""
        found: dict[str, TensorSpec] = {}
        for name in self.features:
            found[name] = found[name + LENGTHS] = TensorSpec(torch.int64, (None,))
            if self.weighted:
                found[name + WEIGHTS] = TensorSpec(torch.float32, (None,))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {"features": list(self.features), "weighted": self.weighted}

    def batch(self, inputs: Mapping[str, Tensor]) -> IdBatch:
        """The batch, without a look at values: a graph is traced through it."""
        values = torch.cat([inputs[name] for name in self.features])
        lengths = torch.stack([inputs[name + LENGTHS] for name in self.features])
        weights = None
        if self.weighted:
            weights = torch.cat([inputs[name + WEIGHTS] for name in self.features])
        return traced_batch(self.features, values, lengths, weights)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a model in their order.

    A tensor argument is an input under the name it has in `forward`. An IdBatch is, for every
    feature `f`, the inputs `f` (all ids, sample after sample), `f_lengths` (ids of each sample),
    and `f_weights` where the batch has weights.

    >>> arguments = Arguments((Numbers("dense", torch.float32, (4,)), Ids(("user",), False)))
    >>> list(arguments.specs())
    ['dense', 'user', 'user_lengths']
    """

    each: tuple[Numbers | Ids, ...]

    @staticmethod
    def of(model: nn.Module, example: object) -> Arguments:
        """Those of the model's forward, told from an example: one argument, or a tuple of them."""
        given = example if isinstance(example, tuple | list) else (example,)
        named = [*inspect.signature(model.forward).parameters.values()]
        names = [p.name for p in named if p.kind is not p.VAR_POSITIONAL]
        names += [f"input_{i}" for i in range(len(names), len(given))]
        made = Arguments(tuple(_argument(n, a) for n, a in zip(names, given, strict=False)))
        if not made.each:
            raise InputError("example is empty; give the model's arguments for one batch.")
        counts = Counter(name for argument in made.each for name in argument.specs())
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise ConfigError(
                f"two inputs of the model are named {twice[0]!r}; rename the feature, or the "
                f"argument of forward."
            )
        return made

    def specs(self) -> dict[str, TensorSpec]:
        """All inputs, in the order in which the graph takes them."""
        return {name: spec for one in self.each for name, spec in one.specs().items()}

    def samples(self) -> str:
        """An input that has one entry a sample."""
        first = self.each[0]
        return first.name if isinstance(first, Numbers) else first.features[0] + LENGTHS

    def build(self, inputs: Mapping[str, Tensor]) -> list[Tensor | IdBatch]:
        """What the model is called with."""
        return [
            inputs[one.name] if isinstance(one, Numbers) else one.batch(inputs) for one in self.each
        ]

    def made_up(self) -> dict[str, Tensor]:
        """Inputs to trace a graph with, none of whose sizes is special or equal by accident."""
        found: dict[str, Tensor] = {}
        for one in self.each:
            if isinstance(one, Numbers):
                found[one.name] = torch.zeros(_SAMPLES, *one.sizes, dtype=one.dtype)
                continue
            for name in one.features:
                lengths = torch.full((_SAMPLES,), 2)
                lengths[-1] += 1 + len(found)
                found[name] = torch.zeros(int(lengths.sum()), dtype=torch.int64)
                found[name + LENGTHS] = lengths
                if one.weighted:
                    found[name + WEIGHTS] = torch.ones(len(found[name]))
        return found

    def shapes(self) -> list[dict[int, Any]]:
        """Which sizes of the inputs may change: samples, and the ids of each feature."""
        samples = torch.export.Dim("samples")
        found: list[dict[int, Any]] = []
        for one in self.each:
            if isinstance(one, Numbers):
                found.append({0: samples})
                continue
            for _ in one.features:
                ids = torch.export.Dim(f"ids{len(found)}")
                found += [{0: ids}, {0: samples}, *([{0: ids}] if one.weighted else [])]
        return found

    def to_list(self) -> list[dict[str, Any]]:
        """Fit for JSON."""
        return [argument.to_dict() for argument in self.each]

    @staticmethod
    def from_list(plain: Sequence[Mapping[str, Any]]) -> Arguments:
        """What `to_list` was called on."""
        return Arguments(tuple(_from_dict(one) for one in plain))


def dtype_name(dtype: torch.dtype) -> str:
    """A type without torch's name before it."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The type of a name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise DtypeError(f"{name!r} is no element type of torch.")
    return found


def _from_dict(plain: Mapping[str, Any]) -> Numbers | Ids:
    if "features" in plain:
        return Ids(tuple(plain["features"]), bool(plain["weighted"]))
    return Numbers(plain["name"], dtype_of(plain["dtype"]), tuple(plain["sizes"]))


def _argument(name: str, given: object) -> Numbers | Ids:
    if isinstance(given, IdBatch):
        if not given.names:
            raise InputError(f"{name} of the example is an IdBatch without features.")
        return Ids(given.names, given.weights is not None)
    if isinstance(given, Tensor) and given.dim():
        return Numbers(name, given.dtype, tuple(given.shape[1:]))
    what = "a tensor without sizes" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    raise DtypeError(
        f"{name} of the example is {what}; a served model takes tensors with one entry a sample, "
        f"and IdBatches. Fix other arguments in a module around the model."
    )
