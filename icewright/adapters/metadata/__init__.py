"""Iceberg's table metadata files: read, changed and told apart. A tool of the adapters, and no adapter itself."""
