"""Requests, responses and configurations of TensorFlow Serving (package tensorflow.serving)."""

from __future__ import annotations

from .lazy import names_of

__getattr__ = names_of(__name__)
