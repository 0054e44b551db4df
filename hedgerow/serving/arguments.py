"""The named inputs of a signature, and their conversion to the arguments of the model's forward."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.errors import ConfigError, DtypeError, InputError
from ..core.id_batch import IdBatch
from ..nn.export_ops import traced_batch
from .model import TensorSpec

LENGTHS, WEIGHTS = "_lengths", "_weights"
_SAMPLES = 5  # samples in the traced batch; export would make sizes 0 and 1 constants of the graph


@dataclass(frozen=True, slots=True)
class Numbers:
    """A tensor argument with one entry per sample: name, dtype, and sizes after the first.

    An `implied` tensor has no elements (a dense input of width 0, for example). Clients do not
    send it.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    implied: bool = False

    def specs(self) -> dict[str, TensorSpec]:
        """Returns the input of this argument by name; none if it is implied."""
        return {} if self.implied else {self.name: TensorSpec(self.dtype, (None, *self.sizes))}

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        implied = {"implied": True} if self.implied else {}
        plain = {"name": self.name, "dtype": dtype_name(self.dtype), "sizes": list(self.sizes)}
        return {**plain, **implied}


@dataclass(frozen=True, slots=True)
class Ids:
    """An IdBatch argument: per feature all ids, the number of ids per sample, optional weights.

    Clients may send strings for a feature in `fields`: they become `hr.id64(value, field)`.
    """

    features: tuple[str, ...]
    weighted: bool
    fields: Mapping[str, str] = field(default_factory=dict)

    def specs(self) -> dict[str, TensorSpec]:
        """Returns the two or three inputs of each feature by name."""
        found: dict[str, TensorSpec] = {}
        for name in self.features:
            found[name] = found[name + LENGTHS] = TensorSpec(torch.int64, (None,))
            if self.weighted:
                found[name + WEIGHTS] = TensorSpec(torch.float32, (None,))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        fields = {"fields": dict(self.fields)} if self.fields else {}
        return {"features": list(self.features), "weighted": self.weighted, **fields}

    def batch(self, inputs: Mapping[str, Tensor]) -> IdBatch:
        """Returns the batch without reading any value, so that a graph can be traced through it."""
        values = torch.cat([inputs[name] for name in self.features])
        lengths = torch.stack([inputs[name + LENGTHS] for name in self.features])
        weights = None
        if self.weighted:
            weights = torch.cat([inputs[name + WEIGHTS] for name in self.features])
        return traced_batch(self.features, values, lengths, weights)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a model's forward, in order.

    A tensor argument is one input, with its name in `forward`. An IdBatch has these inputs for
    every feature `f`: `f` (all ids, sample after sample), `f_lengths` (number of ids per sample),
    and `f_weights` if the batch has weights.

    >>> arguments = Arguments((Numbers("dense", torch.float32, (4,)), Ids(("user",), False)))
    >>> list(arguments.specs())
    ['dense', 'user', 'user_lengths']
    """

    each: tuple[Numbers | Ids, ...]

    @property
    def sent(self) -> list[Numbers | Ids]:
        """The arguments for which clients send inputs."""
        return [one for one in self.each if isinstance(one, Ids) or not one.implied]

    @staticmethod
    def of(model: nn.Module, example: object, fields: Mapping[str, str] | None = None) -> Arguments:
        """Returns the arguments of the model's forward, from an example: one argument or a tuple.

        `fields` has the hash field of each feature that clients may send as strings.
        """
        given = example if isinstance(example, tuple | list) else (example,)
        named = [*inspect.signature(model.forward).parameters.values()]
        names = [p.name for p in named if p.kind is not p.VAR_POSITIONAL]
        names += [f"input_{i}" for i in range(len(names), len(given))]
        hashed = _checked_fields(fields or {}, given)
        has_ids = any(isinstance(one, IdBatch) for one in given)
        parts = (_argument(n, a, hashed, has_ids) for n, a in zip(names, given, strict=False))
        made = Arguments(tuple(parts))
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
        """Returns all inputs by name, in the order in which the graph takes them."""
        return {name: spec for one in self.each for name, spec in one.specs().items()}

    def fields(self) -> dict[str, str]:
        """Returns the hash field of each input that may be strings."""
        return {
            name: field
            for one in self.each
            if isinstance(one, Ids)
            for name, field in one.fields.items()
        }

    def samples(self) -> str:
        """Returns the name of an input that has one entry per sample."""
        first = self.sent[0]
        return first.name if isinstance(first, Numbers) else first.features[0] + LENGTHS

    def build(self, inputs: Mapping[str, Tensor]) -> list[Tensor | IdBatch]:
        """Returns the arguments to call the model with."""
        found: list[Tensor | IdBatch] = []
        for one in self.each:
            if isinstance(one, Ids):
                found.append(one.batch(inputs))
            elif one.implied:
                samples = inputs[self.samples()].shape[0]
                found.append(torch.zeros(samples, *one.sizes, dtype=one.dtype))
            else:
                found.append(inputs[one.name])
        return found

    def made_up(self) -> dict[str, Tensor]:
        """Returns inputs to trace a graph with; sizes that may differ do differ in them."""
        found: dict[str, Tensor] = {}
        for one in self.sent:
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
        """Returns the dynamic sizes of each input: the samples, and the ids of each feature."""
        samples = torch.export.Dim("samples")
        found: list[dict[int, Any]] = []
        for one in self.sent:
            if isinstance(one, Numbers):
                found.append({0: samples})
                continue
            for _ in one.features:
                ids = torch.export.Dim(f"ids{len(found)}")
                found += [{0: ids}, {0: samples}, *([{0: ids}] if one.weighted else [])]
        return found

    def to_list(self) -> list[dict[str, Any]]:
        """Returns a list for JSON."""
        return [argument.to_dict() for argument in self.each]

    @staticmethod
    def from_list(plain: Sequence[Mapping[str, Any]]) -> Arguments:
        """Returns the arguments of a list that `to_list` made."""
        return Arguments(tuple(_from_dict(one) for one in plain))


def dtype_name(dtype: torch.dtype) -> str:
    """A type without torch's name before it."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The type of a name."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise DtypeError(f"{name!r} is no element type of torch.")
    return found


def _from_dict(plain: Mapping[str, Any]) -> Numbers | Ids:
    """One argument, each field of its type."""
    if "features" in plain:
        features, fields = plain["features"], plain.get("fields", {})
        texts = [*features, *fields, *fields.values()]
        known = bool(features) and {*fields} <= {*features}
        if not known or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"features are {features!r} with fields {fields!r}")
        return Ids(tuple(features), plain["weighted"] is True, dict(fields))
    name, sizes = plain["name"], plain["sizes"]
    if not isinstance(name, str) or not all(type(n) is int and n >= 0 for n in sizes):
        raise ConfigError(f"input {name!r} has sizes {sizes!r}")
    return Numbers(name, dtype_of(plain["dtype"]), tuple(sizes), plain.get("implied") is True)


def _checked_fields(fields: Mapping[str, str], given: Sequence[object]) -> Mapping[str, str]:
    known = [name for one in given if isinstance(one, IdBatch) for name in one.names]
    for name, value in fields.items():
        if name not in known:
            checks.unknown("feature in fields", name, known)
        if not isinstance(value, str):
            raise ConfigError(f"the field of {name!r} is {value!r}; it must be a str.")
    return fields


def _argument(name: str, given: object, fields: Mapping[str, str], has_ids: bool) -> Numbers | Ids:
    if isinstance(given, IdBatch):
        if not given.names:
            raise InputError(f"{name} of the example is an IdBatch without features.")
        own = {feature: fields[feature] for feature in given.names if feature in fields}
        return Ids(given.names, given.weights is not None, own)
    if isinstance(given, Tensor) and given.dim():
        sizes = tuple(given.shape[1:])
        return Numbers(name, given.dtype, sizes, implied=has_ids and 0 in sizes)
    what = "a tensor without sizes" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    raise DtypeError(
        f"{name} of the example is {what}; a served model takes tensors with one entry a sample, "
        f"and IdBatches. Fix other arguments in a module around the model."
    )
