"""What a replica serves, as it describes it: which tables, and which keys of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.errors import ConfigError, InputError
from ..core.shapes import Int64
from ..routing.router import Router


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded version of a model; `incarnation` is another after every load.

    `tables` gives dims by name, in byte order; it is empty where the rows are on other servers.
    `routers`, of `shards` servers, say which keys are here; with one server it has all.
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
        """Fit for JSON."""
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
        """What `to_dict` gave."""
        try:
            routers = {n: Router.from_dict(one) for n, one in plain["routers"].items()}
            return cls(**{**plain, "routers": routers})
        except (AttributeError, ConfigError, KeyError, TypeError) as error:
            raise InputError(f"a replica describes a model as {plain!r}: {error}.") from error

    def owned(self, table: str, ids: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Those of the keys that are served here.

        >>> import torch
        >>> router = Router("roundrobin", 2)
        >>> half = ServedModel("ps_1", 1, "x", {"t": 1}, 1, 2, {"t": router}, False)
        >>> half.owned("t", torch.arange(4))
        tensor([1, 3])
        """
        if self.shards == 1:
            return ids
        return ids[self.routers[table].owners(ids) == self.shard]
