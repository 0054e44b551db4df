"""Ops that torch knows by name, so that `torch.compile` and `torch.export` take them."""

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
    """Defines an op and gives it its forms; the op, ready to be called.

    `cpu` runs on the CPU, `device`, which starts kernels of ours, on a GPU; where there is none, or
    no Triton, `plain`, which is made of torch's ops. `shapes` tells sizes and types without a
    value. With `backward(context, *grads)` it has a gradient, for which `keep(context, inputs,
    output)` saves what is needed. Bad arguments are refused by the forms themselves: a compiled
    program calls them without any Python around them.
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
    """A size that only the data tell, for a `shapes` function."""
    return torch.library.get_ctx().new_dynamic_size()
