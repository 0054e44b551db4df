"""A private protobuf descriptor pool, so that other packages may define messages of equal names.

Imports protobuf, so it is imported only when a message is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from ..core.errors import MissingExtraError
from .descriptors import DESCRIPTOR_SET

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.descriptor import FileDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
    from google.protobuf.message import Message as Message
except ImportError as error:
    raise MissingExtraError(
        f"serving messages need protobuf ({error}); pip install hedgerow[serving]."
    ) from error


def new_pool(others: Iterable[FileDescriptor] = ()) -> DescriptorPool:
    """Returns a pool with Hedgerow's files and `others`, for example for gRPC reflection."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET).file:
        pool.AddSerializedFile(file.SerializeToString())
    for other in others:
        pool.AddSerializedFile(other.serialized_pb)
    return pool


POOL = new_pool()  # the only pool whose classes are used: messages of two pools do not mix


@cache
def find(file: str, name: str) -> Any:
    """Returns a message class, an enum, or the number of an enum value, by file and name.

    >>> find("tensor", "DT_INT64"), find("tensor", "DataType").Name(9)
    (9, 'DT_INT64')
    """
    described = POOL.FindFileByName(f"{file}.proto")
    if name in described.message_types_by_name:
        return message_factory.GetMessageClass(described.message_types_by_name[name])
    enums = described.enum_types_by_name
    if name in enums:
        return EnumTypeWrapper(enums[name])
    for enum in enums.values():
        if name in enum.values_by_name:
            return enum.values_by_name[name].number
    raise AttributeError(f"{file}.proto has no {name!r}")
