"""Operations on ids and gradients that no table owns."""

from __future__ import annotations
