"""Monolith's tables by slot name, in one process, over ranks and on servers."""
