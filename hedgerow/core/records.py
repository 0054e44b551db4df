"""Conversion of frozen dataclasses to plain dicts and back, for configurations stored in files."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from .checks import unknown
from .errors import ConfigError

R = TypeVar("R", bound="Record")


class Record:
    """Base of configuration dataclasses. Their dict form names their kind.

    A subclass sets `kind`. A common base class groups a family: `from_dict` on it finds the member
    by its kind.

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
        """Returns the fields as dicts, lists, strings, numbers and None, which JSON can hold."""
        fields = {f.name: _plain(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]
        return {"kind": self.kind, **fields}

    @classmethod
    def of_older_record(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the settings of a record, with values added that an older version left out.

        A subclass overrides it if the default of a new setting differs from the old behavior.
        """
        return settings

    @classmethod
    def members(cls: type[R]) -> dict[str, type[R]]:
        """Returns the classes of this family by kind."""
        found = {cls.kind: cls} if "kind" in vars(cls) and cls.kind else {}
        for child in cls.__subclasses__():
            found.update(child.members())
        return found

    @classmethod
    def from_dict(cls: type[R], values: Mapping[str, Any]) -> R:
        """Returns the object that `to_dict` was called on.

        Raises for unknown kinds and settings.
        """
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
    if isinstance(value, numbers.Real):  # a numpy number
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
