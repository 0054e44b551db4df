"""The area `routing`: what its files share and what later issues bring."""

from __future__ import annotations

from .runner import Area

AREA = Area(
    "routing",
    file_values={"checkpoint": {"about", "keys"}},
    later_files={
        "bucketize",  # distribution
        "imbalance",
        "routing_int32",
        "routing_int64",
    },
)
