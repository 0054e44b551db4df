"""Who owns a key. Pure functions: the same answer in training, saving, loading and serving."""
