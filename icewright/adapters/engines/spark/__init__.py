"""Spark: a Java runtime, one session a pool, and Iceberg's procedures called through SQL."""
