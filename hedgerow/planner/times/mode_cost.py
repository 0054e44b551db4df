"""What a step of one mode costs: its launches and keys, and what the host does for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from ...core import checks


@dataclass(frozen=True, slots=True)
class HostCost:
    """What the host does in a step; known only where the real path of a mode was measured.

    Keys whose rows lie on the host cost `host_ms` if there are any, `host_table_ms` for each table
    that has some, `host_key_ms` each, and their bytes at `host_bytes_per_ms`. Each time that caches
    make way takes `move_ms`, or that hot rows of a hybrid's table come; to look for such takes
    `look_ms`. Where a step misses many rows of a cache at once, those beyond what leaves beside the
    steps take `crowded_key_ms` more. Few ids of a table are done by one
    thread: `alone_id_ms` and `alone_byte_ms` are what each of them takes more, and a byte of its
    vector. So are more ids until others have woken up to help: `pool_ms` is the most that costs.
    Vectors of a step that do not fit the processor's caches are slower: of more than about
    `cache_bytes` a byte takes `cold_byte_ms` more.
    """

    host_ms: float = 0.0
    host_key_ms: float = 0.0
    host_bytes_per_ms: float | None = None
    move_ms: float = 0.0
    alone_id_ms: float = 0.0
    alone_byte_ms: float = 0.0
    pool_ms: float = 0.0
    cold_byte_ms: float = 0.0
    cache_bytes: float = 1.0
    host_table_ms: float = 0.0
    crowded_key_ms: float = 0.0
    look_ms: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("host_bytes_per_ms", "cache_bytes"):
                if value is not None:
                    checks.setting("HostCost", one.name, value, above=0)
            else:
                checks.setting("HostCost", one.name, value, least=0)


_OF_THE_HOST = tuple(one.name for one in fields(HostCost))


@dataclass(frozen=True, slots=True)
class ModeCost:
    """What a step costs whatever is read, and what finding one distinct key costs.

    All else is known only where the real path of a mode was measured. Tables that are alike step
    together: `launch_ms` is then of the step of all of them, and `table_ms` of each. `id_ms` and
    `id_byte_ms` are of every id, equal ones too, and of every byte of its vector: it is written for
    the model and its gradient read. `ahead` is 1 if the device waits while the host launches, and
    large if the longer of the two counts.

    >>> cost = ModeCost(0.5, 1e-6, host=HostCost(host_ms=0.2))
    >>> cost.to_dict()
    {'launch_ms': 0.5, 'key_ms': 1e-06, 'host_ms': 0.2}
    >>> ModeCost.from_dict(cost.to_dict()) == cost
    True
    """

    launch_ms: float
    key_ms: float
    table_ms: float | None = None
    id_ms: float = 0.0
    id_byte_ms: float = 0.0
    ahead: float = 1.0
    host: HostCost = field(default_factory=HostCost)

    def __post_init__(self) -> None:
        for name in ("launch_ms", "key_ms", "id_ms", "id_byte_ms"):
            checks.setting("ModeCost", name, getattr(self, name), least=0)
        if self.table_ms is not None:
            checks.setting("ModeCost", "table_ms", self.table_ms, least=0)
        checks.setting("ModeCost", "ahead", self.ahead, least=1)

    @property
    def together(self) -> bool:
        """Whether steps of several tables were measured: alike ones share a launch."""
        return self.table_ms is not None

    def text(self) -> str:
        """In words.

        >>> ModeCost(0.5, 1e-6, host=HostCost(host_key_ms=1e-4)).text()
        '0.5000 ms a step, 1.0 ns a distinct key, 100.0 more on the host'
        """
        words = [f"{self.launch_ms:.4f} ms a step"]
        if self.table_ms is not None:
            words.append(f"{self.table_ms:.4f} ms a table")
        words.append(f"{1e6 * self.key_ms:.1f} ns a distinct key")
        if self.id_ms:
            words.append(f"{1e6 * self.id_ms:.1f} ns an id")
        if self.host.host_key_ms:
            words.append(f"{1e6 * self.host.host_key_ms:.1f} more on the host")
        return ", ".join(words)

    def to_dict(self) -> dict[str, float]:
        """Fit for JSON, in one piece: what says something."""
        usual = {one.name: one.default for one in (*fields(self), *fields(HostCost))}
        values = asdict(self)
        values |= values.pop("host")
        return {name: value for name, value in values.items() if value != usual[name]}

    @staticmethod
    def from_dict(values: Mapping[str, float]) -> ModeCost:
        """What `to_dict` was called on."""
        host = {name: value for name, value in values.items() if name in _OF_THE_HOST}
        own = {name: value for name, value in values.items() if name not in _OF_THE_HOST}
        return ModeCost(**own, host=HostCost(**host))
