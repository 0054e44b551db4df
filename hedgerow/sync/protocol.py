"""The calls between a publisher and a replica, and the values that they carry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.errors import ConfigError, InputError
from ..core.shapes import Int64
from ..routing.router import Router
from ..wire import tensors
from ..wire.codec import from_bytes
from ..wire.messages import tf_serving

# Calls are unary. Requests and answers are JSON, except that Dense takes a PredictRequest.
REPLICA_SERVICE, ROSTER_SERVICE = "hedgerow.sync.Replica", "hedgerow.sync.Roster"
DESCRIBE, ATTACH, SWEEP, BEAT, DENSE = "Describe", "Attach", "Sweep", "Beat", "Dense"
ANNOUNCE, LEAVE = "Announce", "Leave"

ASSIGN, REMOVE = "hashtable_assign", "hashtable_remove"
PREDICT_PATH = "/tensorflow.serving.PredictionService/Predict"

_SEQ, _SHARD, _PUBLISHER = "sync-seq", "sync-shard", "sync-publisher"
_SESSION, _AFTER = "sync-session", "sync-after"
GONE = "ABORTED"  # the gRPC code of a push whose session the replica does not know


@dataclass(frozen=True, slots=True)
class PushMark:
    """The identification of a push, sent as gRPC metadata. Servers of other makers ignore it.

    `seq` rises with each push of a shard. `after` is the number of an earlier push that may still
    be in flight and must be applied first; 0 means none.

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
        """Returns the mark as gRPC metadata."""
        return [
            (_SESSION, self.session),
            (_SEQ, str(self.seq)),
            (_SHARD, str(self.shard)),
            (_PUBLISHER, self.publisher),
            (_AFTER, str(self.after)),
        ]

    @classmethod
    def read(cls, metadata: Iterable[tuple[str, str | bytes]]) -> PushMark | None:
        """Reads the mark of a call. Returns None if the call is not a marked push."""
        found = {key: str(value) for key, value in metadata if key.startswith("sync-")}
        if _SESSION not in found:
            return None
        try:
            seq, shard = int(found[_SEQ]), int(found[_SHARD])
            after = int(found.get(_AFTER, "0"))
            return cls(found[_SESSION], seq, shard, found[_PUBLISHER], after)
        except (KeyError, ValueError) as error:
            raise InputError(f"a push has the marks {found}, which are not valid: {error}.") from (
                error
            )


def to_json(plain: Mapping[str, Any]) -> bytes:
    """Returns a request or an answer as JSON bytes."""
    return json.dumps(plain).encode()


def read_json(data: bytes) -> dict[str, Any]:
    """Reads a request or an answer.

    >>> read_json(to_json({"a": 1}))
    {'a': 1}
    """
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"these {len(data)} bytes are not JSON: {error}.") from error
    if not isinstance(plain, dict):
        raise InputError(f"a {type(plain).__name__} where a JSON object is expected.")
    return plain


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded version of a model. `incarnation` differs after every load.

    `tables` holds the dim of each table, in byte order of the names; it is empty if the rows are on
    other servers. With several `shards`, `routers` decide which keys this server has; a single
    server has all keys.
    """

    name: str
    version: int
    incarnation: str
    tables: Mapping[str, int]
    shard: int
    shards: int
    routers: Mapping[str, Router]
    dense: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns the model as a value for JSON."""
        return {
            "name": self.name,
            "version": self.version,
            "incarnation": self.incarnation,
            "tables": dict(self.tables),
            "shard": self.shard,
            "shards": self.shards,
            "routers": {name: router.to_dict() for name, router in self.routers.items()},
            "dense": self.dense,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ServedModel:
        """Reads the result of `to_dict`."""
        try:
            routers = {n: Router.from_dict(one) for n, one in plain["routers"].items()}
            return cls(**{**plain, "routers": routers})
        except (AttributeError, ConfigError, KeyError, TypeError) as error:
            raise InputError(f"a replica describes a model as {plain!r}: {error}.") from error

    def owned(self, table: str, ids: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns those of `ids` that this server owns.

        >>> import torch
        >>> router = Router("roundrobin", 2)
        >>> half = ServedModel("ps_1", 1, "x", {"t": 1}, 1, 2, {"t": router}, False)
        >>> half.owned("t", torch.arange(4))
        tensor([1, 3])
        """
        if self.shards == 1:
            return ids
        return ids[self.routers[table].owners(ids) == self.shard]


@dataclass(frozen=True, slots=True, eq=False)
class DenseState:
    """Dense weights between two steps. `number` rises from one state to the next."""

    number: int
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class DensePush:
    """Dense weights for one loaded model, identified by its incarnation."""

    model: str
    incarnation: str
    publisher: str
    state: DenseState

    def to_bytes(self) -> bytes:
        """Returns a PredictRequest whose inputs are the weights.

        Its signature name holds the incarnation, the publisher and the number of the state.

        >>> import torch
        >>> push = DensePush("entry", "i1", "p1", DenseState(3, {"w": torch.ones(2)}))
        >>> read = DensePush.from_bytes(push.to_bytes())
        >>> read.model, read.incarnation, read.publisher, read.state.number
        ('entry', 'i1', 'p1', 3)
        >>> read.state.weights["w"]
        tensor([1., 1.])
        """
        request = tf_serving.PredictRequest()
        request.model_spec.name = self.model
        told = (self.incarnation, self.publisher, str(self.state.number))
        request.model_spec.signature_name = "/".join(told)
        for name, value in self.state.weights.items():
            tensors.fill(request.inputs[name], value, name=name)
        return request.SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes) -> DensePush:
        """Reads the result of `to_bytes`."""
        request = from_bytes(tf_serving.PredictRequest, data)
        told = request.model_spec.signature_name.split("/")
        if len(told) != 3 or not told[2].isdecimal():
            raise InputError(f"dense weights of {told!r}; it must be incarnation/publisher/number.")
        weights = {name: tensors.to_torch(one, name=name) for name, one in request.inputs.items()}
        state = DenseState(int(told[2]), weights)
        return cls(request.model_spec.name, told[0], told[1], state)
