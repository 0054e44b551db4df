"""Measures steps of modules on a device, for the planner."""
