"""What tables of two tiers share: which stores they are, and reading rows where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError, DtypeError
from ..core.shapes import Bool, Float32, Float64, Int64
from ..tables import arguments
from ..tables.config import TableConfig
from ..tables.expiry import Ttl
from ..tables.host import HostTable
from ..tables.layout import RowLayout
from ..tables.leave_order import LeaveOrder, uses_of
from ..tables.stats import MemoryUse
from ..tables.store import Entries, Lookup, Missing, TableKeys
from .host_parts import put_some, some_of
from .overlay import replaced
from .places import Ids, Places
from .shared_lock import SharedLock
from .write_lock import WriteLock

if TYPE_CHECKING:  # they need Triton
    from ..tables.device import DeviceTable
    from .device_places import DevicePlaces

_MAX_IDS = 2**31 - 1
_BYTES = ("index_bytes", "row_bytes", "slack_bytes", "other_bytes", "output_bytes")
_COUNTS = ("inserted", "refused", "dropped", "erased", "evicted", "clamped_ts")


class TwoTiers:
    """One table in a `fast` store of at most `fast_rows` rows over a `slow` one of any size.

    Both are tables of one config; the fast one needs no admission rule, since rows are born in the
    slow one. Keys, rows and gradients lie where the fast store has its rows. Any number of threads
    may read; writes and moves go one after the other. Owns two locks: `_writing` for whoever writes
    or moves, and `_moves`, which a move has alone and reads share.
    """

    def __init__(self, fast: HostTable | DeviceTable, slow: HostTable, fast_rows: int) -> None:
        if not isinstance(slow, HostTable):
            raise DtypeError(f"slow is a {type(slow).__name__}; it must be a HostTable.")
        _check_pair(fast.config, slow.config)
        self.fast, self.slow = fast, slow
        self.config: TableConfig = slow.config
        self.layout: RowLayout = slow.layout
        room = checks.count("fast_rows", fast_rows, least=1)
        _check_room(fast, room)
        fast.share_order(slow.order)  # marks of rows compare wherever they lie
        self.places = self._make_places(fast, room)
        self.counters = Counters()
        self._writing = WriteLock()
        self._moves = SharedLock()
        for store, name in ((fast, "fast"), (slow, "slow")):
            if store.size():
                raise ConfigError(
                    f"the {name} store of table {slow.config.name!r} has {store.size()} rows "
                    f"already; give empty stores, then load or restore."
                )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.config.name!r}, {len(self.places)} of "
            f"{self.places.rows} rows on {self.fast.device}, over {self.slow!r})"
        )

    def __reduce__(self) -> str:
        raise TypeError(
            f"table {self.config.name!r} cannot be pickled or copied; "
            f"hr.save keeps a model, model.state_dict() its rows, too; scan() and restore() move "
            f"the rows of a table."
        )

    @property
    def device(self) -> torch.device:
        """Where keys and rows of calls lie."""
        return self.fast.device

    @property
    def filter(self) -> Any:
        """What counts absent ids for the admission rule; None if nothing does."""
        return self.slow.filter

    @property
    def order(self) -> LeaveOrder | None:
        """What tells the order in which rows leave; None without a rule of room."""
        return self.slow.order

    def uses(self, keys: TableKeys | Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """How often each key was used, under an `Lfu` rule; as `HostTable.uses`."""
        return uses_of(self.order, self.entries(keys), self.config.name)

    def table(self, k: int = 0) -> Self:
        """The store of table `k` alone: there is only one."""
        arguments.table_number(k, 1)
        return self

    # ---- reads

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Lookup:
        """Rows of `keys`, into `out` if given. Nothing is inserted, and no row moves."""
        keys = self._keys(keys)
        dim, ids = self.layout.dim, keys.ids.cpu()
        if out is None:
            out = torch.empty(len(ids), dim, dtype=torch.float32, device=self.device)
        else:
            out = arguments.output(out, len(ids), dim, self.device)
        with self._moves.shared():
            at = self.places.find(ids.numpy())
            here, rest = _where(at >= 0), _where(at < 0)
            behind = some_of(ids, rest)
            if len(rest) or not len(ids):  # an empty call still checks its arguments
                put_some(out, rest, self._read_slow(behind, missing, step))
            if len(here) == len(ids):
                self.fast.lookup(keys.ids, missing="zeros", step=step, out=out)
            elif len(here):
                mine = some_of(ids, here).to(self.device)
                put_some(out, here, self.fast.lookup(mine, missing="zeros", step=step).rows_of())
            there = self._in_slow(behind)
        self._count_hits(len(here), int(there.sum()), len(ids))
        return Lookup(keys, out.view(-1), (dim,))

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        ids = self._keys(keys).ids.cpu()
        with self._moves.shared():
            at = self.places.find(ids.numpy())
            found = torch.from_numpy(at >= 0) | self._in_slow(ids)
        return found.to(self.device)

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Raw rows with their optimizer states and times."""
        ids = self._keys(keys).ids.cpu()
        with self._moves.shared():
            return self._entries(ids).to(self.device)

    def _entries(self, ids: Int64[Tensor, "n"]) -> Entries:
        """The caller holds `_moves`."""
        return self._newest(self._slow_entries(ids))

    def _newest(self, entries: Entries) -> Entries:
        """With rows of the fast store in the place of those of the slow one."""
        at = self.places.find(entries.ids.numpy())
        return replaced(entries, _where(at >= 0), self.fast)

    # ---- sizes and statistics

    def size(self) -> int:
        """Rows."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave; the slow store is told of all of them."""
        return self.slow.max_ts()

    def memory(self) -> MemoryUse:
        """Bytes of both tiers by purpose; what is known of the fast rows counts as index."""
        fast, slow = self.fast.memory(), self.slow.memory()
        return MemoryUse(
            fast.index_bytes + slow.index_bytes + self._known_bytes(),
            fast.row_bytes + slow.row_bytes,
            fast.slack_bytes + slow.slack_bytes,
            fast.other_bytes + slow.other_bytes,
        )

    def stats(self) -> dict[str, float]:
        """As of one table: sums over both tiers; then rows and counts of each tier."""
        fast, slow = self.fast.stats(), self.slow.stats()
        rows = self.size()
        summed = {name: fast[name] + slow[name] for name in (*_BYTES, *_COUNTS)}
        summed["index_bytes"] += self._known_bytes()
        return {
            "rows": rows,
            "uncompressed_bytes": rows * 4 * self.layout.dim,
            **summed,
            "load_factor": slow["load_factor"],
            "longest_search": max(fast["longest_search"], slow["longest_search"]),
            "fast_rows": len(self.places),
            "fast_capacity_rows": self.places.rows,
            **{name: slow[name] for name in ("file_bytes", "resident_bytes") if name in slow},
            **self._tier_counts(),
        }

    def _tier_counts(self) -> dict[str, int]:
        names = ("fast_hits", "slow_hits", "absent")
        return {name: self.counters.read(name) for name in names}

    def device_bytes(self) -> int:
        """Bytes on the device beside those of the fast table."""
        return 0 if isinstance(self.fast, HostTable) else self._known_bytes()

    def _known_bytes(self) -> int:
        return self.places.nbytes()

    def _count_hits(self, fast: int, slow: int, all_ids: int) -> None:
        for name, n in (
            ("fast_hits", fast),
            ("slow_hits", slow),
            ("absent", all_ids - fast - slow),
        ):
            if n:
                self.counters.add(name, n)

    # ---- how the slow tier is read; a cache has more places to look

    def _read_slow(
        self,
        ids: Int64[Tensor, "n"],
        missing: Missing,
        step: int | None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Float32[Tensor, "n dim"]:
        return self.slow.lookup(ids, missing=missing, step=step, out=out).rows_of()

    def _in_slow(self, ids: Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        return self.slow.contains(ids)

    def _slow_entries(self, ids: Int64[Tensor, "n"]) -> Entries:
        return self.slow.entries(ids)

    # ---- helpers

    def _make_places(self, fast: HostTable | DeviceTable, rows: int) -> Places | DevicePlaces:
        if isinstance(fast, HostTable):
            return Places(rows)
        from .device_places import DevicePlaces

        return DevicePlaces(fast, rows)

    def _reference_s(self, now_s: int | None) -> int | None:
        """The time from which ages are counted, of both tiers together; None: the rule needs none.

        The newest time of one store alone may be older.
        """
        rule = self.config.evict
        if now_s is not None or not isinstance(rule, Ttl):
            return now_s
        return self.max_ts() if rule.reference == "newest" else self.slow.clock.now_s()

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return arguments.keys_of_one_table(keys, _MAX_IDS, self.device, room=True).exact()

    def _split(self, ids: Int64[Tensor, "n"]) -> tuple[Ids, Tensor, Tensor]:
        """Places of ids, and which stand in the fast tier and which do not."""
        at = self.places.find(ids.numpy())
        return at, _where(at >= 0), _where(at < 0)


def share_locks(tables: Sequence[TwoTiers]) -> None:
    """From now on these tables, which nobody uses yet, are written and read as if they were one."""
    for table in tables:
        table._writing, table._moves = tables[0]._writing, tables[0]._moves
        if table.slow.order is not None and tables[0].slow.order is not None:
            for store in (table.slow, table.fast):
                store.share_order(tables[0].slow.order)


def _where(mask: np.ndarray) -> Int64[Tensor, "n"]:
    return torch.from_numpy(mask.nonzero()[0])


def _check_pair(fast: TableConfig, slow: TableConfig) -> None:
    """Both stores hold rows of one table, of a kind that can move."""
    same = replace(fast, admit=slow.admit, initial_capacity=slow.initial_capacity)
    if same != slow:
        raise ConfigError(
            f"the stores of table {slow.name!r} differ in their configs; make both of one config, "
            f"the fast one with admit=None."
        )
    if fast.admit is not None:
        raise ConfigError(
            f"the fast store of table {slow.name!r} has an admission rule; rows are born in the "
            f"slow one, so make the fast one's config with admit=None."
        )
    refused: list[tuple[str, Callable[[], bool]]] = [
        ("it is a serving table", lambda: slow.serving),
        ("it skips rows of zeros", lambda: slow.skip_zero_embedding),
    ]
    wrong = [why for why, holds in refused if holds()]
    if wrong:
        raise ConfigError(
            f"table {slow.name!r} cannot live in two tiers: {', '.join(wrong)}. Use one store."
        )


def _check_room(fast: HostTable | DeviceTable, rows: int) -> None:
    """Rows that find no room in a device table that is nearly full stay in the slow store."""
    if not isinstance(fast, HostTable) and rows > fast.capacity_rows:
        raise ConfigError(
            f"fast_rows is {rows}; the DeviceTable has {fast.capacity_rows} slots. Make it with "
            f"more capacity_rows."
        )
