"""The training job: what it measures, where it tells it, and how it looks as a picture."""

from __future__ import annotations
