"""Revisions of the schema, one module each, applied in order."""
