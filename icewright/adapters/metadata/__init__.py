"""Iceberg's table metadata files: parsing, changing and identifying them. Shared by the adapters."""
