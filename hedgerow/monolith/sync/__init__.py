"""Monolith's sync of changed rows to prediction servers."""
