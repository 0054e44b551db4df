"""Sends changed rows from a trainer to the replicas that serve them."""
