from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServingEntry(_message.Message):
    __slots__ = ("export_dir", "global_step")
    EXPORT_DIR_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    export_dir: str
    global_step: int
    def __init__(self, export_dir: _Optional[str] = ..., global_step: _Optional[int] = ...) -> None: ...

class ServingModelState(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ServingEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ServingEntry, _Mapping]]] = ...) -> None: ...
