"""Checkpoints: a manifest and one Arrow file per table and shard, complete or absent."""

from __future__ import annotations
