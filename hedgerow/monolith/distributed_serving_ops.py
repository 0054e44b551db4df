"""Monolith's `distributed_serving_ops`: remote predictions, and rows pushed to serving."""

from __future__ import annotations

from ..serving.channels import Replicas as Replicas
from .remote_predict import remote_predict as remote_predict
from .sync.clients import ParameterSyncClient as ParameterSyncClient
from .sync.clients import create_dummy_sync_client as create_dummy_sync_client
from .sync.clients import create_parameter_sync_clients as create_parameter_sync_clients
from .sync.clients import parameter_sync_client_from_config as parameter_sync_client_from_config
from .sync.config import refresh_sync_config as refresh_sync_config
from .sync.dummy_server import DummySyncServer as DummySyncServer
from .sync.dummy_server import create_dummy_sync_server as create_dummy_sync_server

__all__ = [
    "DummySyncServer",
    "ParameterSyncClient",
    "Replicas",
    "create_dummy_sync_client",
    "create_dummy_sync_server",
    "create_parameter_sync_clients",
    "parameter_sync_client_from_config",
    "refresh_sync_config",
    "remote_predict",
]
