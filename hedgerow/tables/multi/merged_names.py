"""Names of tables that several slots share: ours, and the original's for its files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from ...core.errors import InputError
from ..config import TableConfig
from .multi_config import canonical

_FC_SLOT = re.compile(r"fc_slot_[0-9]+")


def group_name(config: TableConfig) -> str:
    """The name of the table of all slots with this config, whoever they are.

    It follows from the config alone, its name left out, so a slot that joins or leaves the group
    does not rename the table.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> segments = (Segment(2, Zeros(), Sgd(lr=0.1)),)
    >>> group_name(TableConfig("user", segments)) == group_name(TableConfig("item", segments))
    True
    """
    text = canonical(config, without=("name",))
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
