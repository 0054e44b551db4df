"""Processes of one job: who they are, how they come together, what their connection carries."""
