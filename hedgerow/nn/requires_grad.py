"""`module.requires_grad_(False)` freezes the rows below the module, as it does its Parameters."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import nn


def follow_requires_grad() -> None:
    """From now on `requires_grad_` of any module reaches the modules with rows below it.

    It is the one method of torch that this package replaces: torch's own visits Parameters alone,
    and asks no module below. What torch does is done first, and stays as it is.
    """
    plain: Any = nn.Module.requires_grad_
    if hasattr(plain, "reaches_rows"):
        return

    @wraps(plain)
    def requires_grad_(self: nn.Module, requires_grad: bool = True) -> nn.Module:
        from .collection import Collection

        plain(self, requires_grad)
        for module in self.modules():
            if isinstance(module, Collection):
                module.let_rows_learn(requires_grad)
        return self

    vars(requires_grad_)["reaches_rows"] = True
    nn.Module.requires_grad_ = requires_grad_  # pyright: ignore[reportAttributeAccessIssue]
