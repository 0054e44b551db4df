"""Which tables live in HBM, in host memory or in both, chosen exactly and explained."""

from __future__ import annotations
