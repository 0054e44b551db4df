"""What the repository is checked and recorded with."""

from __future__ import annotations
