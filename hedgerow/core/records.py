"""Frozen dataclasses to plain dicts and back, for configurations that are written to files."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from .checks import unknown
from .errors import ConfigError

R = TypeVar("R", bound="Record")


class Record:
    """Base of configuration dataclasses whose dict form names their kind.

    A subclass gives `kind`; a family of them is an ordinary base class, and `from_dict` on it finds
    the member.

    >>> from dataclasses import dataclass
    >>> class Shape(Record): pass
    >>> @dataclass(frozen=True)
    ... class Circle(Shape):
    ...     kind = "circle"
    ...     radius: float = 1.0
    >>> Circle(2.0).to_dict()
    {'kind': 'circle', 'radius': 2.0}
    >>> Shape.from_dict({"kind": "circle"})
    Circle(radius=1.0)
    """

    kind: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Only dicts, lists, strings, numbers and None: fit for JSON."""
        fields = {f.name: _plain(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]
        return {"kind": self.kind, **fields}

    @classmethod
    def of_older_record(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings of a record, completed where an older version wrote it and meant another
        value than a new setting's default."""
        return settings

    @classmethod
    def members(cls: type[R]) -> dict[str, type[R]]:
        """The classes of this family by kind."""
        found = {cls.kind: cls} if "kind" in vars(cls) and cls.kind else {}
        for child in cls.__subclasses__():
            found.update(child.members())
        return found

    @classmethod
    def from_dict(cls: type[R], values: Mapping[str, Any]) -> R:
        """The value that `to_dict` was called on. Unknown kinds and keys are refused by name."""
        if not isinstance(values, Mapping) or "kind" not in values:
            raise ConfigError(
                f"{values!r} is not a configuration; it must be a dict with a 'kind'."
            )
        members = cls.members()
        if not isinstance(values["kind"], str) or values["kind"] not in members:
            unknown(f"kind of {cls.__name__.lower()}", str(values["kind"]), members)
        member = members[values["kind"]]
        fields = dataclasses.fields(member)  # pyright: ignore[reportArgumentType]
        known = {f.name for f in fields}
        for name in values:
            if name != "kind" and name not in known:
                unknown(f"setting of {member.kind}", name, known)
        given = {name: _value(v) for name, v in values.items() if name != "kind"}
        settings = member.of_older_record(given)
        missing = [f.name for f in fields if _is_required(f) and f.name not in settings]
        if missing:
            raise ConfigError(f"{member.kind} lacks {', '.join(missing)}; given: {dict(values)!r}.")
        return member(**settings)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _plain(name: str, value: object) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(name, v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, numbers.Real):  # numpy's
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise ConfigError(
        f"{name} is {value!r}, which cannot be written to a file; use a number or a schedule."
    )


def _value(value: object) -> Any:
    if isinstance(value, Mapping) and "kind" in value:
        return Record.from_dict(value)
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    return value
