"""Registers ops with torch, so that `torch.compile` and `torch.export` accept them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

NAMESPACE = "hedgerow"


def register(
    schema: str,
    *,
    cpu: Callable[..., Any],
    plain: Callable[..., Any],
    shapes: Callable[..., Any],
    device: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    keep: Callable[..., None] | None = None,
) -> torch._ops.OpOverload:
    """Defines an op, registers its implementations, and returns it.

    `cpu` runs on the CPU and `device`, which launches Hedgerow's kernels, on a GPU. Without
    `device` or without Triton, `plain` runs there, which uses torch's ops. `shapes` returns outputs
    without values, for tracing. `backward(context, *grads)` is the gradient, and `keep(context,
    inputs, output)` saves what it needs. The implementations must check arguments themselves,
    because a compiled program calls them directly.
    """
    name = f"{NAMESPACE}::{schema.split('(', 1)[0]}"
    torch.library.define(name, schema[schema.index("(") :])
    torch.library.impl(name, "cpu", cpu)
    by_kernel = device is not None and find_spec("triton") is not None
    torch.library.impl(name, "cuda", device if by_kernel else plain)
    torch.library.register_fake(name, shapes)
    if backward is not None:
        torch.library.register_autograd(name, backward, setup_context=keep)
    return getattr(getattr(torch.ops, NAMESPACE), name.split("::")[1]).default


def unknown_size() -> torch.SymInt:
    """Returns a size that depends on the data, for a `shapes` function."""
    return torch.library.get_ctx().new_dynamic_size()
