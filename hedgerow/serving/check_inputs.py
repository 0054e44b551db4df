"""What a request must be before a model sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps

import torch
from torch import Tensor

from ..core.errors import DtypeError, InputError
from .arguments import LENGTHS, WEIGHTS, Arguments, Ids, Numbers, dtype_name
from .model import ServingError, Tensors, TensorSpec

INVALID = "INVALID_ARGUMENT"
MOST_ANSWER_BYTES = 256 << 20
Run = Callable[[Tensors], Tensors]


def answers(specs: Mapping[str, TensorSpec], run: Run) -> Run:
    """`run` behind a check of names, types and shapes; what it refuses is the caller's mistake."""

    @wraps(run)
    def checked(inputs: Tensors) -> Tensors:
        check_specs(specs, inputs)
        try:
            return run(inputs)
        except (InputError, DtypeError) as error:
            raise ServingError(INVALID, str(error)) from error

    return checked


def check_specs(specs: Mapping[str, TensorSpec], inputs: Tensors) -> None:
    """All inputs are there, and no other, each of its type and shape."""
    for name in specs:
        if name not in inputs:
            raise ServingError(INVALID, f"input {name!r} is missing; send {', '.join(specs)}.")
    for name, tensor in inputs.items():
        if name not in specs:
            raise ServingError(INVALID, f"unknown input {name!r}; known: {', '.join(specs)}.")
        spec = specs[name]
        if not spec.takes(tensor):
            shape = ", ".join("any" if size is None else str(size) for size in spec.shape)
            raise ServingError(
                INVALID,
                f"input {name!r} is {dtype_name(tensor.dtype)} {list(tensor.shape)}; it must be "
                f"{dtype_name(spec.dtype)} [{shape}].",
            )


def check_batch(arguments: Arguments, inputs: Tensors) -> None:
    """All inputs speak of the same samples, and lengths of the ids that are there."""
    samples = _samples(arguments, inputs)
    if len(set(samples.values())) > 1:
        raise ServingError(INVALID, f"inputs differ in their number of samples: {samples}.")
    for argument in arguments.sent:
        if isinstance(argument, Ids):
            _check_lengths(argument, inputs)


def _samples(arguments: Arguments, inputs: Tensors) -> dict[str, int]:
    found: dict[str, int] = {}
    for argument in arguments.sent:
        if isinstance(argument, Numbers):
            found[argument.name] = len(inputs[argument.name])
        else:
            found |= {n + LENGTHS: len(inputs[n + LENGTHS]) for n in argument.features}
    return found


def _check_lengths(ids: Ids, inputs: Tensors) -> None:
    lengths = torch.stack([inputs[name + LENGTHS] for name in ids.features])
    most = max(len(inputs[name]) for name in ids.features)
    if lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= most:
        raise ServingError(INVALID, f"lengths must lie in 0..{most}, the ids that were sent.")
    for name, total in zip(ids.features, lengths.sum(1).tolist(), strict=True):
        _same(name + LENGTHS, total, name, inputs[name])
        if ids.weighted:
            _same(name + WEIGHTS, len(inputs[name + WEIGHTS]), name, inputs[name])


def _same(what: str, total: int, name: str, ids: Tensor) -> None:
    if total != len(ids):
        raise ServingError(INVALID, f"{what} speaks of {total} ids; {name} has {len(ids)}.")


def check_answer(floats: int) -> None:
    """A message of few bytes may repeat one id millions of times, and rows are longer than ids."""
    if 4 * floats > MOST_ANSWER_BYTES:
        raise InputError(
            f"the rows of these ids take {4 * floats} bytes; at most {MOST_ANSWER_BYTES} are "
            "looked up at once: ask for fewer ids."
        )
