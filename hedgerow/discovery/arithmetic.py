"""Conditions on whole numbers, as in "i % 2 == 1": parsed, never run as code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from ..core.errors import InputError

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|==|!=|<=|>=|//|[-+*/%<>()])")
_MOST_DIGITS, _MOST_TOKENS = 18, 100  # each open bracket takes seven frames of the stack
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


def evaluate(text: str, numbers: Mapping[str, int]) -> bool:
    """Whether a condition holds for these numbers; `/` divides as `//` does.

    >>> evaluate("i % 2 == 1 and not i > 5", {"i": 3})
    True
    """
    return bool(_Reader(text, numbers).whole())


class _Reader:
    """Reads one condition from left to right."""

    def __init__(self, text: str, numbers: Mapping[str, int]) -> None:
        self._text, self._numbers = text, numbers
        self._tokens, at = [], 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(f"{text[at:].strip()[:10]!r} means nothing here")
            self._tokens.append(found.group(1))
            at = found.end()
        if len(self._tokens) > _MOST_TOKENS:
            raise self._wrong(f"it has more than {_MOST_TOKENS} words")
        self._at = 0

    def whole(self) -> int:
        value = self._level(0)
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at]!r} is too much")
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
