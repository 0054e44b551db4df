"""Reads configuration files into typed sections; errors name the file, the line and the key."""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
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

from ..core.errors import ConfigError, ConfigMissingError, HedgerowError
from ..core.records import Record
from ..tables.admission import AdmissionRule, Chance, Count, Within
from ..tables.eviction import Eviction, Lfu, Lru, Ttl
from ..tables.initializers import Constant, Initializer, Normal, TruncatedNormal, Uniform, Zeros
from ..tables.optimizers import (
    Adagrad,
    Adam,
    AdamW,
    AmsGrad,
    Ftrl,
    Momentum,
    Optimizer,
    RmsProp,
    RowAdagrad,
    Sgd,
)

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigOrigin:
    """The origin of values: a file with its text, or options of a command line.

    `options` maps each key that a command line has set to its option.

    >>> job = ConfigOrigin("job.toml", "[train]\\nepochs = 2\\n", {("model", "dim"): "--dim"})
    >>> job.at(("train", "epochs")), job.at(("model", "dim")), job.at(("data",))
    ('job.toml:2: train.epochs', '--dim: model.dim', 'job.toml: data')
    """

    name: str
    text: str = ""
    options: Mapping[KeyPath, str] = field(default_factory=dict)

    def at(self, path: KeyPath) -> str:
        """Returns the beginning of an error: the option, or the file and the line, and the key."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.options:
                return f"{self.options[path[:end]]}: {'.'.join(path)}"
        line = line_of(self.text, path)
        place = f"{self.name}:{line}" if line else self.name
        return f"{place}: {'.'.join(path)}" if path else place


def read_text(path: Path) -> tuple[dict[str, Any], ConfigOrigin]:
    """Returns the content of a TOML file (or JSON, by its suffix), and its origin."""
    if not path.is_file():
        raise ConfigMissingError(f"{path} is no file; check the path of the configuration.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    if path.suffix == ".json":
        return _from_json(text, path), ConfigOrigin(str(path))
    return _from_toml(text, path), ConfigOrigin(str(path), text)


def _from_toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at line (\d+), column \d+\)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1  # "at end of document"
        rule = str(error).replace(found[0], "") if found else str(error)
        raise ConfigError(f"{path}:{line}: this is no TOML: {rule}.") from error
    except (ValueError, RecursionError) as error:  # a number is too large or nesting too deep
        raise ConfigError(f"{path}: this cannot be read: {error}.") from error


def _from_json(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: this is no JSON: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: holds a {type(found).__name__}; it must be an object.")
    return found


def line_of(text: str, path: KeyPath) -> int:
    """Returns the line of a key in TOML, or of the innermost table around it; 0 if there is none.

    The parser reports no lines. This function parses longer and longer prefixes of the text; the
    key is in the statement that first makes it appear. Configurations are short.

    >>> line_of('[model]\\ndim = 8\\nhidden = [\\n 4]', ("model", "hidden"))
    3
    >>> line_of('[model]\\ndim = 8', ("model", "tables", "user"))
    1
    """
    lines, line, depth = text.split("\n"), 0, 0  # lines as TOML and editors count them
    begin = 0  # start of the incomplete statement
    for end in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # inside a list or string of several lines
        found = _depth(document, path)
        if found > depth:
            line, depth = begin + 1, found
        begin = end
    return line


def _depth(document: Any, path: KeyPath) -> int:
    """Returns how many keys of the path the document has."""
    for depth, key in enumerate(path):
        if not isinstance(document, dict) or key not in document:
            return depth
        document = document[key]
    return len(path)


# Names are lower case here. Checkpoints write "Adagrad" for ours and "adagrad" for Monolith's.
_NAMES: dict[type[Record], dict[str, type[Record]]] = {
    Optimizer: {
        "adagrad": Adagrad,
        "row-adagrad": RowAdagrad,
        "sgd": Sgd,
        "momentum": Momentum,
        "adam": Adam,
        "adamw": AdamW,
        "amsgrad": AmsGrad,
        "rmsprop": RmsProp,
        "ftrl": Ftrl,
    },
    Initializer: {
        "uniform": Uniform,
        "normal": Normal,
        "truncated-normal": TruncatedNormal,
        "constant": Constant,
        "zeros": Zeros,
    },
    AdmissionRule: {"count": Count, "within": Within, "chance": Chance},
    Eviction: {"ttl": Ttl, "lru": Lru, "lfu": Lfu},
}


def named_kinds(family: type[Any]) -> dict[str, type[Any]]:
    """Returns the classes of a family by the names that users write.

    >>> from hedgerow.tables.eviction import Eviction
    >>> list(named_kinds(Eviction))
    ['ttl', 'lru', 'lfu']
    """
    return dict(_NAMES[family])


def kind_of(record: Record) -> str:
    """Returns the name that users write for a record.

    >>> kind_of(Adagrad())
    'adagrad'
    """
    for names in _NAMES.values():
        for name, kind in names.items():
            if type(record) is kind:
                return name
    return record.kind


@dataclass(frozen=True, slots=True)
class Least:
    """The lower bound of a number, for `Annotated`."""

    value: float


NonNegativeInt = Annotated[int, Least(0)]
Size = Annotated[int, Least(1)]
Rate = Annotated[float, Least(0)]


@dataclass(frozen=True)
class SectionVariant:
    """Base of sections with several kinds.

    The key `key` of the section selects the kind by `word`.
    """

    key: ClassVar[str] = ""
    word: ClassVar[str] = ""

    @classmethod
    def variants(cls) -> dict[str, type[Any]]:
        """Returns the kinds by word."""
        found: dict[str, type[Any]] = {}
        for kind in cls.__subclasses__():
            found |= {kind.word: kind} if kind.word else kind.variants()
        return found


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """A key of a configuration, for errors."""

    origin: ConfigOrigin
    path: KeyPath = ()

    def key(self, name: str) -> ConfigPlace:
        """Returns a key below this one."""
        return ConfigPlace(self.origin, (*self.path, name))

    def refuse(self, rule: str) -> NoReturn:
        """Raises `ConfigError` with the key in front of `rule`."""
        raise ConfigError(f"{self.origin.at(self.path)}: {rule}")

    def refuse_name(self, what: str, name: str, known: Iterable[str]) -> NoReturn:
        """Raises `ConfigError` for an unknown name, with the nearest known name."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        self.refuse(f"{what}; known: {', '.join(names)}{hint}")


@cache
def _types(section: Any) -> dict[str, Any]:
    return get_type_hints(section, include_extras=True)


def read_section(section: Any, given: object, place: ConfigPlace) -> Any:
    """Reads a section of a configuration. Raises for unknown keys and values of a wrong type."""
    if not isinstance(given, Mapping):
        place.refuse(f"is {given!r}; it must be a table of keys.")
    if issubclass(section, SectionVariant) and not section.word:
        return _read_variant(section, given, place)
    types = {f.name: _types(section)[f.name] for f in fields(section)}
    beside = {section.key} if issubclass(section, SectionVariant) else set()
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


def _read_variant(
    family: type[SectionVariant], given: Mapping[str, Any], place: ConfigPlace
) -> Any:
    known, key = family.variants(), place.key(family.key)
    if family.key not in given:
        key.refuse(f"is missing; it must be one of {', '.join(known)}.")
    word = given[family.key]
    if not isinstance(word, str) or word not in known:
        key.refuse_name(f"is {word!r}", str(word), known)
    return read_section(known[word], given, place)


def read_value(kind: Any, given: object, place: ConfigPlace) -> Any:
    """Reads a value of type `kind`. The error names the expected type and the given value."""
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
    if is_dataclass(kind) or issubclass(kind, SectionVariant):
        return read_section(kind, given, place)
    return _read_plain(kind, given, place)


def _read_bounded(kind: Any, least: Least, given: object, place: ConfigPlace) -> Any:
    value = read_value(kind, given, place)
    if not value >= least.value:
        place.refuse(f"is {value!r}; it must be at least {least.value:g}.")
    return value


def _read_plain(kind: type[Any], given: object, place: ConfigPlace) -> Any:
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


def _refuse_type(kind: Any, given: object, place: ConfigPlace) -> NoReturn:
    place.refuse(f"is {given!r}; it must be {_needed(kind)}.")


def _needed(kind: Any) -> str:
    """Describes a type in words."""
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


def _read_record(family: type[Record], given: object, place: ConfigPlace) -> Any:
    """Reads an optimizer, initializer or rule. The record classes check the values."""
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
    """Returns sections as dicts, lists, strings, numbers and None, which `read_section` reads."""
    if isinstance(value, Record):
        return {**value.to_dict(), "kind": kind_of(value)}
    if is_dataclass(value):
        chosen = {value.key: value.word} if isinstance(value, SectionVariant) else {}
        return chosen | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple) else value
