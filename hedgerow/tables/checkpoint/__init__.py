"""Checkpoints: a manifest and one Arrow file a table and shard, whole or not there."""

from __future__ import annotations
