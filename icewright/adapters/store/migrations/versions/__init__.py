"""One module a revision, applied in order."""
