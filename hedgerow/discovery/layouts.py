"""Layouts: which sub graphs belong to a group of servers, and which of them to one of these."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.errors import FileDamagedError, InputError
from .arithmetic import evaluate
from .paths import Places, SavedModel
from .payloads import SavedModelDeployConfig
from .session import Session

_LOG = logging.getLogger("hedgerow")
Deployment = tuple[SavedModel, SavedModelDeployConfig]


@dataclass(frozen=True, slots=True)
class LayoutFilter:
    """Sub graphs whose name fits a pattern and whose numbers fulfil a condition.

    `${shard_id}` and `${shard_num}` stand for the numbers of the server that asks.

    >>> odd = LayoutFilter("ps_{i}; i % 2 == 1")
    >>> [name for name in ("ps_0", "ps_1", "entry", "ps_13") if odd.fits(name)]
    ['ps_1', 'ps_13']
    >>> LayoutFilter("ps_{i}; i % ${shard_num} == ${shard_id}", 1, 3).fits("ps_4")
    True
    """

    text: str
    shard_id: int = -1
    shard_num: int = -1

    def __post_init__(self) -> None:
        pattern = self._parts()[0]
        names = re.findall(r"\{(\w+)\}", pattern)
        if len(set(names)) != len(names) or not all(name.isidentifier() for name in names):
            raise InputError(
                f"layout filter {self.text!r}: each {{name}} stands once and is a word, as in "
                "'ps_{i}; i % 2 == 1'."
            )
        self._holds(dict.fromkeys(names, 1))  # what is wrong is told when it is written

    def fits(self, sub_graph: str) -> bool:
        """Whether a sub graph is one of these."""
        pieces = re.split(r"(\{\w+\})", self._parts()[0])
        pattern = "".join(
            f"(?P<{one[1:-1]}>[0-9]+)" if one.startswith("{") else re.escape(one) for one in pieces
        )
        found = re.fullmatch(pattern, sub_graph)
        if found is None:
            return False
        return self._holds({name: int(digits) for name, digits in found.groupdict().items()})

    def _parts(self) -> tuple[str, str]:
        pattern, _, condition = self.text.partition(";")
        return pattern.strip(), condition.strip()

    def _holds(self, numbers: dict[str, int]) -> bool:
        condition = self._parts()[1]
        if not condition:
            return True
        for name in ("shard_id", "shard_num"):
            condition = condition.replace(f"${{{name}}}", f" ({getattr(self, name)}) ")
        return evaluate(condition, numbers)


class LayoutWatcher:
    """Calls back with all sub graphs of a layout, sorted, now and after each change.

    Sub graphs without a deploy config wait until theirs is declared. Calls come one after the
    other, on the session's thread but for the first.
    """

    def __init__(
        self,
        session: Session,
        bzid: str,
        layout: str,
        callback: Callable[[Sequence[Deployment]], None],
        only: Sequence[LayoutFilter] = (),
    ) -> None:
        self._session, self._places, self._layout = session, Places(bzid), layout
        self._callback, self._only = callback, tuple(only)
        self._told: list[Deployment] | None = None

    def start(self) -> None:
        """Calls back with what is there, and from now on after changes."""
        self._session.client.ensure_path(self._places.layout(self._layout))
        self._session.follow(self._refresh)

    def stop(self) -> None:
        """Calls back no more."""
        self._session.unfollow(self._refresh)

    def _refresh(self) -> None:
        reads = self._session.reads
        found: list[Deployment] = []
        for name in reads.children(self._places.layout(self._layout)) or ():
            try:
                model = SavedModel.parse(name)
                data = reads.data(self._places.model(model))
                if data and self._wants(model):
                    found.append((model, SavedModelDeployConfig.from_bytes(data)))
            except (InputError, FileDamagedError) as error:
                self._session.counters.add("damaged_nodes")
                _LOG.warning("%s of layout %s is skipped: %s", name, self._layout, error)
        found.sort(key=lambda item: item[0])
        if found != self._told:
            self._callback(tuple(found))
            self._told = found

    def _wants(self, model: SavedModel) -> bool:
        return not self._only or any(one.fits(model.sub_graph) for one in self._only)
