"""How long a table takes: keys, hit rates, devices."""

from __future__ import annotations
