"""Time parameters for devices that nobody has measured: published figures and data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem.variant import Mode
from .mode_cost import ModeCost
from .time_parameters import CPU, FULL_OVERLAP, LinkCost, TimeParameters

_OVERLAP = 8.0  # tiers were measured to overlap almost fully on an H200
_LAUNCH_MS, _KEY_MS = 0.049, 1.16e-6  # a pair of launches and a key, row gather and write-back
_REACHED = 0.9  # of a data sheet's bandwidth: what fused lookups and updates reach of a copy's


@dataclass(frozen=True, slots=True)
class _Card:
    hbm_gb_s: float  # data sheet
    host_gb_s: float  # pinned memory read in place, over its PCIe generation


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
    """Parameters for a device of that name, and where they come from.

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
    # Steps as measured by `hedgerow calibrate`; links of a topology are those between cards.
    exchange = LinkCost(0.3, 1e6)
    return TimeParameters(
        modes={CPU: ModeCost(0.04, 7e-5)},
        memories={"ddr": 1e7},
        links={"intra": exchange, "inter": exchange},
        overlap=FULL_OVERLAP,
    )
