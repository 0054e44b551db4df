"""Names of tables that several slots share: ours, and the original's for its files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from ...core.errors import InputError
from ..config import TableConfig
from .multi_config import canonical

_FC_SLOT = re.compile(r"fc_slot_[0-9]+")


def group_names(configs: Sequence[TableConfig]) -> list[str]:
    """The name of the merged table of each config; equal ones, but for their own names, share it.

    It follows from what shapes the rows: the dim and the kind of optimizer of each segment. So
    slots may join and leave, and rates, seeds, initializers and policies may change. Configs of one
    shape that differ in something else are told apart by the settings in which they differ.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> slow, fast = (TableConfig("any", (Segment(2, Zeros(), Sgd(lr=x)),)) for x in (0.1, 0.2))
    >>> group_names([slow]) == group_names([fast])
    True
    >>> len(set(group_names([slow, fast, slow])))
    2
    """
    shapes = [_shape(config) for config in configs]
    settings = [_settings(config) for config in configs]
    alike: dict[str, list[dict[str, str]]] = {}
    for shape, own in zip(shapes, settings, strict=True):
        alike.setdefault(shape, []).append(own)
    apart = {shape: _differing(group) for shape, group in alike.items()}
    return [
        _name(shape, [(path, own.get(path)) for path in apart[shape]])
        for shape, own in zip(shapes, settings, strict=True)
    ]


def _shape(config: TableConfig) -> str:
    # No compressor and no serving: a checkpoint loads into both kinds of table, whatever they
    # compress by, and their names must find it.
    kinds = [s.optimizer.kind if s.optimizer is not None else None for s in config.segments]
    return json.dumps([[s.dim, kind] for s, kind in zip(config.segments, kinds, strict=True)])


def _settings(config: TableConfig) -> dict[str, str]:
    """Every setting but the names by its path, as `segments.0.optimizer.lr`."""
    found: dict[str, str] = {}
    waiting: list[tuple[str, object]] = [
        ("", json.loads(canonical(config, without=("name", "also"))))
    ]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list) and value:
            waiting += [(f"{path}.{i}", inner) for i, inner in enumerate(value)]
        else:
            found[path] = json.dumps(value)  # text, since 1 and True are equal
    return found


def _differing(settings: Sequence[dict[str, str]]) -> list[str]:
    first = settings[0]
    changed = [own.items() ^ first.items() for own in settings[1:]]
    return sorted({path for items in changed for path, _ in items})


def _name(shape: str, apart: list[tuple[str, str | None]]) -> str:
    # A default counts too: the plain name, with nothing in `apart`, is that of a table alone.
    text = json.dumps([shape, apart])
    return "merged_" + hashlib.sha256(text.encode()).hexdigest()[:16]


def merged_name(slots: Iterable[str]) -> str:
    """The original's name of a merged table: md5 of the sorted names, joined by commas.

    >>> merged_name(["slot1", "slot0"])
    'e21904dd414d1780e5fc904866dc69c2'
    """
    names = list(slots)
    if not names:
        raise InputError("a merged table has at least one slot; none was given.")
    joined = ",".join(sorted(names))
    return hashlib.md5(joined.encode(), usedforsecurity=False).hexdigest()


def legacy_names(slots: Iterable[str]) -> list[str]:
    """Older names under which the original's files may hold the same table.

    Names of the form `fc_slot_<digits>` were once written without `fc_`.

    >>> legacy_names(["fc_slot_0"]), legacy_names(["user"])
    (['cde3ba88ba62b682f84241b273f8100c'], [])
    """
    names = list(slots)
    # The names keep their order: the original sorts before it strips.
    older = [n.removeprefix("fc_") if _FC_SLOT.fullmatch(n) else n for n in sorted(names)]
    joined = hashlib.md5(",".join(older).encode(), usedforsecurity=False).hexdigest()
    return [] if joined == merged_name(names) else [joined]
