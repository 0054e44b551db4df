"""Real clients of other projects, each in an environment of its own, against our server."""
