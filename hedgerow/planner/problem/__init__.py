"""The inputs of the planner: machines, tables and their options; and the solver's answer."""

from __future__ import annotations
