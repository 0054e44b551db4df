"""Touched keys of a table of two tiers: of both, as one consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.shapes import Int64
from ..tables.touched import Touched, TouchedSettings


class TierTouched:
    """One consumer's touched keys, from `touched` of a table of two tiers; as `TouchedKeys`.

    A key that was touched in both tiers is given once. Moving from tier to tier is no change.
    """

    def __init__(
        self,
        name: str,
        settings: TouchedSettings,
        fast: Any,
        slow: Any,
        forget_name: Callable[[str], object],
    ) -> None:
        self.name, self.settings = name, settings
        self.since: str | None = None  # the consumer's own mark of what it delivered last
        self.delivering = threading.Lock()  # held by one who has taken keys and not yet delivered
        self._fast, self._slow, self._forget_name = fast, slow, forget_name

    def __repr__(self) -> str:
        return f"TierTouched({self._fast!r}, {self._slow!r})"

    def take(self) -> Touched:
        """The keys touched since the last take; it starts collecting anew."""
        taken: list[Touched] = []
        try:
            taken = [self._slow.take()]
            taken.append(self._fast.take())
            ids = torch.cat([one.ids.cpu() for one in taken]).unique()
        except BaseException:
            for one in taken:
                self._slow.give_back(replace(one, ids=one.ids.cpu()))
            raise
        slow, fast = taken
        whole = slow.whole_table or fast.whole_table
        if self.settings.overflow == "whole_table":
            whole = whole or len(ids) > self.settings.capacity
        return Touched(ids[:0] if whole else ids, whole, slow.forgotten + fast.forgotten)

    def give_back(self, taken: Touched | Int64[Tensor, "n"]) -> None:
        """Puts keys back for the next take: what was taken could not be delivered."""
        self._slow.give_back(taken)

    def size(self) -> int:
        """Keys that wait to be taken; one that was touched in both tiers counts twice."""
        return self._fast.size() + self._slow.size()

    def overflows(self) -> int:
        """How often a tier had more keys than the capacity, since the consumer was opened."""
        return self._fast.overflows() + self._slow.overflows()

    def close(self) -> None:
        """Stops collecting and frees the name; a second call does nothing."""
        self._forget_name(self.name)
        self._fast.close()
        self._slow.close()
