"""The training job: its configuration, loop, metrics, logs, checkpoints and plots."""

from __future__ import annotations
