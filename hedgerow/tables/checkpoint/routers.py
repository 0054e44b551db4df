"""The routers of a save or a load, and whether rows may move to another routing rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...core.errors import CheckpointError, DtypeError, InputError
from ...routing.router import Router
from .manifest import CheckpointManifest

Routers = Router | Mapping[str, Router]
"""One router for all tables, or one per table name."""


@dataclass(frozen=True, slots=True)
class TableRouters:
    """The router of each table; a manifest records `default` as the rule of all other tables."""

    default: Router
    by_name: Mapping[str, Router]

    @staticmethod
    def of(given: Routers, names: Iterable[str]) -> TableRouters:
        """Returns one router per name. A mapping may contain more tables than needed.

        >>> rules = {"item": Router("roundrobin", 2), "user": Router("continuous", 2, rows=9)}
        >>> TableRouters.of(rules, ["user"]).by_name["user"].rows
        9
        """
        wanted = list(names)
        if isinstance(given, Router):
            return TableRouters(given, dict.fromkeys(wanted, given))
        if not isinstance(given, Mapping):
            raise DtypeError(
                f"router is {given!r}; pass a Router, or a dict of one for each table."
            )
        chosen = {name: _one(given, name) for name in wanted}
        first = next(iter(chosen.values()), Router("hash_roundrobin", 1))
        for name, router in chosen.items():
            check_same_shards(name, router, first.shards, first.rank0_empty)
        return TableRouters(first, chosen)


def _one(given: Mapping[str, Router], name: str) -> Router:
    if name not in given:
        raise InputError(
            f"router has no rule for table {name!r}; it has {', '.join(sorted(given)) or 'none'}."
        )
    if not isinstance(given[name], Router):
        raise DtypeError(f"router[{name!r}] is {given[name]!r}; it must be a Router.")
    return given[name]


def check_same_shards(name: str, router: Router, shards: int, rank0_empty: bool) -> None:
    """Raises if the router does not have the shards of the checkpoint's files."""
    if (router.shards, router.rank0_empty) != (shards, rank0_empty):
        raise InputError(
            f"the router of table {name!r} has {router.shards} shards "
            f"(rank0_empty={router.rank0_empty}), the checkpoint has {shards} "
            f"(rank0_empty={rank0_empty}); all tables of a checkpoint have the same shards."
        )


def check_routing(saved: str, runtime: str, *, reroute: bool, what: str = "the tables") -> bool:
    """Returns whether the rule changes; raises if it changes without `reroute`.

    >>> check_routing("roundrobin", "hash_roundrobin", reroute=True)
    True
    """
    if saved != runtime and not reroute:
        raise CheckpointError(
            f"the checkpoint was routed by {saved}, {what} now by {runtime}; pass reroute=True to "
            f"send every row to its new owner."
        )
    return saved != runtime


def check_rules(
    manifest: CheckpointManifest, routers: Mapping[str, Router], *, reroute: bool
) -> None:
    """Raises if a table's rule differs from the rule of its files, unless `reroute` is set."""
    for name, router in routers.items():
        if name in manifest.tables:
            saved, what = manifest.dist_type_of(name), f"table {name!r} is"
            check_routing(saved, router.dist_type, reroute=reroute, what=what)
