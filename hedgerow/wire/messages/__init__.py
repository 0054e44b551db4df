"""The messages and enums of `protos/*.proto`: one attribute per file, as in `tensor.TensorProto`.

A class is built when it is first asked for, so importing this package does not load protobuf. The
types stand in one stub per file (`tensor.pyi`), written by `make protos`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

FILES = (
    "agent_service",
    "error_codes",
    "kserve",
    "model_export",
    "parameter_sync",
    "tensor",
    "tf_serving",
)


class ProtoFile:
    """The messages, enums and enum values of one .proto file, as attributes.

    >>> ProtoFile("tensor").TensorProto.DESCRIPTOR.full_name
    'tensorflow.TensorProto'
    """

    def __init__(self, file: str) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python asks for such names; no message has one
            raise AttributeError(f"{self._file}.proto has no {name!r}")
        from ..pool import find

        return find(self._file, name)


@cache
def _file(name: str) -> ProtoFile:
    return ProtoFile(name)


def __getattr__(name: str) -> ProtoFile:
    if name not in FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _file(name)
