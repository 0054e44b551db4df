"""Values of a configuration file to typed sections and back; errors name file, line and key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ..core.errors import ConfigError, HedgerowError
from ..core.records import Record
from .config_text import KeyPath, Origin
from .record_names import kind_of, named_kinds


@dataclass(frozen=True, slots=True)
class Least:
    """The least value of a number, for `Annotated`."""

    value: float


Count = Annotated[int, Least(0)]
Size = Annotated[int, Least(1)]
Rate = Annotated[float, Least(0)]


@dataclass(frozen=True)
class Variant:
    """Base of sections of several kinds: the key `key` of the section chooses by `word`."""

    key: ClassVar[str] = ""
    word: ClassVar[str] = ""

    @classmethod
    def variants(cls) -> dict[str, type[Any]]:
        """The kinds by word."""
        found: dict[str, type[Any]] = {}
        for kind in cls.__subclasses__():
            found |= {kind.word: kind} if kind.word else kind.variants()
        return found


@dataclass(frozen=True, slots=True)
class Place:
    """A key of a configuration, to point at in an error."""

    origin: Origin
    path: KeyPath = ()

    def key(self, name: str) -> Place:
        """A key below."""
        return Place(self.origin, (*self.path, name))

    def refuse(self, rule: str) -> NoReturn:
        """Raises with the place in front."""
        raise ConfigError(f"{self.origin.at(self.path)}: {rule}")

    def refuse_name(self, what: str, name: str, known: Iterable[str]) -> NoReturn:
        """Raises for an unknown name, with the nearest known one."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        self.refuse(f"{what}; known: {', '.join(names)}{hint}")


@cache
def _types(section: Any) -> dict[str, Any]:
    return get_type_hints(section, include_extras=True)


def read_section(section: Any, given: object, place: Place) -> Any:
    """A section of a configuration: every key known, every value of its type."""
    if not isinstance(given, Mapping):
        place.refuse(f"is {given!r}; it must be a table of keys.")
    if issubclass(section, Variant) and not section.word:
        return _read_variant(section, given, place)
    types = {f.name: _types(section)[f.name] for f in fields(section)}
    beside = {section.key} if issubclass(section, Variant) else set()
    for name in given:
        if name not in types and name not in beside:
            place.key(name).refuse_name("unknown key", name, {*types, *beside})
    for f in fields(section):
        if f.name not in given and f.default is MISSING and f.default_factory is MISSING:
            place.key(f.name).refuse(f"is missing; it must be {_needed(types[f.name])}.")
    values = {
        name: read_value(types[name], given[name], place.key(name))
        for name in given
        if name in types
    }
    return section(**values)


def _read_variant(family: type[Variant], given: Mapping[str, Any], place: Place) -> Any:
    known, key = family.variants(), place.key(family.key)
    if family.key not in given:
        key.refuse(f"is missing; it must be one of {', '.join(known)}.")
    word = given[family.key]
    if not isinstance(word, str) or word not in known:
        key.refuse_name(f"is {word!r}", str(word), known)
    return read_section(known[word], given, place)


def read_value(kind: Any, given: object, place: Place) -> Any:
    """A value of type `kind`, or an error that says what is needed and what was given."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _read_bounded(inner[0], inner[1], given, place)
    if origin in (UnionType, Union):  # T | None
        (one,) = (part for part in inner if part is not NoneType)
        return None if given is None else read_value(one, given, place)
    if origin is Literal:
        if given not in inner:
            place.refuse_name(f"is {given!r}", str(given), inner)
        return given
    if origin is tuple:
        rows = [given] if inner[0] is str and isinstance(given, str) else given
        if not isinstance(rows, list | tuple):
            _refuse_type(kind, given, place)
        return tuple(read_value(inner[0], value, place) for value in rows)
    if origin is not None:  # Mapping[str, T]
        if not isinstance(given, Mapping):
            _refuse_type(kind, given, place)
        return {name: read_value(inner[1], value, place.key(name)) for name, value in given.items()}
    if issubclass(kind, Record):
        return _read_record(kind, given, place)
    if is_dataclass(kind) or issubclass(kind, Variant):
        return read_section(kind, given, place)
    return _read_plain(kind, given, place)


def _read_bounded(kind: Any, least: Least, given: object, place: Place) -> Any:
    value = read_value(kind, given, place)
    if not value >= least.value:
        place.refuse(f"is {value!r}; it must be at least {least.value:g}.")
    return value


def _read_plain(kind: type[Any], given: object, place: Place) -> Any:
    is_switch = isinstance(given, bool)
    if kind is float and isinstance(given, int | float) and not is_switch:
        if not math.isfinite(given):
            place.refuse(f"is {given!r}; it must be finite.")
        return float(given)
    if isinstance(given, kind) and is_switch == (kind is bool):
        if kind is int and not -(2**63) <= given < 2**63:  # pyright: ignore[reportOperatorIssue]
            place.refuse(f"is {given}; it must lie in -2**63..2**63-1.")
        return given
    return _refuse_type(kind, given, place)


def _refuse_type(kind: Any, given: object, place: Place) -> NoReturn:
    place.refuse(f"is {given!r}; it must be {_needed(kind)}.")


def _needed(kind: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_needed(inner[0])} of at least {inner[1].value:g}"
    if origin in (UnionType, Union):
        return _needed(next(part for part in inner if part is not NoneType))
    if origin is Literal:
        return f"one of {', '.join(inner)}"
    if origin is tuple:
        return {str: "a list of strings"}.get(inner[0], "a list of whole numbers")
    words = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return words.get(kind, "a table of keys")


def _read_record(family: type[Record], given: object, place: Place) -> Any:
    """An optimizer, initializer or rule by the names users write; the records check the rest."""
    known = named_kinds(family)
    if not isinstance(given, Mapping) or "kind" not in given:
        example = next(iter(known))
        place.refuse(f"is {given!r}; it must be a table with a kind, as in {{kind = {example!r}}}.")
    word = given["kind"]
    if not isinstance(word, str) or word not in known:
        place.key("kind").refuse_name(f"is {word!r}", str(word), known)
    names = [f.name for f in fields(known[word])]  # pyright: ignore[reportArgumentType]
    for name in given:
        if name not in ("kind", *names):
            place.key(name).refuse_name("unknown key", name, ["kind", *names])
    try:
        return family.from_dict({**given, "kind": known[word].kind})
    except HedgerowError as error:
        return place.refuse(str(error))


def plain(value: object) -> Any:
    """Sections as dicts, lists, strings, numbers and None, which `read_section` takes back."""
    if isinstance(value, Record):
        return {**value.to_dict(), "kind": kind_of(value)}
    if is_dataclass(value):
        chosen = {value.key: value.word} if isinstance(value, Variant) else {}
        return chosen | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple) else value
