"""Catalogs: what changed, loading a table's metadata, committing a change to it."""
