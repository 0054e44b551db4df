"""Trained models that answer requests: export, versions, servers and clients. Door `hr.serving`.

gRPC and protobuf load with the first server or client that is made, not with this door.
"""

from __future__ import annotations

from .batching import Batching as Batching
from .bundle import load_bundle as load_bundle
from .channels import ClientTls as ClientTls
from .client import PredictionClient as PredictionClient
from .export import export as export
<<<<<<< HEAD
from .model import ServingError as ServingError
from .registry import Registry as Registry
from .server import PredictionServer as PredictionServer
from .tls import Tls as Tls

__all__ = [
    "Batching",
    "ClientTls",
    "PredictionClient",
    "PredictionServer",
    "Registry",
    "ServingError",
    "Tls",
    "export",
    "load_bundle",
]
=======
from .publish_strict import publish_strict as publish_strict
from .replica import Replica as Replica

__all__ = ["Replica", "export", "load_bundle", "publish_strict"]
>>>>>>> 28e8c63da13883bf84bdc966912bed765279afe8
