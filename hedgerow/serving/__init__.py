"""Trained models that answer requests: export, versions, servers and clients. Door `hr.serving`.

Servers and clients load on first use: a process that only exports needs no gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .bundle import load_bundle as load_bundle
from .export import export as export  # at once: later its module would stand under this name

if TYPE_CHECKING:
    from .batching import Batching as Batching
    from .channels import ClientTls as ClientTls
    from .client import PredictionClient as PredictionClient
    from .model import ServingError as ServingError
    from .registry import Registry as Registry
    from .server import PredictionServer as PredictionServer
    from .tls import Tls as Tls

_PLACES = {
    "Batching": "batching",
    "ClientTls": "channels",
    "PredictionClient": "client",
    "PredictionServer": "server",
    "Registry": "registry",
    "ServingError": "model",
    "Tls": "tls",
}

__all__ = ["export", "load_bundle", *_PLACES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'hedgerow.serving' has no attribute {name!r}")
    value = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
