"""Tables of one process on one device: configuration, row layout, storage, optimizers."""

from __future__ import annotations
