"""Operations on ids and gradients that are independent of tables."""

from __future__ import annotations
