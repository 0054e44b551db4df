"""The command line: one file per command."""

from __future__ import annotations
