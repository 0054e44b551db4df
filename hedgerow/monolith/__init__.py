"""The original's formats: its table files read and written by small decoders of our own."""

from __future__ import annotations
