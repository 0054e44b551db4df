"""Serving of trained models: export, versions, servers and clients. Public as `hr.serving`.

The import of this package does not import gRPC or protobuf: the first server or client does.
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
