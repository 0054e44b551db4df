"""Many ranks: rows spread over processes, and what travels between them."""
