"""Measures steps of modules on a device, for plans."""
