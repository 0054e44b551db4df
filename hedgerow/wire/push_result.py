"""What a sync step tells: one response for each target and part, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .messages.parameter_sync import PushResult


def to_json(result: PushResult) -> str:
    """JSON with the names of the .proto file and every field that is set, zeros as well.

    >>> from hedgerow.wire.messages import parameter_sync
    >>> to_json(parameter_sync.PushResult())
    '{}'
    """
    from google.protobuf.json_format import MessageToJson

    return MessageToJson(result, preserving_proto_field_name=True, ensure_ascii=False)
