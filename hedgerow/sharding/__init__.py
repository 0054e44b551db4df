"""Rows that are spread over ranks, and the exchanges between the ranks."""
