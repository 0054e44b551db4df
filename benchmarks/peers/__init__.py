"""Peers: each is a process of the environment that has its library.

Nothing here imports the rest of the package: the other environment does not have it.
"""

from __future__ import annotations
