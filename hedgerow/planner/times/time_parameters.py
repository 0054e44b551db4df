"""The numbers that a step's time is made of: what a calibration fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core import checks
from ...core.errors import ConfigError
from ..problem.topology import Links
from .mode_cost import ModeCost

CPU = "CPU"
"""The mode of a table in a world without cards: one table in host memory."""
MODES = ("HBM_ONLY", "HYBRID", "CACHING", "HOST_ONLY", CPU)
MEMORIES = ("hbm", "host_read", "host_write", "ddr")
LINKS = ("intra", "inter")
FULL_OVERLAP = 64.0
"""From this exponent on two tiers take as long as the slower one, to a hundredth."""
_TOPOLOGY_NAME = {"host_read": "hbm_to_ddr", "host_write": "hbm_to_ddr"}
_LINK_MS = 0.02  # an all-to-all of nothing between cards of a machine


@dataclass(frozen=True, slots=True)
class LinkCost:
    """An exchange over a link: a fixed time, and its bytes at the link's speed."""

    latency_ms: float
    bytes_per_ms: float

    def __post_init__(self) -> None:
        checks.setting("LinkCost", "latency_ms", self.latency_ms, least=0)
        checks.setting("LinkCost", "bytes_per_ms", self.bytes_per_ms, above=0)

    def ms(self, sent_bytes: float) -> float:
        """Of an exchange in which a rank sends so much."""
        return self.latency_ms + sent_bytes / self.bytes_per_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParameters:
    """Costs of modes, bytes a millisecond of memories, costs of links, and how tiers overlap.

    `overlap` is 1 if the two tiers of a table are read one after the other, and large if they are
    read at the same time. Memories and links that are not given are those of the topology.
    `promotion` says how near the fast rows of HYBRID come to the hottest ones: 0 is a split by a
    hash, 1 the hottest; None was not measured, and counts as a split.

    >>> costs = TimeParameters(modes={"CPU": ModeCost(0.01, 1e-4)}, memories={"ddr": 1e7})
    >>> TimeParameters.from_dict(costs.to_dict()) == costs
    True
    """

    modes: Mapping[str, ModeCost]
    memories: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, LinkCost] = field(default_factory=dict)
    overlap: float = FULL_OVERLAP
    promotion: float | None = None

    def __post_init__(self) -> None:
        if self.promotion is not None and not 0 <= self.promotion <= 1:
            raise ConfigError(
                f"TimeParameters.promotion is {self.promotion!r}; give a share from 0 to 1."
            )
        for name, known in (("modes", MODES), ("memories", MEMORIES), ("links", LINKS)):
            values = getattr(self, name)
            if not isinstance(values, Mapping):
                raise ConfigError(f"TimeParameters.{name} is {values!r}; give a dict.")
            for key in values:
                if key not in known:
                    checks.unknown(f"key of TimeParameters.{name}", str(key), known)
            object.__setattr__(self, name, dict(values))
        for name, speed in self.memories.items():
            checks.setting("TimeParameters.memories", name, speed, above=0)
        checks.setting("TimeParameters", "overlap", self.overlap, least=1)

    def mode(self, name: str) -> ModeCost:
        """The cost of a mode; one that was not measured is named."""
        if name not in self.modes:
            raise ConfigError(
                f"the calibration has no mode {name}; it has {', '.join(self.modes)}: calibrate on "
                f"a machine that runs it, or plan with Calibration.default()."
            )
        return self.modes[name]

    def memory(self, name: str, links: Links) -> float:
        """Bytes a millisecond, measured or else as the topology has it."""
        known = self.memories.get(name)
        return links.bytes_per_ms(_TOPOLOGY_NAME.get(name, name)) if known is None else known

    def exchange_ms(self, name: str, sent_bytes: float, links: Links) -> float:
        """Of an exchange over a link, measured or else as the topology has it."""
        known = self.links.get(name)
        if known is not None:
            return known.ms(sent_bytes)
        return _LINK_MS + sent_bytes / links.bytes_per_ms(name)

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "modes": {name: cost.to_dict() for name, cost in self.modes.items()},
            "memories": dict(self.memories),
            "links": {
                name: {"latency_ms": cost.latency_ms, "bytes_per_ms": cost.bytes_per_ms}
                for name, cost in self.links.items()
            },
            "overlap": self.overlap,
            **({} if self.promotion is None else {"promotion": self.promotion}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TimeParameters:
        """What `to_dict` was called on."""
        try:
            return cls(
                modes={name: ModeCost.from_dict(cost) for name, cost in values["modes"].items()},
                memories=values["memories"],
                links={name: LinkCost(**cost) for name, cost in values["links"].items()},
                overlap=values["overlap"],
                promotion=values.get("promotion"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"the parameters of a calibration are not as they are written: {error!r}; measure "
                f"again with `hedgerow calibrate`."
            ) from error


def overlapped(near_ms: float, far_ms: float, overlap: float) -> float:
    """The time of two tiers: their sum at overlap 1, nearly the larger one if it is large.

    >>> overlapped(3.0, 4.0, 1), overlapped(3.0, 4.0, 2), round(overlapped(3.0, 4.0, 64.0), 6)
    (7.0, 5.0, 4.0)
    """
    most, least = max(near_ms, far_ms), min(near_ms, far_ms)
    return most * (1 + (least / most) ** overlap) ** (1 / overlap) if most > 0 else 0.0
