"""Several tables of one process as one store."""
