"""The area `routing`: what its files share."""

from __future__ import annotations

from .runner import Area

AREA = Area(
    "routing",
    file_values={
        "bucketize": {"about"},
        "checkpoint": {"about", "keys"},
        "imbalance": {"about", "offset"},
        "routing_int32": {"about", "keys"},
        "routing_int64": {"about", "keys", "mix", "table_rows"},
    },
)
