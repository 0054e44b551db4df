"""A new list of models to serve, sent to a running server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import HedgerowError
from ..wire.messages import error_codes, tf_serving
from .model import ServingError
from .policies import All, Latest, Policy, Specific

if TYPE_CHECKING:
    from ..wire.messages.tf_serving import ModelConfig, ReloadConfigRequest, ReloadConfigResponse
    from .registry import Registry


def reload(
    registry: Registry, request: ReloadConfigRequest, root: Path | None
) -> ReloadConfigResponse:
    """Watches the folders of the list, and takes out of service what was watched and is not in it.

    Folders must lie inside `root`: a caller makes the server read them. Everything is checked
    before anything changes. The answer's status says which models do not answer afterwards.
    """
    if root is None:
        raise ServingError(
            "PERMISSION_DENIED",
            "this server takes no list of models; start it with reload_root=FOLDER to allow it.",
        )
    if request.config.WhichOneof("config") != "model_config_list":
        raise ServingError("INVALID_ARGUMENT", "config has no model_config_list; send one.")
    configs = request.config.model_config_list.config
    wanted = [(config, _folder(config, root), _policy(config)) for config in configs]
    names = [config.name for config in configs]
    for name in names:
        if names.count(name) > 1:
            raise ServingError("INVALID_ARGUMENT", f"model {name!r} is in the list twice.")
    for name in set(registry.watched()) - set(names):
        registry.unwatch(name)
        registry.remove(name)
    faults = [_apply(registry, *one) for one in wanted]
    return _response("; ".join(fault for fault in faults if fault))


def _apply(registry: Registry, config: ModelConfig, base: Path, policy: Policy) -> str:
    """What is wrong afterwards; nothing if all is well."""
    try:
        registry.watch(config.name, base, policy)
        if not registry.versions(config.name):
            return f"no version of model {config.name} answers"
        registry.set_labels(config.name, dict(config.version_labels))
    except HedgerowError as error:
        return str(error)
    return ""


def _response(fault: str) -> ReloadConfigResponse:
    response = tf_serving.ReloadConfigResponse()
    response.status.SetInParent()
    if fault:
        response.status.error_code = error_codes.FAILED_PRECONDITION
        response.status.error_message = fault
    return response


def _folder(config: ModelConfig, root: Path) -> Path:
    if not config.name:
        raise ServingError("INVALID_ARGUMENT", "a model of the list has no name; give it one.")
    try:
        folder = Path(config.base_path).resolve()
        inside = folder.is_relative_to(root.resolve())
    except (OSError, ValueError) as error:
        text = f"model {config.name}: base_path {config.base_path!r}: {error}"
        raise ServingError("INVALID_ARGUMENT", text) from error
    if not config.base_path or not inside:
        raise ServingError(
            "PERMISSION_DENIED",
            f"model {config.name}: base_path {config.base_path!r} is outside of the folder that "
            "this server may load from.",
        )
    return folder


def _policy(config: ModelConfig) -> Policy:
    given = config.model_version_policy
    choice = given.WhichOneof("policy_choice")
    try:
        if choice == "specific":
            return Specific(tuple(given.specific.versions))
        return All() if choice == "all" else Latest(given.latest.num_versions or 1)
    except HedgerowError as error:
        raise ServingError("INVALID_ARGUMENT", f"model {config.name}: {error}") from error
