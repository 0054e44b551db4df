"""Operator commands: declare models, add them to layouts and show the nodes of a bzid."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..core.errors import FileMissingError, InputError
from .paths import DeploymentPaths, SavedModel, check_name
from .payloads import SavedModelDeployConfig
from .zookeeper import Session, kazoo_errors

_LOG = logging.getLogger("hedgerow")


class Control:
    """Operations below one bzid; each is complete when it returns."""

    def __init__(self, session: Session, bzid: str) -> None:
        self._client, self._places = session.client, DeploymentPaths(bzid)

    def declare(self, model_name: str, base: str | Path) -> list[SavedModel]:
        """Declares every sub folder of an export as a sub graph, and returns the sub graphs.

        `entry` gets the policy "latest", others get "latest_once". An existing declaration is
        replaced.
        """
        check_name("model_name", model_name)
        folder = Path(base)
        if not folder.is_dir():
            raise FileMissingError(f"there is no folder {folder}; name what an export wrote.")
        found = []
        for path in sorted(one for one in folder.iterdir() if one.is_dir()):
            model = SavedModel(model_name, path.name)
            policy = "latest" if path.name == "entry" else "latest_once"
            config = SavedModelDeployConfig(str(path), policy)
            self._put(self._places.model(model), config.to_bytes())
            found.append(model)
        if not found:
            raise FileMissingError(f"{folder} has no sub folder; name what an export wrote.")
        return found

    def saved_models(self, model_name: str) -> list[SavedModel]:
        """Returns the declared sub graphs of a model."""
        return [SavedModel(model_name, one) for one in self._names(self._places.models(model_name))]

    def publish(self, layout: str, models: str) -> list[SavedModel]:
        """Adds the declared sub graphs that match "model:ps_*" to a layout, and returns them."""
        model_name, glob = self._split(models)
        found = [one for one in self.saved_models(model_name) if fnmatchcase(one.sub_graph, glob)]
        if not found:
            raise InputError(f"no declared sub graph fits {models!r}; declare the model first.")
        for model in found:
            self._put(self._places.layout(layout, model), b"")
        return found

    def unpublish(self, layout: str, models: str) -> list[SavedModel]:
        """Removes matching sub graphs from a layout, and returns them."""
        model_name, glob = self._split(models)
        found = [
            one
            for one in self._inside(layout)
            if one.model_name == model_name and fnmatchcase(one.sub_graph, glob)
        ]
        for model in found:
            try:
                self._client.delete(self._places.layout(layout, model))
            except kazoo_errors().NoNodeError:
                continue  # another process has removed it
        return found

    def _inside(self, layout: str) -> Iterator[SavedModel]:
        """Yields the sub graphs of a layout; skips nodes with other names."""
        for name in self._names(self._places.layout(layout)):
            try:
                yield SavedModel.parse(name)
            except InputError as error:
                _LOG.warning("node %r of layout %s is left alone: %s", name, layout, error)

    def info(self) -> dict[str, Any]:
        """Returns all nodes below the bzid as a tree; the leaves have the contents."""
        root = f"/{self._places.bzid}"
        return {name: self._tree(f"{root}/{name}") for name in self._names(root)}

    def _tree(self, path: str) -> Any:
        names = self._names(path)
        if names:
            return {name: self._tree(f"{path}/{name}") for name in names}
        try:
            data = self._client.get(path)[0]
        except kazoo_errors().NoNodeError:  # removed since it was listed
            return None
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError):
            return data.decode(errors="replace")

    def _split(self, models: str) -> tuple[str, str]:
        model_name, colon, glob = models.partition(":")
        if not colon or not glob:
            raise InputError(f"{models!r} names no sub graphs; write MODEL:PATTERN, as in 'ctr:*'.")
        return check_name("model_name", model_name), glob

    def _names(self, path: str) -> list[str]:
        try:
            return sorted(self._client.get_children(path))
        except kazoo_errors().NoNodeError:
            return []

    def _put(self, path: str, data: bytes) -> None:
        try:
            self._client.create(path, data, makepath=True)
        except kazoo_errors().NodeExistsError:
            self._client.set(path, data)
