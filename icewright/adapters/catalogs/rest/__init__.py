"""Catalogs of type `rest`: Iceberg's REST protocol over PyIceberg's session."""

from icewright.adapters.catalogs.rest.catalog import RestCatalog

__all__ = ["RestCatalog"]
