"""The occurrence filter of tables on a device: how often each id was seen lately."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError, InputError
from ..core.hashing import signed64
from ..core.shapes import Bool, Int64
from ..kernels.count_ids import add_counts, counts_of
from ..kernels.layout import Cells, mix_of
from .filters import (
    CAPACITY_IDS,
    MAX_COUNT,
    SPLIT_NUM,
    FilterMeta,
    FilterState,
    check_sizes,
    table_key,
)
from .slot_key import check_slot_key, slot_key_of

_MAX_SPLITS = 2**15  # turns of a window are told apart by 16 bits
_SPREAD = 0x9E3779B97F4A7C15  # so that seeds near each other give other salts


@dataclass(frozen=True)
class DeviceFilterMeta(FilterMeta):
    """Describes the state of a `DeviceFilter`: the cells in use and their places."""

    kind = "device_filter"


class DeviceFilter:
    """Counts ids over about the last `capacity_ids` distinct ones, without waiting for the device.

    It answers as `SlidingFilter` does, except that its window moves on between calls, not inside
    one. It takes all its memory when it is made, 10 bytes per id of the capacity: 3 GB by default,
    so give a rule the window it needs, as `Within(10_000_000, 3)`. Not thread-safe; use it on one
    stream. The cells in which ids are counted depend on the `slot_key`, which is drawn at random
    unless given and is part of the state.
    """

    def __init__(
        self,
        *,
        capacity_ids: int = CAPACITY_IDS,
        split_num: int = SPLIT_NUM,
        seed: int = 0,
        max_count: int = MAX_COUNT,
        device: torch.device | str = "cuda",
        slot_key: int | None = None,
    ) -> None:
        check_slot_key("DeviceFilter", slot_key)
        check_sizes("DeviceFilter", capacity_ids, split_num)
        checks.whole("DeviceFilter", "max_count", max_count, least=1)
        if max_count > MAX_COUNT or split_num > _MAX_SPLITS:
            raise ConfigError(
                f"DeviceFilter has max_count {max_count} and split_num {split_num}; at most "
                f"{MAX_COUNT} and {_MAX_SPLITS}."
            )
        self.capacity_ids, self.split_num = capacity_ids, split_num
        self.seed, self.max_count = seed, max_count
        self.tables: set[str] = set()  # names of the tables that count their ids here
        self.device = torch.empty(0, device=device).device  # with its number
        self._slot_key = slot_key_of(slot_key)
        self._cells = Cells.make(
            capacity_ids, split_num - 2, max_count, self.device, self._slot_key
        )

    def __repr__(self) -> str:
        return (
            f"DeviceFilter(capacity_ids={self.capacity_ids}, split_num={self.split_num}, "
            f"seed={self.seed}, max_count={self.max_count}, device={str(self.device)!r})"
        )

    def counts(
        self, ids: Int64[Tensor, "n"], asked: Bool[Tensor, "n"] | None = None, *, table: str
    ) -> Int64[Tensor, "n"]:
        """The counts of ids, 0 for ids that are not `asked`. This counts nothing."""
        checks.tensor("ids", ids, torch.int64, (None,), self.device)
        return counts_of(self._cells, ids, self._asked(ids, asked), self._salt(table))

    def add(
        self,
        ids: Int64[Tensor, "n"],
        asked: Bool[Tensor, "n"] | None = None,
        *,
        table: str,
        counts: Int64[Tensor, "n"] | None = None,
    ) -> Bool[Tensor, "n"]:
        """Counts ids, which must differ, once or `counts` times; False where one found no cell.

        A count below 1 is taken as 1: to refuse it, as `SlidingFilter` does, would wait.
        """
        checks.tensor("ids", ids, torch.int64, (None,), self.device)
        added = torch.ones_like(ids) if counts is None else counts.clamp(min=1)
        stored = add_counts(self._cells, ids, self._asked(ids, asked), added, self._salt(table))
        state = self._cells.state
        full = state[1] + 1 >= self.capacity_ids // (self.split_num - 1)
        state[0] += full
        state[1].mul_(~full)
        return stored

    @property
    def head_increment(self) -> int:
        """How often the window moved on; waits for the device."""
        return int(self._cells.state[0])

    @property
    def failures(self) -> int:
        """Ids that found no cell; waits for the device."""
        return int(self._cells.state[2])

    def memory_bytes(self) -> int:
        """Bytes of all cells."""
        return self._cells.cells.nbytes

    def meta(self) -> DeviceFilterMeta:
        """The description of the state, without its arrays; waits for the device."""
        return self._meta(0)

    def clear(self) -> None:
        """Forgets all ids of all tables; the memory stays the filter's."""
        self._cells.cells.zero_()
        self._cells.state[:3] = 0

    def dump(self) -> FilterState:
        """All cells in use and their places, copied to host memory."""
        cells = self._cells.cells.cpu()
        places = cells.nonzero()[:, 0]
        arrays = (places, cells[places])
        return FilterState(self._meta(len(places)), tuple(x.view(torch.uint8) for x in arrays))

    def restore(self, state: FilterState) -> None:
        """Restores a state that a filter with equal settings dumped.

        If the state is damaged, it raises an error and the filter stays as it is.
        """
        mine, given = self.meta().settings(), state.meta.settings()
        if not isinstance(state.meta, DeviceFilterMeta) or mine != given:
            raise InputError(
                f"the state is of another filter, {given}, not {mine}; counts cannot be carried "
                f"over. Make the filter with the state's settings, or start with empty counts."
            )
        places, cells = (array.clone().view(torch.int64) for array in state.arrays)
        most = len(self._cells.cells)
        if len(places) != len(cells) or not bool(((places >= 0) & (places < most)).all()):
            raise InputError("the state is damaged: cells beyond the filter's end.")
        if not bool(((cells & 0xFF) != 0).all()):
            raise InputError("the state is damaged: a cell has no count.")
        turn = state.meta.head_increment
        head = int((((cells >> 8) & 0xFFFF) == turn & 0xFFFF).sum())
        self._cells.cells.zero_()
        self._cells.cells[places.to(self.device)] = cells.to(self.device)
        self._slot_key = state.meta.slot_key
        mix = map(signed64, mix_of(self._slot_key))
        self._cells.state.copy_(torch.tensor([turn, head, state.meta.failures, *mix]))

    def _meta(self, used: int) -> DeviceFilterMeta:
        turn, _, failures = self._cells.state[:3].tolist()
        mine = (self.capacity_ids, self.split_num, self.seed, self.max_count)
        return DeviceFilterMeta(
            *mine,
            turn % self.split_num,
            turn,
            failures,
            ((8, used, used), (8, used, used)),
            self._slot_key,
        )

    def _salt(self, table: str) -> int:
        return signed64((table_key(table) + self.seed * _SPREAD) % 2**64)

    def _asked(self, ids: Tensor, asked: Tensor | None) -> Tensor:
        return torch.ones_like(ids, dtype=torch.bool) if asked is None else asked
