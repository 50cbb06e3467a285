"""Metadata work done inside the service: no JVM, one module an operation."""
