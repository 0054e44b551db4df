"""Whether requests of an exported model may run together, found by trying; how outputs are cut."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .arguments import LENGTHS, WEIGHTS, Arguments, Ids, Numbers

SAMPLES = "samples"  # the cut of an output that has one entry a sample
_SIZES = (3, 2, 4)  # samples of the requests that are tried
_CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # sums in another order; samples that mix differ by far more

Cuts = Mapping[str, str]
Model = Callable[[list[Tensor]], Mapping[str, Tensor]]


def find_cuts(model: Model, arguments: Arguments, known: Mapping[str, Tensor]) -> Cuts | None:
    """How the outputs of joined requests are cut: by samples, or by an output with lengths.

    The model answers some requests, each alone and all joined; `known` has ids of each feature
    that own rows. None where no cut gives the outputs that each had alone: a model that looks
    across its samples, or draws numbers, must not see those of others.

    >>> arguments = Arguments((Numbers("x", torch.float32, (2,)),))
    >>> find_cuts(lambda inputs: {"y": inputs[0] * 2}, arguments, {})
    {'y': 'samples'}
    >>> find_cuts(lambda inputs: {"y": inputs[0].softmax(0)}, arguments, {}) is None
    True
    """
    draw = torch.Generator().manual_seed(0)
    requests = [_drawn(arguments, known, samples, draw) for samples in _SIZES]
    joined = {name: torch.cat([one[name] for one in requests]) for name in requests[0]}
    try:
        alone = [model([*one.values()]) for one in requests]
        together = model([*joined.values()])
    except Exception as error:  # whatever a model raises on numbers that were made up
        logging.getLogger("hedgerow").warning(
            "requests of this model will not be joined: it fails on tried inputs: %s", error
        )
        return None
    cuts = {name: _cut(name, together, alone) for name in together}
    return {name: cut for name, cut in cuts.items() if cut} if all(cuts.values()) else None


def pieces(
    outputs: Mapping[str, Tensor], cuts: Cuts, samples: Sequence[int]
) -> list[dict[str, Tensor]] | None:
    """The outputs of each of several joined requests; None where they are not as the cuts say.

    >>> found = {"y": torch.arange(3), "y_lengths": torch.tensor([2, 1])}
    >>> pieces(found, {"y": "y_lengths", "y_lengths": "samples"}, [1, 1])[1]
    {'y': tensor([2]), 'y_lengths': tensor([1])}
    """
    parts: dict[str, tuple[Tensor, ...]] = {}
    for name, value in outputs.items():
        sizes = samples if cuts[name] == SAMPLES else _lengths(outputs[cuts[name]], samples)
        if sizes is None or not value.dim() or len(value) != sum(sizes):
            return None
        parts[name] = value.split(list(sizes))
    return [{name: part[i] for name, part in parts.items()} for i in range(len(samples))]


def _lengths(lengths: Tensor, samples: Sequence[int]) -> list[int] | None:
    """How many values each request has, of how many each sample has."""
    if lengths.dim() != 1 or lengths.is_floating_point() or len(lengths) != sum(samples):
        return None
    return [int(part.sum()) for part in lengths.split(list(samples))]


def _cut(name: str, together: Mapping[str, Tensor], alone: list[Mapping[str, Tensor]]) -> str:
    """The cut that gives each request what it had alone; empty where none does."""
    for cut in (SAMPLES, name + LENGTHS):
        if cut != SAMPLES and cut not in together:
            continue
        chosen = {n: together[n] for n in (name, cut) if n in together}
        found = pieces(chosen, {name: cut, cut: SAMPLES}, _SIZES)
        if found and all(_equal(p[name], a[name]) for p, a in zip(found, alone, strict=True)):
            return cut
    return ""


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, equal_nan=True, **_CLOSE)


def _drawn(
    arguments: Arguments, known: Mapping[str, Tensor], samples: int, draw: torch.Generator
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for one in arguments.sent:
        if isinstance(one, Numbers):
            found[one.name] = _numbers(one, samples, draw)
            continue
        for name in one.features:
            found |= _ids(one, name, known.get(name), samples, draw)
    return found


def _numbers(one: Numbers, samples: int, draw: torch.Generator) -> Tensor:
    shape = (samples, *one.sizes)
    if one.dtype.is_floating_point or one.dtype.is_complex:
        return torch.randn(shape, generator=draw).to(one.dtype)
    return torch.randint(2, shape, generator=draw).to(one.dtype)  # small: they may be places


def _ids(
    one: Ids, name: str, known: Tensor | None, samples: int, draw: torch.Generator
) -> dict[str, Tensor]:
    lengths = torch.randint(4, (samples,), generator=draw)
    lengths[0] = samples + 1  # so that ids and samples are never as many
    count = int(lengths.sum())
    if known is None or not len(known):
        known = torch.arange(1, 8)
    found = {name: known[torch.randint(len(known), (count,), generator=draw)]}
    found[name + LENGTHS] = lengths
    if one.weighted:
        found[name + WEIGHTS] = torch.rand(count, generator=draw)
    return found
