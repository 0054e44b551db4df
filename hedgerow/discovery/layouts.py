"""Layouts: the sub graphs that a group of servers serves, and the conditions that divide them."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import FileDamagedError, InputError
from .paths import DeploymentPaths, SavedModel
from .payloads import SavedModelDeployConfig
from .zookeeper import Session

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|==|!=|<=|>=|//|[-+*/%<>()])")
_MOST_DIGITS, _MOST_TOKENS = 18, 100  # each open bracket takes seven stack frames
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"or": lambda a, b: a or b},
    {"and": lambda a, b: a and b},
    {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    },
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "//": operator.floordiv, "%": operator.mod},
)


def condition_holds(text: str, numbers: Mapping[str, int]) -> bool:
    """Returns whether a condition holds for `numbers`; `/` divides as `//` does.

    >>> condition_holds("i % 2 == 1 and not i > 5", {"i": 3})
    True
    """
    return bool(_ConditionReader(text, numbers).whole())


class _ConditionReader:
    """Parses and evaluates one condition from left to right."""

    def __init__(self, text: str, numbers: Mapping[str, int]) -> None:
        self._text, self._numbers = text, numbers
        self._tokens, at = [], 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(f"{text[at:].strip()[:10]!r} is not understood")
            self._tokens.append(found.group(1))
            at = found.end()
        if len(self._tokens) > _MOST_TOKENS:
            raise self._wrong(f"it has more than {_MOST_TOKENS} words")
        self._at = 0

    def whole(self) -> int:
        value = self._level(0)
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at]!r} is unexpected")
        return value

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._single()
        value = self._level(level + 1)
        while (word := self._next()) in _LEVELS[level]:
            self._at += 1
            other = self._level(level + 1)
            try:
                value = _LEVELS[level][word](value, other)
            except ZeroDivisionError:
                raise self._wrong("it divides by zero") from None
        return value

    def _single(self) -> int:
        word = self._next()
        self._at += 1
        if word == "-":
            return -self._single()
        if word == "not":
            return not self._level(2)
        if word == "(":
            value = self._level(0)
            if self._next() != ")":
                raise self._wrong("a bracket is not closed")
            self._at += 1
            return value
        if word.isdecimal():
            if len(word) > _MOST_DIGITS:
                raise self._wrong(f"{word[:5]}... has more than {_MOST_DIGITS} digits")
            return int(word)
        if word in self._numbers:
            return self._numbers[word]
        known = ", ".join(sorted(self._numbers)) or "none"
        raise self._wrong(f"{word!r} is no number and no known name ({known})")

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _wrong(self, why: str) -> InputError:
        return InputError(
            f"condition {self._text!r}: {why}; write numbers, names, + - * // %, comparisons, "
            "and, or, not, as in 'i % 2 == 1'."
        )


_LOG = logging.getLogger("hedgerow")
Deployment = tuple[SavedModel, SavedModelDeployConfig]


@dataclass(frozen=True, slots=True)
class LayoutFilter:
    """Selects sub graphs whose name matches a pattern and whose numbers meet a condition.

    `${shard_id}` and `${shard_num}` are replaced by the numbers of the reading server.

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
                f"layout filter {self.text!r}: each {{name}} appears once and is a word, as in "
                "'ps_{i}; i % 2 == 1'."
            )
        self._holds(dict.fromkeys(names, 1))  # reports errors of the condition now

    def fits(self, sub_graph: str) -> bool:
        """Returns whether a sub graph is selected."""
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
        return condition_holds(condition, numbers)


class LayoutWatcher:
    """Calls back with all sub graphs of a layout, sorted, at the start and after each change.

    A sub graph is left out until its deploy config is declared. Calls never overlap. The first is
    on the caller's thread, all others are on the session's.
    """

    def __init__(
        self,
        session: Session,
        bzid: str,
        layout: str,
        callback: Callable[[Sequence[Deployment]], None],
        only: Sequence[LayoutFilter] = (),
    ) -> None:
        self._session, self._places, self._layout = session, DeploymentPaths(bzid), layout
        self._callback, self._only = callback, tuple(only)
        self._told: list[Deployment] | None = None

    def start(self) -> None:
        """Calls back with the current sub graphs, and then after every change."""
        self._session.client.ensure_path(self._places.layout(self._layout))
        self._session.follow(self._refresh)

    def stop(self) -> None:
        """Stops calling back."""
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
