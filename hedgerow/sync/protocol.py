"""What a publisher and a replica say to each other: calls, and the marks that pushes carry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError

# Calls are unary; requests and answers are JSON, but the request of Dense is a PredictRequest.
REPLICA_SERVICE, ROSTER_SERVICE = "hedgerow.sync.Replica", "hedgerow.sync.Roster"
DESCRIBE, ATTACH, SWEEP, BEAT, DENSE = "Describe", "Attach", "Sweep", "Beat", "Dense"
ANNOUNCE, LEAVE = "Announce", "Leave"

ASSIGN, REMOVE = "hashtable_assign", "hashtable_remove"
PREDICT_PATH = "/tensorflow.serving.PredictionService/Predict"

_SEQ, _SHARD, _PUBLISHER = "sync-seq", "sync-shard", "sync-publisher"
_SESSION, _AFTER = "sync-session", "sync-after"
GONE = "ABORTED"  # the code of a push whose session the replica does not know (any more)


@dataclass(frozen=True, slots=True)
class PushMark:
    """What a push says of itself, in gRPC metadata: servers of others do not look at it.

    Numbers rise from push to push of one shard. `after` is that of a push which may still be under
    way, and must be applied before; 0 if none is.

    >>> mark = PushMark("s1", 7, 0, "p1", after=6)
    >>> PushMark.read(mark.metadata()) == mark
    True
    >>> PushMark.read([("user-agent", "x")]) is None
    True
    """

    session: str
    seq: int
    shard: int
    publisher: str
    after: int = 0

    def metadata(self) -> list[tuple[str, str]]:
        """As gRPC takes it."""
        return [
            (_SESSION, self.session),
            (_SEQ, str(self.seq)),
            (_SHARD, str(self.shard)),
            (_PUBLISHER, self.publisher),
            (_AFTER, str(self.after)),
        ]

    @classmethod
    def read(cls, metadata: Iterable[tuple[str, str | bytes]]) -> PushMark | None:
        """The mark of a call; None of one that is no push of ours."""
        found = {key: str(value) for key, value in metadata if key.startswith("sync-")}
        if _SESSION not in found:
            return None
        try:
            seq, shard = int(found[_SEQ]), int(found[_SHARD])
            after = int(found.get(_AFTER, "0"))
            return cls(found[_SESSION], seq, shard, found[_PUBLISHER], after)
        except (KeyError, ValueError) as error:
            raise InputError(f"a push has the marks {found}, which make no sense: {error}.") from (
                error
            )


def to_json(plain: Mapping[str, Any]) -> bytes:
    """A request or an answer as bytes."""
    return json.dumps(plain).encode()


def read_json(data: bytes) -> dict[str, Any]:
    """A request or an answer.

    >>> read_json(to_json({"a": 1}))
    {'a': 1}
    """
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"these {len(data)} bytes are no JSON: {error}.") from error
    if not isinstance(plain, dict):
        raise InputError(f"a {type(plain).__name__} where a JSON object must stand.")
    return plain
