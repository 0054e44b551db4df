"""Counts what a step asks of a device: kernels of our own, and operations of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hedgerow.kernels.toolchain import interpreted

# Operations that launch no kernel: they make other tensors of the same memory, or take memory.
_VIEWS = {
    *("alias", "as_strided", "detach", "expand", "permute", "resize_", "select", "slice", "split"),
    *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsafe_split", "unsqueeze"),
    *("unsafe_split_with_sizes", "unsafe_view", "view", "_reshape_alias"),
}
_MEMORY = {"empty", "empty_like", "empty_strided", "new_empty", "set_"}


@dataclass
class Launches:
    """How often each kernel, operation and allocation happened."""

    kernels: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)  # of torch, that launch something
    allocations: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Everything that a device would be given to do."""
        return self.kernels.total() + self.operations.total()


class _Operations(TorchDispatchMode):
    def __init__(self, told: Launches) -> None:
        super().__init__()
        self.told = told

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _MEMORY:
            self.told.allocations[name] += 1
        elif name not in _VIEWS:
            self.told.operations[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def launches() -> Iterator[Launches]:
    """What the block launches. Operations of torch in autograd's thread of a GPU are not seen."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    told = Launches()
    kind = InterpretedFunction if interpreted() else JITFunction
    run = kind.run

    def counted(self: Any, *args: Any, **settings: Any) -> Any:
        told.kernels[self.fn.__name__] += 1
        with _disable_current_modes():  # the interpreter's own tensors are none of a device
            return run(self, *args, **settings)

    mode = _Operations(told)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "run", counted)
        with mode:
            yield told
