"""Ray, if it is installed (extra `ray`)."""

from __future__ import annotations

from typing import Any

from ..core.errors import MissingExtraError


def ray_library() -> Any:
    """The module `ray`; an error that names the extra where it is missing."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(f"--ray needs Ray ({error}); pip install hedgerow[ray].") from error
    return ray
