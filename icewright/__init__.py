"""Icewright keeps Apache Iceberg tables healthy by itself."""

__version__ = "0.1.0"
