"""One run of a signature: checks of its inputs and requested outputs, and errors with codes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from ..core.errors import DtypeError, HedgerowError, InputError, OutOfMemoryError, StateError
from ..wire.buffers import Array, ids_of_text
from .arguments import LENGTHS, WEIGHTS, Arguments, Ids, Numbers, dtype_name
from .model import DEFAULT_SIGNATURE, Model, ServingError, Signature, Tensors, TensorSpec

INVALID = "INVALID_ARGUMENT"
MOST_ANSWER_BYTES = 256 << 20
Run = Callable[[Tensors], Tensors]


def checked_run(specs: Mapping[str, TensorSpec], run: Run) -> Run:
    """Returns `run` with a check of input names, types and shapes, and errors as ServingError."""

    @wraps(run)
    def checked(inputs: Tensors) -> Tensors:
        check_specs(specs, inputs)
        try:
            return run(inputs)
        except (InputError, DtypeError) as error:
            raise ServingError(INVALID, str(error)) from error

    return checked


def check_specs(specs: Mapping[str, TensorSpec], inputs: Tensors) -> None:
    """Raises unless the inputs are exactly those of `specs`, each with its type and shape."""
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
    """Raises unless all inputs have the same number of samples, and lengths match the ids."""
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
        raise ServingError(INVALID, f"{what} is for {total} ids; {name} has {len(ids)}.")


def check_answer(floats: int) -> None:
    """Raises if an answer would be too large: a short message can have millions of ids."""
    if 4 * floats > MOST_ANSWER_BYTES:
        raise InputError(
            f"the rows of these ids take {4 * floats} bytes; at most {MOST_ANSWER_BYTES} are "
            "looked up at once: ask for fewer ids."
        )


P = ParamSpec("P")
R = TypeVar("R")


def signature_of(model: Model, key: str) -> tuple[str, Signature]:
    """Returns the requested signature and its name; an empty name means the default signature.

    >>> signature_of(Model("ctr", 1, {}), "")
    Traceback (most recent call last):
    hedgerow.serving.model.ServingError: Serving signature key "serving_default" not found.
    """
    key = key or DEFAULT_SIGNATURE
    signature = model.signatures.get(key)
    if signature is None:
        raise ServingError("FAILED_PRECONDITION", f'Serving signature key "{key}" not found.')
    return key, signature


def check_names(signature: Signature, given: Collection[str]) -> None:
    """Raises unless the given inputs are exactly those of the signature."""
    wanted = signature.inputs
    if len(given) != len(wanted):
        missing = ", ".join(sorted(set(wanted) - set(given))) or "none"
        unknown = ", ".join(sorted(set(given) - set(wanted))) or "none"
        raise ServingError(
            "INVALID_ARGUMENT",
            f"input size does not match signature: {len(given)} != {len(wanted)}; missing: "
            f"{missing}; not in the signature: {unknown}.",
        )
    for alias in wanted:
        if alias not in given:
            unknown = next(one for one in given if one not in wanted)
            raise _unknown("input", unknown, wanted)


def wanted_outputs(signature: Signature, asked: Collection[str]) -> Collection[str]:
    """Returns the names of the outputs to return: the requested ones, or all."""
    if not asked:
        return signature.outputs
    seen = set()
    for alias in asked:
        if alias not in signature.outputs:
            raise _unknown("output", alias, signature.outputs)
        if alias in seen:
            raise ServingError("INVALID_ARGUMENT", f"duplicate output tensor alias: {alias}")
        seen.add(alias)
    return asked


def _unknown(kind: str, alias: str, known: Iterable[str]) -> ServingError:
    names = ", ".join(sorted(known))
    return ServingError(
        "INVALID_ARGUMENT",
        f"{kind} tensor alias not found in signature: {alias}; it has: {names}.",
    )


def checked(key: str, alias: str, signature: Signature, value: Tensor | Array) -> Tensor:
    """Returns an input, with strings hashed to ids; raises if its type or shape is wrong."""
    spec = signature.inputs[alias]
    if alias in signature.fields and not isinstance(value, Tensor) and value.dtype == object:
        value = ids_of_text(value, signature.fields[alias])
    if not isinstance(value, Tensor) or not spec.takes(value):
        found = _told(value.dtype, value.shape)
        raise ServingError(
            "INVALID_ARGUMENT",
            f"input {alias} of signature {key} has {found}; it must have {_wanted(spec)}.",
        )
    return value


def _told(dtype: object, shape: Iterable[int | None]) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    name = "string" if str(dtype) == "object" else str(dtype).removeprefix("torch.")
    return f"dtype {name} and shape [{sizes}]"


def _wanted(spec: TensorSpec) -> str:
    return _told(spec.dtype, spec.shape)


def run(key: str, signature: Signature, inputs: Tensors, wanted: Iterable[str]) -> Tensors:
    """Returns the wanted outputs; errors of the model become ServingErrors with a code."""

    def chosen() -> Tensors:
        outputs = signature.run(inputs)
        return {alias: outputs[alias] for alias in wanted}

    return attempt(key, chosen)


def attempt(key: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Returns what `function` returns; its errors become ServingErrors with a code."""
    try:
        return function(*args, **kwargs)
    except ServingError:
        raise
    except HedgerowError as error:
        raise ServingError(_code_of(error), str(error)) from error
    except Exception as error:
        text = f"signature {key} failed: {type(error).__name__}: {error}"
        raise ServingError("INTERNAL", text) from error


def _code_of(error: HedgerowError) -> str:
    if isinstance(error, OutOfMemoryError):
        return "RESOURCE_EXHAUSTED"
    if isinstance(error, StateError):
        return "FAILED_PRECONDITION"
    return "INVALID_ARGUMENT" if isinstance(error, ValueError) else "INTERNAL"
