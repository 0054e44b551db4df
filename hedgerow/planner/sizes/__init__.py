"""Bytes that a table takes, in three layouts."""

from __future__ import annotations
