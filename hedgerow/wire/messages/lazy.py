"""How a module of messages answers for its names without loading protobuf when it loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def names_of(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that is named like its .proto file.

    >>> names_of("hedgerow.wire.messages.tensor")("TensorProto").DESCRIPTOR.full_name
    'tensorflow.TensorProto'
    """
    file = module.rpartition(".")[2]

    def find_name(name: str) -> Any:
        if name.startswith("_"):  # Python's own questions; no message is called so
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from ..pool import find

        return find(file, name)

    return find_name
