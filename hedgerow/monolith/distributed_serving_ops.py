"""The original's `distributed_serving_ops`: remote predictions, and rows pushed to serving."""

from __future__ import annotations

from ..serving.remote import remote_predict as remote_predict
from ..serving.replicas import Replicas as Replicas
from .dummy_sync_server import DummySyncServer as DummySyncServer
from .dummy_sync_server import create_dummy_sync_server as create_dummy_sync_server
from .sync_client import ParameterSyncClient as ParameterSyncClient
from .sync_client import create_dummy_sync_client as create_dummy_sync_client
from .sync_client import create_parameter_sync_clients as create_parameter_sync_clients
from .sync_client import parameter_sync_client_from_config as parameter_sync_client_from_config
from .sync_config import refresh_sync_config as refresh_sync_config

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
