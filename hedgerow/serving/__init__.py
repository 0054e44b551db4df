"""Trained models that answer requests: export, versions, servers and clients."""

from __future__ import annotations
