"""Registration of a table's metadata file in a catalog of any type, through PyIceberg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, TableAlreadyExistsError

from icewright.adapters.catalogs.bounded import load_bounded_catalog
from icewright.adapters.catalogs.translate import CatalogProperties
from icewright.core.errors import CatalogUnavailable, Refused
from icewright.core.table import TableRef


def require_namespace(properties: CatalogProperties, ref: TableRef) -> None:
    """Raise `Refused` when there is no namespace for the table."""
    with _opened(properties, ref):
        pass


def register(properties: CatalogProperties, ref: TableRef, metadata_location: str, *, replace: bool) -> None:
    """Register a table, as `Registering.register` says."""
    identifier = (*ref.namespace, ref.name)
    with _opened(properties, ref) as catalog:
        if replace:
            catalog.drop_table(identifier)
        catalog.register_table(identifier, metadata_location)


@contextmanager
def _opened(properties: CatalogProperties, ref: TableRef) -> Iterator[Catalog]:
    """Yield the catalog, which has the namespace; some would make a namespace of any name by the way."""
    try:
        with load_bounded_catalog(properties.name, properties.pyiceberg_properties()) as catalog:
            catalog.load_namespace_properties(ref.namespace)
            yield catalog
    except (TableAlreadyExistsError, NamespaceAlreadyExistsError) as error:
        raise Refused(f"{ref} exists already: name another table") from error
    except NoSuchNamespaceError as error:
        namespace = ".".join((ref.catalog, *ref.namespace))
        raise Refused(
            f"{ref}: there is no such namespace: create it, as by CREATE NAMESPACE {namespace} in Spark"
        ) from error
    except Exception as error:  # PyIceberg lets through what its catalogs and file systems raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CatalogUnavailable(f"{ref} could not be registered: {lines[0]}", ref.catalog) from error
