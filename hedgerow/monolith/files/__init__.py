"""Monolith's table files, read and written."""
