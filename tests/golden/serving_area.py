"""The area `serving`: what its files share and what later issues bring."""

from __future__ import annotations

from .runner import Area

LAUNCH_FILES = (
    "bps_init_env",
    "device_str",
    "enable_sync_training",
    "goodput",
    "init_sync_train",
    "mpi_helpers",
    "session_config_gpu",
    "sync_run_hooks",
    "try_init_cuda",
)

WIRE_FILES = (
    "agent_service_bytes",
    "client_config_bytes",
    "push_request_bytes",
    "push_result_json",
    "push_to_predict",
    "request_split",
    "tensor_proto",
    "tf_serving_messages",
)

SYNC_FILES = ("refresh_sync_config", "touched_keys", "zk_path", "znode_payloads")

AREA = Area(
    "serving",
    file_values={file: {"what"} for file in (*LAUNCH_FILES, *WIRE_FILES, *SYNC_FILES)},
)
