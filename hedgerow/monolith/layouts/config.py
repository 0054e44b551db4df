"""The configuration of layouts: which columns of which features, how they are pooled and placed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core import checks
from ...core.errors import ConfigError, DtypeError

POOLINGS = ("SUM", "MEAN", "FIRSTN")
OUT_TYPES = ("CONCAT", "STACK", "ADDN", "NONE")
_MOST = 2**31 - 1  # limit of widths and lengths, which have 32 bits in Monolith


def by_name(names: Iterable[str]) -> list[str]:
    """Returns names sorted by their UTF-8 bytes. This order numbers features, tables and layouts.

    >>> by_name({"f2", "f10", "F1"})
    ['F1', 'f10', 'f2']
    """
    return sorted(names, key=lambda name: name.encode("utf-8", "surrogatepass"))


def _name(owner: str, what: str, value: str) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{owner}.{what} is {value!r}; it must be a text.")


def _whole(owner: str, what: str, value: int, least: int = 0) -> int:
    """Returns a 32-bit integer as a Python int, because numpy integers are not JSON."""
    checks.whole(owner, what, value, least=least)
    if value > _MOST:
        raise ConfigError(f"{owner}.{what} is {value}; it must be at most 2^31 - 1.")
    return int(value)


def _entries(owner: str, what: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(f"{owner}.{what} is {values!r}; it must be a list.")
    return tuple(values)


def _dims(values: Iterable[int]) -> tuple[int, ...]:
    values = _entries("OutConfig", "shape", values)
    return tuple(_whole("OutConfig", "shape", dim, -1) for dim in values)


def _each(what: str, values: Iterable[Any], kind: type) -> None:
    for value in values:
        if not isinstance(value, kind):
            raise ConfigError(f"{what} holds {value!r}; pass a {kind.__name__}.")


def _set(owner: object, **values: object) -> None:
    """Sets fields of a frozen object during construction."""
    for name, value in values.items():
        object.__setattr__(owner, name, value)


@dataclass(frozen=True)
class LayoutFeature:
    """A feature: its table, how the ids of a row are pooled, and the widths of its slices.

    >>> LayoutFeature("t", "FIRSTN", (1, 4), 3).width
    5
    """

    table: str
    pooling: str
    slice_dims: tuple[int, ...]
    max_sequence_length: int = 0

    def __post_init__(self) -> None:
        _name("LayoutFeature", "table", self.table)
        checks.choice("LayoutFeature", "pooling", self.pooling, POOLINGS)
        dims = _entries("LayoutFeature", "slice_dims", self.slice_dims)
        _set(self, slice_dims=tuple(_whole("LayoutFeature", "slice_dims", dim, 1) for dim in dims))
        _whole("LayoutFeature", "slice_dims' sum", self.width, 1)
        length = _whole("LayoutFeature", "max_sequence_length", self.max_sequence_length, -(2**31))
        _set(self, max_sequence_length=length)
        if self.pooling == "FIRSTN" and self.max_sequence_length < 1:
            raise ConfigError(
                f"LayoutFeature.max_sequence_length is {self.max_sequence_length}; FIRSTN keeps "
                f"that many ids per row: it must be at least 1."
            )

    @property
    def width(self) -> int:
        """Values per vector."""
        return sum(self.slice_dims)

    @property
    def length(self) -> int:
        """Positions per row in an output; 0 if the ids are pooled into one vector."""
        return self.max_sequence_length if self.pooling == "FIRSTN" else 0


@dataclass(frozen=True)
class Slice:
    """Columns [start, end) of a feature's vector.

    >>> Slice("f", 1, 5).width
    4
    """

    feature: str
    start: int
    end: int

    def __post_init__(self) -> None:
        _name("Slice", "feature", self.feature)
        start, end = _whole("Slice", "start", self.start), _whole("Slice", "end", self.end, 1)
        _set(self, start=start, end=end)
        if self.end <= self.start:
            raise ConfigError(
                f"the slice [{self.start}, {self.end}) of {self.feature!r} is empty; end must be "
                f"above start."
            )

    @property
    def width(self) -> int:
        """Columns of the slice."""
        return self.end - self.start


@dataclass(frozen=True)
class OutConfig:
    """One layout: its slices, how they are combined, and optional shapes to check.

    Dimension 0 of a shape is the batch: -1, or the number of rows that every batch must have.

    >>> OutConfig("CONCAT", (Slice("f", 0, 2), Slice("g", 0, 3)), ((-1, 5),)).shape
    ((-1, 5),)
    """

    out_type: str
    slices: tuple[Slice, ...]
    shape: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        checks.choice("OutConfig", "out_type", self.out_type, OUT_TYPES)
        _set(self, slices=_entries("OutConfig", "slices", self.slices))
        if not self.slices:
            raise ConfigError("OutConfig.slices is empty; a layout needs at least one slice.")
        _each("OutConfig.slices", self.slices, Slice)
        shape = [
            tuple(
                _whole("OutConfig", "shape", dim, -1) for dim in _entries("OutConfig", "shape", d)
            )
            for d in _entries("OutConfig", "shape", self.shape)
        ]
        _set(self, shape=tuple(shape))

    def sizes(self, features: Mapping[str, LayoutFeature]) -> list[tuple[int, ...]]:
        """Returns the shape of each output tensor without the batch dimension."""
        first = self.slices[0]
        length = features[first.feature].length
        positions = (length,) if length else ()
        if self.out_type == "NONE":
            return [
                (features[one.feature].length, one.width)
                if features[one.feature].length
                else (one.width,)
                for one in self.slices
            ]
        if self.out_type == "CONCAT":
            return [(*positions, sum(one.width for one in self.slices))]
        if self.out_type == "STACK":
            return [(len(self.slices), *positions, first.width)]
        return [(first.width,)]


@dataclass(frozen=True)
class FeatureConfigs:
    """Features and layouts by name. All rules are checked at construction.

    >>> config = FeatureConfigs(
    ...     {"f": LayoutFeature("t", "SUM", (2, 3))},
    ...     {"out": OutConfig("NONE", (Slice("f", 2, 5),))},
    ... )
    >>> config.tables, FeatureConfigs.from_json(config.to_json()) == config
    (['t'], True)
    """

    features: Mapping[str, LayoutFeature]
    outs: Mapping[str, OutConfig]
    # The configuration as a string, which registered ops take, because torch supports strings.
    text: str = field(init=False, repr=False, compare=False)
    names: list[str] = field(init=False, repr=False, compare=False)  # features by number
    tables: list[str] = field(init=False, repr=False, compare=False)  # tables by number

    def __post_init__(self) -> None:
        for what, values in (("features", self.features), ("outs", self.outs)):
            if not isinstance(values, Mapping):
                raise ConfigError(f"FeatureConfigs.{what} is {values!r}; pass a dict by name.")
        _each("FeatureConfigs.features", self.features.values(), LayoutFeature)
        _each("FeatureConfigs.outs", self.outs.values(), OutConfig)
        for name in (*self.features, *self.outs):
            _name("FeatureConfigs", "name", name)
        for name, out in self.outs.items():
            _check_out(name, out, self.features)
        tables = by_name({feature.table for feature in self.features.values()})
        _set(self, names=by_name(self.features), tables=tables)
        _set(self, text=json.dumps(self.to_json(), separators=(",", ":")))

    def __hash__(self) -> int:
        return hash(self.text)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form, sorted by name."""
        features = {name: self.features[name] for name in by_name(self.features)}
        outs = {name: self.outs[name] for name in by_name(self.outs)}
        return {
            "features": {
                name: {
                    "table": one.table,
                    "pooling": one.pooling,
                    "slice_dims": list(one.slice_dims),
                    "max_sequence_length": one.max_sequence_length,
                }
                for name, one in features.items()
            },
            "outs": {
                name: {
                    "out_type": out.out_type,
                    "slices": [
                        {"feature": one.feature, "start": one.start, "end": one.end}
                        for one in out.slices
                    ],
                    "shape": [list(dims) for dims in out.shape],
                }
                for name, out in outs.items()
            },
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FeatureConfigs:
        """Builds the configuration from its JSON form: `{"features": {...}, "outs": {...}}`."""
        _keys("config", value, {"features", "outs"}, set())
        return FeatureConfigs(
            {name: _feature(name, one) for name, one in value["features"].items()},
            {name: _out(name, one) for name, one in value["outs"].items()},
        )


def text_of(config: FeatureConfigs) -> str:
    """Returns the string of a configuration for a registered op. Raises for other types."""
    if not isinstance(config, FeatureConfigs):
        raise DtypeError(f"config is a {type(config).__name__}; pass a FeatureConfigs.")
    return config.text


def _check_out(name: str, out: OutConfig, features: Mapping[str, LayoutFeature]) -> None:
    for one in out.slices:
        if one.feature not in features:
            raise ConfigError(
                f"layout {name!r} takes a slice of {one.feature!r}, which is no feature; known: "
                f"{', '.join(by_name(features))}."
            )
        if one.end > features[one.feature].width:
            raise ConfigError(
                f"layout {name!r} takes columns [{one.start}, {one.end}) of {one.feature!r}, "
                f"whose vector has {features[one.feature].width}."
            )
    if out.out_type != "NONE":
        _check_joined(name, out, features)
    if out.shape:
        _check_shape(name, out, features)


def _check_joined(name: str, out: OutConfig, features: Mapping[str, LayoutFeature]) -> None:
    widths = sorted({one.width for one in out.slices})
    lengths = sorted({features[one.feature].length for one in out.slices})
    if out.out_type != "CONCAT" and len(widths) > 1:
        raise ConfigError(
            f"layout {name!r} is {out.out_type} of slices {widths} wide; they must be of one "
            f"width: use CONCAT or NONE."
        )
    if out.out_type == "ADDN" and lengths != [0]:
        raise ConfigError(f"layout {name!r} is ADDN of a FIRSTN feature; add pooled ones only.")
    if len(lengths) > 1:
        raise ConfigError(
            f"layout {name!r} is {out.out_type} of slices with lengths {lengths} (0: pooled); "
            f"they must be all pooled or all FIRSTN of one length."
        )


def _check_shape(name: str, out: OutConfig, features: Mapping[str, LayoutFeature]) -> None:
    sizes = out.sizes(features)
    given = [dims[1:] for dims in out.shape]
    if any(not dims for dims in out.shape) or given != sizes:
        wanted = ", ".join(str([-1, *size]) for size in sizes)
        raise ConfigError(
            f"layout {name!r} has shape {[list(dims) for dims in out.shape]}; its slices make "
            f"{wanted}. Correct it, or leave it out."
        )
    if len({dims[0] for dims in out.shape} - {-1}) > 1:
        raise ConfigError(
            f"layout {name!r} names batches of {sorted({dims[0] for dims in out.shape})} rows; "
            f"dimension 0 is -1 or the batch."
        )


def _keys(owner: str, value: Mapping[str, Any], needed: set[str], more: set[str]) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{owner} is {value!r}; it must be a mapping.")
    missing, unknown = needed - set(value), set(value) - needed - more
    if missing or unknown:
        raise ConfigError(
            f"{owner} lacks {sorted(missing)} and has {sorted(unknown)}; its keys are "
            f"{sorted(needed | more)}."
        )


def _feature(name: str, value: Mapping[str, Any]) -> LayoutFeature:
    _keys(f"feature {name!r}", value, {"table", "pooling", "slice_dims"}, {"max_sequence_length"})
    return LayoutFeature(
        value["table"], value["pooling"], value["slice_dims"], value.get("max_sequence_length") or 0
    )


def _out(name: str, value: Mapping[str, Any]) -> OutConfig:
    _keys(f"layout {name!r}", value, {"out_type", "slices"}, {"shape"})
    for one in value["slices"]:
        _keys(f"a slice of layout {name!r}", one, {"feature", "start", "end"}, set())
    slices = tuple(Slice(one["feature"], one["start"], one["end"]) for one in value["slices"])
    return OutConfig(value["out_type"], slices, value.get("shape") or ())
