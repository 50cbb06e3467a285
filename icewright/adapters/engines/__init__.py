"""Engines carry out steps: Spark rewrites data, the service itself does metadata work."""
