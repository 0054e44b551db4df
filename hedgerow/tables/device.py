"""The table of one process in the memory of one device, over Triton kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError, InputError, NotFiniteError
from ..core.shapes import Bool, Float32, Int64
from ..kernels import apply, assign, erase, find, lookup
from ..kernels.layout import LANES, TIMES, Arrays, FirstValues, Part, group
from ..kernels.rules import RULES
from ..kernels.toolchain import interpreted
from . import arguments
from .compressors import Fp32
from .config import TableConfig
from .layout import RowLayout
from .optimizer_base import Rule
from .schedules import Rate, check_rates, rate_at
from .store import Applied, Entries, Lookup, Missing, TableKeys

_MAX_DIM = 1024  # a row is held in the registers of one program
_MAX_IDS = 2**31 - 1  # of one call, and slots of a table: kernels count in 32 bits


class DeviceTable:
    """Rows for any 64-bit id in a fixed number of slots; one thread and one stream at a time.

    `lookup` and `apply_gradients` never wait for the device, so they take part in CUDA graphs (a
    captured step keeps its rate and `ts`). What they count stays there until asked for. Ids that
    find no room are refused and counted; the first are about when 0.85 of `capacity_rows` are
    taken.

    Numbers are those of `HostTable`: to the bit, but for ids with more than 256 occurrences in one
    call, whose gradients are added in another fixed order. Not waiting forces two differences:
    gradients that are not finite are left out and counted whatever `not_finite` says, and
    `counts` is not checked. Sums of squares over a row (`RowAdagrad`) are added in another order.
    assign_add, reinitialize, per_occurrence, growth and eviction are still to come.

    With `TRITON_INTERPRET=1` set before the first import, `device="cpu"` runs the same kernels in
    Python, for tests.
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        capacity_rows: int,
        device: torch.device | str = "cuda",
        rates: Sequence[Rate] | None = None,
    ) -> None:
        self.config = config
        _check_served(config)
        self.layout = RowLayout(config)
        own = [s.optimizer.rate() if s.optimizer else 0.0 for s in config.segments]
        self._rates = check_rates(own if rates is None else rates, len(own))
        self.device = torch.empty(0, device=device).device  # with its number
        if self.device.type == "cpu" and not interpreted():
            raise ConfigError(
                "device is 'cpu', where kernels run only under TRITON_INTERPRET=1; use HostTable."
            )
        buckets = -(-checks.count("capacity_rows", capacity_rows, least=1) // LANES)
        if buckets * LANES >= _MAX_IDS:
            raise ConfigError(f"capacity_rows is {capacity_rows}; at most {_MAX_IDS - LANES}.")
        self._parts = tuple(_parts(config, self.layout, self.device))
        self._starts = torch.tensor(self.layout.starts(), device=self.device)
        self._table = Arrays.make(buckets, config.dim, self.device, len(self._starts))
        self._totals = torch.zeros(3, dtype=torch.int64, device=self.device)
        self._epoch = object()  # replaced whenever rows move
        self._max_ts = 0

    def __repr__(self) -> str:
        return (
            f"DeviceTable({self.config.name!r}, room on {self.device} for {self.capacity_rows} "
            f"rows of {self.config.dim} x {[s.optimizer for s in self.config.segments]})"
        )

    @property
    def capacity_rows(self) -> int:
        """Slots."""
        return self._table.buckets * LANES

    # ---- the step: nothing here waits for the device

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Lookup:
        """Rows of `keys`, into `out` if given, and their slots. Nothing is inserted.

        An absent id gives zeros, or with `missing="initializer"` the first value it would be born
        with. Room behind the keys gives zeros.
        """
        keys = self._keys(keys)
        n = len(keys.ids)
        arguments.missing_rule(missing)
        if out is None:
            out = torch.empty(n, self.config.dim, device=self.device)
        else:
            out = arguments.output(out, n, self.config.dim, self.device)
        parts = () if missing == "zeros" else self._parts
        with self._here():
            slots = lookup.lookup(self._table, keys.ids, out, parts, keys.used)
        return Lookup(keys, out.view(-1), (self.config.dim,), slots, self._epoch)

    def apply_gradients(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
    ) -> Applied:
        """One step per distinct id, its gradients summed in input order; absent ids are born first.

        At a lookup of this table, rows that it found are not looked for again.
        """
        slots = at.slots if isinstance(at, Lookup) and at.epoch is self._epoch else None
        keys = self._keys(at.keys if isinstance(at, Lookup) else at)
        grads = self._rows("grads", grads, len(keys.ids))
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (len(keys.ids),), self.device)
        if checks.flag("per_occurrence", per_occurrence):
            raise InputError("per_occurrence is not there on a device yet; use a HostTable.")
        sources = self._rates if rates is None else check_rates(rates, len(self._parts))
        scheduled = any(callable(source) for source in sources)
        at_step = arguments.needed_step(step, scheduled, self.config.name, "learns")
        now, done = self._write(ts)
        with self._here():
            grouped = group(keys.ids)
            apply.apply(
                *(self._table, grouped, grads, done, self._parts),
                [rate_at(source, at_step) for source in sources],
                now,
                slots=slots,
                used=keys.used,
            )
            self._totals += done
        return Applied(done)

    # ---- other writes

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows. The last of equals wins. Waits for the device if `not_finite` is "reject"."""
        keys = self._keys(keys)
        rows = self._rows("rows", rows, len(keys.ids))
        usable = rows.isfinite().all(dim=1)
        if self.config.not_finite == "reject":
            if keys.used is not None:
                usable |= torch.arange(len(usable), device=self.device) >= keys.used
            if not bool(usable.all()):
                raise NotFiniteError(
                    f"rows[{int((~usable).nonzero()[0])}] is not finite; table "
                    f"{self.config.name!r} rejects that, and nothing was changed. Find its "
                    f"source, or make the table with not_finite='drop'."
                )
        now, done = self._write(ts)
        with self._here():
            assign.assign(
                *(self._table, group(keys.ids), rows, usable, self._starts, done, now), keys.used
            )
            self._totals += done
        return Applied(done)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there. Their places serve the next new ids."""
        keys = self._keys(keys)
        self._epoch = object()  # a slot that a lookup told may be another id's by the next update
        with self._here():
            return erase.erase(self._table, group(keys.ids), keys.used)

    # ---- other reads: size, scan and stats wait for the device

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        return self._find(self._keys(keys)) >= 0

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Whole rows."""
        keys = self._keys(keys)
        return self._entries(keys.ids, self._find(keys))

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices of `rows`, in no particular order. Do not write meanwhile."""
        room = checks.count("rows", 65536 if rows is None else rows, least=1)
        taken = self._table.taken().nonzero()[:, 0]
        for slots in taken.split(room) if len(taken) else ():
            yield self._entries(self._table.ids(slots), slots)

    def size(self) -> int:
        """Rows."""
        return int(self._table.taken().sum())

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave."""
        return self._max_ts

    def stats(self) -> dict[str, float]:
        """Rows, bytes, load and everything counted since the table was made."""
        rows = self.size()
        counted = zip(("inserted", "refused", "dropped"), self._totals.tolist(), strict=True)
        table = self._table
        return {
            "rows": rows,
            "index_bytes": table.index.nbytes,
            "row_bytes": table.values.nbytes,
            "load_factor": rows / self.capacity_rows,
            **dict(counted),
        }

    # ---- inside

    def table(self, k: int = 0) -> Self:
        """The store of table `k` alone: there is only one."""
        arguments.table_number(k, 1)
        return self

    def _here(self) -> AbstractContextManager[object]:
        """Kernels start on the current device, which may be another one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _write(self, ts: int) -> tuple[int, Int64[Tensor, "3"]]:
        now = checks.count("ts", ts)
        self._max_ts = max(self._max_ts, now)
        return now, torch.zeros(3, dtype=torch.int64, device=self.device)

    def _find(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        with self._here():
            return find.find(self._table, keys.ids, keys.used)

    def _entries(self, ids: Tensor, slots: Tensor) -> Entries:
        with self._here():
            rows = lookup.gather(self._table, slots)
        found = slots >= 0
        at = slots.clamp(min=0)
        times = torch.where(found, self._table.read(TIMES, at), 0)
        behind = self._table.values[at, self.config.dim : self.config.dim + len(self._starts)]
        return Entries(ids, found, rows, self.layout.named(behind), times)

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return arguments.keys_of_one_table(keys, _MAX_IDS, self.device, room=True)

    def _rows(self, name: str, rows: Tensor, n: int) -> Tensor:
        return arguments.rows_of_batch(name, rows, n, self.config.dim, self.device)


def _check_served(config: TableConfig) -> None:
    """Raises and names what a device cannot do yet."""
    reasons = {
        "it is a serving table": config.serving,
        "it has an admission rule": config.admit is not None,
        f"it evicts by {config.evict!r}": config.evict is not None,
        f"its dim is {config.dim}, above {_MAX_DIM}": config.dim > _MAX_DIM,
    }
    for i, segment in enumerate(config.segments):
        rule = segment.optimizer.rule().name if segment.optimizer else "sgd"
        compressed = not isinstance(segment.compressor, Fp32 | None)
        reasons |= {
            f"segments[{i}] learns by {segment.optimizer!r}": rule not in RULES,
            f"segments[{i}] rounds to half precision": segment.stochastic_rounding_float16,
            f"the compressor of segments[{i}] is {segment.compressor!r}": compressed,
        }
    wrong = [reason for reason, holds in reasons.items() if holds]
    if wrong:
        raise ConfigError(
            f"table {config.name!r} cannot live on a device yet: {', '.join(wrong)}. Use HostTable."
        )


def _parts(config: TableConfig, layout: RowLayout, device: torch.device) -> Iterator[Part]:
    """The segments as kernels know them."""
    start, state = 0, config.dim
    for i, segment in enumerate(config.segments):
        if segment.init is None:
            raise ConfigError("a training table needs an initializer.")
        first = FirstValues(segment.init.native_kind, *segment.init.parameters(), config.row_seed)
        rule = segment.optimizer.rule() if segment.optimizer else Rule("sgd", (0.0,))
        starts = [s.initial for s in rule.states]
        numbers = Part.numbers_of(rule.settings, starts, device)
        yield Part(start, segment.dim, state, first, rule.name, numbers)
        start += segment.dim
        state += sum(p.stop - p.start for p in layout.places if p.segment == i)
