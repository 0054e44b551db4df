"""A calibration: the time parameters of a device, how well they fit, and defaults."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...core import checks
from ...core.errors import ConfigError, FileDamagedError, FileMissingError
from ...core.files import write_whole
from ..problem.options import Mode
from .step_time import CPU, FULL_OVERLAP, LinkCost, ModeCost, TimeParameters

_OVERLAP = 8.0  # tiers overlap almost fully on an H200, as measured
_LAUNCH_MS, _KEY_MS = 0.049, 1.16e-6  # two launches; one key of row gather and write-back
_REACHED = 0.9  # share of a data sheet's bandwidth that fused lookups and updates reach


@dataclass(frozen=True, slots=True)
class _Card:
    hbm_gb_s: float  # from the data sheet
    host_gb_s: float  # pinned memory read in place over PCIe


_CARDS = {
    "B200": _Card(8000, 51),
    "H200": _Card(4800, 51),
    "H100": _Card(3350, 51),
    "A100": _Card(1555, 24),
    "L40": _Card(864, 24),
    "A10": _Card(600, 24),
    "V100": _Card(900, 12),
    "L4": _Card(300, 12),
    "T4": _Card(320, 12),
}


def default_parameters(device_name: str) -> tuple[TimeParameters, str]:
    """Returns the default parameters of a device, and a text that says where they come from.

    >>> default_parameters("NVIDIA A100-SXM4-80GB")[1]
    "the data sheet of an A100, with a key's cost as published for an H200"
    """
    if device_name.lower() == "cpu":
        return _cpu(), "those of a 2-core x86 server, with exchanges of 1 GB/s assumed"
    costs = {str(mode): ModeCost(_LAUNCH_MS, _KEY_MS) for mode in Mode}
    name = next((name for name in _CARDS if name in device_name.upper()), None)
    if name is None:
        return (
            TimeParameters(modes=costs, overlap=_OVERLAP),
            "the bandwidths of the topology, with a key's cost as published for an H200",
        )
    card = _CARDS[name]
    memories = {
        "hbm": card.hbm_gb_s * 1e6 * _REACHED,
        "host_read": card.host_gb_s * 1e6,
        "host_write": card.host_gb_s * 1e6,
    }
    origin = f"the data sheet of an {name}, with a key's cost as published for an H200"
    if name == "H200":
        origin = "published figures of a prototype on an H200, and its data sheet"
    return TimeParameters(modes=costs, memories=memories, overlap=_OVERLAP), origin


def _cpu() -> TimeParameters:
    # Measured by `hedgerow calibrate`. The topology's links are those between GPUs, so exchanges
    # are set here.
    exchange = LinkCost(0.3, 1e6)
    return TimeParameters(
        modes={CPU: ModeCost(0.04, 7e-5)},
        memories={"ddr": 1e7},
        links={"intra": exchange, "inter": exchange},
        overlap=FULL_OVERLAP,
    )


FORMAT, VERSION = "hedgerow-calibration", 1
KINDS = ("step", "link", "hits", "find", "lookup", "update", "copy")
_POOR_FIT = 0.20  # relative error; plans are in doubt if one point in ten exceeds it


@dataclass(frozen=True, slots=True, kw_only=True)
class PointCounts:
    """Counts that belong to a measured time.

    `moved_rows` is the number of rows promoted to a hybrid's fast tier per step, None if not
    counted. `spread` is how much longer the second fastest pass took than the fastest, which is
    noise of the machine. `quiet` is False if no round was measured on a quiet machine.

    Points of kind "hits" have `promoted`: how close the fast rows come to the most frequent ones.
    Of the keys that the most frequent rows would serve and a split by hash would not, it is the
    share that is served.
    """

    moved_rows: float | None = None
    spread: float = 0.0
    quiet: bool = True
    promoted: float = 0.0

    def __post_init__(self) -> None:
        if self.moved_rows is not None:
            checks.setting("PointCounts", "moved_rows", self.moved_rows, least=0)
        checks.setting("PointCounts", "spread", self.spread, least=0)
        checks.flag("quiet", self.quiet)
        checks.setting("PointCounts", "promoted", self.promoted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement: `keys` distinct keys, bytes read and written per key, and the time.

    `kind` is "step", "link" or "hits", which are fitted; or "find", "lookup", "update" or "copy",
    which are only recorded. `mode` is a mode, a link or the direction of a copy. Keys and ids are
    those of all `tables` of the step. `ids` includes repetitions; 0 means as many as keys.
    """

    kind: str
    mode: str
    keys: int
    read_bytes: float  # per key
    write_bytes: float
    ms: float
    dim: int = 0
    host_share: float = 0.0  # of keys whose rows are on the host
    tables: int = 1
    ids: int = 0
    fast_rows: int = 0  # rows of each table's fast tier; 0 if none or unknown
    seen: PointCounts = field(default_factory=PointCounts)

    def __post_init__(self) -> None:
        checks.choice("Point", "kind", self.kind, KINDS)
        checks.whole("Point", "keys", self.keys, least=1)
        checks.whole("Point", "tables", self.tables, least=1)
        for name in ("dim", "ids", "fast_rows"):
            checks.whole("Point", name, getattr(self, name), least=0)
        for name in ("read_bytes", "write_bytes", "host_share"):
            checks.setting("Point", name, getattr(self, name), least=0)
        checks.setting("Point", "ms", self.ms, above=0)


@dataclass(frozen=True, slots=True)
class Residuals:
    """Relative errors of a fit: |predicted / measured - 1| over all fitted points."""

    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The step times of a device: loaded, measured by `hedgerow calibrate`, or a default.

    >>> known = Calibration.default("NVIDIA H200")
    >>> known.measured, known.warnings("NVIDIA H200")[0][:36]
    (False, 'times are not measured: those of NVI')
    """

    device: str
    parameters: TimeParameters
    memory_bytes: int = 0
    driver: str = ""
    library: str = ""
    residuals: Residuals | None = None
    points: tuple[Point, ...] = ()
    origin: str = ""  # where the numbers of a default come from

    @property
    def measured(self) -> bool:
        """Whether the parameters were fitted to measurements."""
        return self.residuals is not None

    @classmethod
    def default(cls, device_name: str) -> Calibration:
        """Returns published figures for a device ("cpu" for none). They are marked as not measured.

        >>> Calibration.default("cpu").parameters.modes["CPU"].key_ms > 0
        True
        """
        parameters, origin = default_parameters(device_name)
        return cls(device=device_name, parameters=parameters, origin=origin)

    def warnings(
        self, device_name: str | None = None, uses: Iterable[tuple[int, float]] = ()
    ) -> list[str]:
        """Returns reasons to doubt these numbers for a plan on that device.

        `uses` are the plan's (dim, distinct keys per step) pairs.
        """
        found = []
        if self.residuals is None:
            found.append(
                f"times are not measured: those of {self.device} are {self.origin}; run "
                f"`hedgerow calibrate` on the device."
            )
        elif self.residuals.p90 > _POOR_FIT:
            found.append(
                f"one measurement in ten is off by more than {self.residuals.p90:.0%} in this "
                f"calibration; measure again on a quiet machine."
            )
        if device_name is not None and device_name != self.device:
            found.append(
                f"the calibration is of {self.device!r}, the plan for {device_name!r}; calibrate "
                f"there."
            )
        return [*found, *self._outside(uses)]

    def _outside(self, uses: Iterable[tuple[int, float]]) -> list[str]:
        steps, needed = [p for p in self.points if p.kind == "step"], list(uses)
        if not steps:
            return []
        dims, keys = [p.dim for p in steps], [p.keys for p in steps]
        found = []
        wide = sorted({dim for dim, _ in needed if not min(dims) <= dim <= max(dims)})
        most = max((distinct for _, distinct in needed), default=0.0)
        if wide:
            found.append(
                f"dims {', '.join(map(str, wide))} lie outside the measured "
                f"{min(dims)}..{max(dims)}; times of such tables are extrapolated."
            )
        if most > max(keys):
            found.append(
                f"a step of {most:,.0f} distinct keys is more than the measured {max(keys):,}; its "
                f"time is extrapolated."
            )
        return found

    def text(self) -> str:
        """Returns the costs of modes, the speeds, the errors and the warnings as text.

        >>> Calibration.default("cpu").text().splitlines()[1]
        '  CPU: 0.0400 ms a step, 70.0 ns a distinct key'
        """
        costs, errors = self.parameters, self.residuals
        lines = [f"{self.device}, {self.driver}"]
        lines += [f"  {name}: {cost.text()}" for name, cost in costs.modes.items()]
        lines += [f"  {name}: {speed / 1e6:.1f} GB/s" for name, speed in costs.memories.items()]
        if costs.promotion is not None:
            lines.append(f"  HYBRID: {costs.promotion:.0%} of what the hottest rows serve")
        if errors is not None:
            steps = sum(point.kind == "step" for point in self.points)
            lines.append(
                f"  off by {errors.median:.1%} (median), {errors.p90:.1%} (one in ten), "
                f"{errors.worst:.1%} (worst) over {steps} measured steps"
            )
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings())])

    def to_dict(self) -> dict[str, Any]:
        """Returns the calibration as a dict for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "memory_bytes": self.memory_bytes,
            "driver": self.driver,
            "library": self.library,
            "origin": self.origin,
            "parameters": self.parameters.to_dict(),
            "residuals": None if self.residuals is None else asdict(self.residuals),
            "points": [asdict(point) for point in self.points],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Returns the calibration from its dict form. Raises for other versions."""
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise ConfigError(
                f"no calibration: its format must be {FORMAT!r}, as `hedgerow calibrate` writes it."
            )
        version = values.get("version")
        if version != VERSION:
            raise ConfigError(
                f"the calibration has version {version!r}; this library reads {VERSION}: measure "
                f"again, or install a newer one."
            )
        try:
            residuals = values["residuals"]
            return cls(
                device=str(values["device"]),
                memory_bytes=int(values["memory_bytes"]),
                driver=str(values["driver"]),
                library=str(values["library"]),
                origin=str(values["origin"]),
                parameters=TimeParameters.from_dict(values["parameters"]),
                residuals=None if residuals is None else _residuals(residuals),
                points=tuple(_point(point) for point in values["points"]),
            )
        except ConfigError:
            raise
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the calibration is not as it is written: {error!r}; measure again with `hedgerow "
                f"calibrate`."
            ) from error

    def save(self, path: Path | str) -> None:
        """Writes the calibration as a JSON file. The file is replaced atomically."""
        write_whole(Path(path), json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> Calibration:
        """Reads a calibration that `save` wrote. Needs no optional library."""
        place = Path(path)
        if not place.is_file():
            raise FileMissingError(f"{place} is no file; make one with `hedgerow calibrate`.")
        try:
            values = json.loads(place.read_text())
        except (ValueError, RecursionError) as error:
            raise FileDamagedError(f"{place} is no JSON file: {error}.") from error
        try:
            return cls.from_dict(values)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error


def _point(values: Mapping[str, Any]) -> Point:
    """Returns a point from its dict form.

    Also reads the older form with a share and hottest rows.
    """
    known, seen = dict(values), dict(values.get("seen", {}))
    factor, hottest = known.pop("factor", 0.0), known.pop("hottest", 0.0)
    if hottest > factor:
        seen["promoted"] = (1 - known["host_share"] - factor) / (hottest - factor)
    if "promoted" in known:
        seen["promoted"] = known.pop("promoted")
    return Point(**{**known, "seen": PointCounts(**seen)})


def _residuals(values: Mapping[str, Any]) -> Residuals:
    found = Residuals(**values)
    for name in ("median", "p90", "worst"):
        if not math.isfinite(getattr(found, name)):
            raise ConfigError(f"Residuals.{name} is {getattr(found, name)!r}; it must be finite.")
    return found
