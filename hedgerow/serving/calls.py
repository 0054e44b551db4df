"""One run of a signature: what it is given is checked against it, and so is what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from torch import Tensor

from ..core.errors import HedgerowError, OutOfMemoryError, StateError
from ..wire.buffers import Array
from ..wire.text_ids import ids_of_text
from .model import DEFAULT_SIGNATURE, Model, ServingError, Signature, Tensors, TensorSpec

P = ParamSpec("P")
R = TypeVar("R")


def signature_of(model: Model, key: str) -> tuple[str, Signature]:
    """The signature asked for, and its name; an empty name is the default one.

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
    """The inputs given are those of the signature, no more and no fewer."""
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
    """The outputs to give: those asked for, or all."""
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
    """An input of the type and shape that the signature wants; strings become ids where it does."""
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
    """The wanted outputs. What the model raises becomes an error with a code."""

    def chosen() -> Tensors:
        outputs = signature.run(inputs)
        return {alias: outputs[alias] for alias in wanted}

    return attempt(key, chosen)


def attempt(key: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What a function of a signature gives; what it raises becomes an error with a code."""
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
