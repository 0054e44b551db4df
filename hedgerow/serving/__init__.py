"""Trained models that answer requests: export, versions, servers, clients. Public as `hr.serving`.

gRPC and protobuf load with the first server or client that is made, not with this package.
"""

from __future__ import annotations

from .batching import Batching as Batching
from .bundle import load_bundle as load_bundle
from .channels import ClientTls as ClientTls
from .client import PredictionClient as PredictionClient
from .export import export as export
from .model import ServingError as ServingError
from .process import Access as Access
from .process import Replica as Replica
from .publish import publish as publish
from .registry import Registry as Registry
from .server import PredictionServer as PredictionServer
from .tls import Tls as Tls

__all__ = [
    "Access",
    "Batching",
    "ClientTls",
    "PredictionClient",
    "PredictionServer",
    "Registry",
    "Replica",
    "ServingError",
    "Tls",
    "export",
    "load_bundle",
    "publish",
]
