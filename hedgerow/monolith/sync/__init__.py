"""Monolith's sync of changed rows to the servers that predict."""
