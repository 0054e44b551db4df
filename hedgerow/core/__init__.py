"""Values everyone may use: errors, checks, ids, hashing, clock, units, counters, registry."""

from __future__ import annotations
