"""The area `ops`: how its cases are written, and the one way most of them are run (section 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hedgerow.core.ids import Ragged

from .runner import Area, Case, take


class _Files(dict[str, set[str]]):
    """Every file has a schema and the name of its op."""

    def get(self, key: str, default: Any = None) -> set[str]:
        return {"schema", "op"}


AREA = Area("ops", file_values=_Files())

_DTYPES = {"int64": torch.int64, "int32": torch.int32, "float32": torch.float32}


def decode(value: Any) -> Any:
    """JSON as tensors, `Ragged`s, lists and numbers."""
    if isinstance(value, dict):
        if "t" in value:
            take(value, {"t", "shape", "data"})
            number = float if value["t"] == "float32" else int
            flat = [number(x) for x in value["data"]]
            return torch.tensor(flat, dtype=_DTYPES[value["t"]]).reshape(value["shape"])
        if "ragged" in value:
            take(value, {"ragged"})
            inner = take(value["ragged"], {"values", "row_splits"})
            return Ragged(decode(inner["values"]), decode(inner["row_splits"]))
        return {key: decode(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [decode(inner) for inner in value]
    return value


def equal(actual: Any, wanted: Any, rtol: float, atol: float, where: str = "") -> None:
    """Same structure, dtype and shape; floats within the tolerance, integers exactly."""
    if isinstance(wanted, Tensor):
        assert isinstance(actual, Tensor), f"{where} is a {type(actual).__name__}"
        assert actual.dtype == wanted.dtype, f"{where}: {actual.dtype}, not {wanted.dtype}"
        assert actual.shape == wanted.shape, f"{where}: {actual.shape}, not {wanted.shape}"
        whole = not wanted.is_floating_point()
        torch.testing.assert_close(
            actual, wanted, rtol=0 if whole else rtol, atol=0 if whole else atol, equal_nan=True
        )
    elif isinstance(wanted, Ragged):
        assert isinstance(actual, Ragged), f"{where} is a {type(actual).__name__}"
        equal(actual.values, wanted.values, rtol, atol, f"{where}.values")
        equal(actual.row_splits, wanted.row_splits, rtol, atol, f"{where}.row_splits")
    elif isinstance(wanted, list):
        assert len(actual) == len(wanted), f"{where}: {len(actual)} entries, not {len(wanted)}"
        for i, (one, other) in enumerate(zip(actual, wanted, strict=True)):
            equal(one, other, rtol, atol, f"{where}[{i}]")
    elif isinstance(wanted, dict):
        for key, inner in wanted.items():
            found = actual[key] if isinstance(actual, Mapping) else getattr(actual, key)
            equal(found, inner, rtol, atol, f"{where}.{key}")
    else:
        if isinstance(actual, int) and isinstance(wanted, str):  # beyond 2^53
            wanted = int(wanted)
        assert actual == wanted, f"{where}: {actual!r}, not {wanted!r}"


def handles(op: str) -> Callable[[Callable[..., Mapping[str, Any]]], object]:
    """Registers `run(**args)`, which gives the outputs by the names of `expect`.

    Gradients are taken by autograd of the arguments that `grad_inputs` names (tensors, or lists of
    them), from the outputs that `grad_outputs` names, and multiplied by `scale`.
    """

    def register(run: Callable[..., Mapping[str, Any]]) -> object:
        def handler(case: Case) -> None:
            value = case.take(
                {"name", "origin", "args"}, {"expect", "error", "grad", "rtol", "atol"}
            )
            if "error" in value:
                assert value["error"] == "ValueError"
                with pytest.raises(ValueError, match=r".+"):
                    run(**decode(value["args"]))
                return
            rtol, atol = value.get("rtol", 1e-6), value.get("atol", 1e-6)
            args = decode(value["args"])
            grad = take(
                value.get("grad", {"grad_outputs": {}, "grad_inputs": {}}),
                {"grad_outputs", "grad_inputs"},
                {"scale"},
            )
            leaves = {name: _leaves(args[name]) for name in grad["grad_inputs"]}
            outputs = run(**args)
            equal(_detached(outputs), decode(value["expect"]), rtol, atol)
            if leaves:
                _check_grad(outputs, leaves, grad, rtol, atol)

        return AREA.handles(op, "cases")(handler)

    return register


def _leaves(value: Any) -> list[Tensor]:
    return [leaf.requires_grad_() for leaf in (value if isinstance(value, list) else [value])]


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _detached(inner) for key, inner in value.items()}
    return [_detached(inner) for inner in value] if isinstance(value, list | tuple) else value


def _check_grad(
    outputs: Mapping[str, Any],
    leaves: dict[str, list[Tensor]],
    grad: Mapping[str, Any],
    rtol: float,
    atol: float,
) -> None:
    ends: list[Tensor] = []
    starts: list[Tensor] = []
    for name, given in grad["grad_outputs"].items():
        out, fed = outputs[name], decode(given)
        ends += [out] if isinstance(out, Tensor) else list(out)
        starts += fed if isinstance(fed, list) else [fed]
    wanted_grads = {name: decode(wanted) for name, wanted in grad["grad_inputs"].items()}
    flat = [leaf for one in leaves.values() for leaf in one]
    got = torch.autograd.grad(ends, flat, starts, allow_unused=True)
    found = [
        torch.zeros_like(leaf) if one is None else one * grad.get("scale", 1.0)
        for leaf, one in zip(flat, got, strict=True)
    ]
    wanted = [one for w in wanted_grads.values() for one in (w if isinstance(w, list) else [w])]
    equal(found, wanted, rtol, atol, "grad")
