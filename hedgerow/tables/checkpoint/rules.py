"""Whether a load may go by another owner rule than its files: only if the caller says so."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.errors import CheckpointError
from ...routing.router import Router
from .manifest import Manifest


def check_routing(saved: str, runtime: str, *, reroute: bool, what: str = "the tables") -> bool:
    """Whether rows change their rule; raises where that was not asked for.

    >>> check_routing("roundrobin", "hash_roundrobin", reroute=True)
    True
    """
    if saved != runtime and not reroute:
        raise CheckpointError(
            f"the checkpoint was routed by {saved}, {what} now by {runtime}; pass reroute=True to "
            f"send every row to its new owner."
        )
    return saved != runtime


def check_rules(manifest: Manifest, routers: Mapping[str, Router], *, reroute: bool) -> None:
    """Every table that both have goes by the rule of its files, or `reroute` is set."""
    for name, router in routers.items():
        if name in manifest.tables:
            saved, what = manifest.dist_type_of(name), f"table {name!r} is"
            check_routing(saved, router.dist_type, reroute=reroute, what=what)
