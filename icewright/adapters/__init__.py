"""Implementations of the ports: catalogs, files, engines, the state store, alert channels."""
