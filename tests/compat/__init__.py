"""Files written by released versions, which every later version must load."""

from __future__ import annotations
