"""Monolith's synchronous training: its start, transports and GPU options."""
