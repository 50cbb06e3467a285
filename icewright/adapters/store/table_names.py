"""Lookup of tables by the names and files that other systems send, in any spelling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from icewright.adapters.store.schema import TABLES
from icewright.adapters.store.statements import name_columns, namespace_of
from icewright.core.events.directory import holds
from icewright.core.events.model import Name
from icewright.core.paths import directory_key, split
from icewright.core.table import TableRef

_NAME = [TABLES.c[name] for name in ("id", "catalog", "namespace", "name")]
_PLACE = [*_NAME, *(TABLES.c[n] for n in ("location", "write_paths", "metadata_location", "evaluated_location"))]
# everything after the last slash is cut off
_METADATA_FOLDER = sa.func.rtrim(TABLES.c.metadata_location, sa.func.replace(TABLES.c.metadata_location, "/", ""))
_CHUNK = 2000  # parameters of one statement
_Value = TypeVar("_Value")
_SCHEMES = ("s3", "s3a", "s3n")
_MAX_DEPTH = 32  # folders above a file that are considered


def by_name(connection: sa.Connection, names: Iterable[Name]) -> Mapping[Name, Sequence[Any]]:
    """Return the rows of tables by the name that was sent: exactly, else with dots anywhere, else in any case.

    Engines write `a.b.c` whether a dot is part of a name or stands between two, and Trino writes all in lower case.
    """
    unique = sorted(set(names))
    rows = _exact(connection, unique)
    missing: dict[str, list[Name]] = {}
    for name in unique:
        if name not in rows:
            missing.setdefault(name[0], []).append(name)
    for catalog, of_catalog in missing.items():
        rows |= _alike(connection, catalog, of_catalog)
    return rows


def _exact(connection: sa.Connection, names: Sequence[Name]) -> dict[Name, Sequence[Any]]:
    refs = [name_columns(TableRef(name[0], name[1:-1], name[-1])) for name in names]
    rows: dict[Name, Sequence[Any]] = {}
    for chunk in _chunks([tuple(ref.values()) for ref in refs]):
        same_name = sa.tuple_(*(TABLES.c[column] for column in ("catalog", "namespace", "name"))).in_(chunk)
        for row in connection.execute(sa.select(*_NAME).where(~TABLES.c.dropped, same_name)):
            rows[(row.catalog, *namespace_of(row.namespace), row.name)] = [row]
    return rows


def _alike(connection: sa.Connection, catalog: str, names: Sequence[Name]) -> dict[Name, Sequence[Any]]:
    """Return tables whose names read the same with dots between all parts, else in another case."""
    dotted: dict[str, list[Any]] = {}
    folded: dict[str, list[Any]] = {}
    for row in _with_names(connection, catalog, {end for name in names for end in _possible_names(name[1:])}):
        full = ".".join((*namespace_of(row.namespace), row.name))
        dotted.setdefault(full, []).append(row)
        folded.setdefault(full.casefold(), []).append(row)
    full_names = {name: ".".join(name[1:]) for name in names}
    return {name: dotted.get(full) or folded.get(full.casefold(), []) for name, full in full_names.items()}


def _possible_names(parts: Name) -> Iterator[str]:
    """Yield the possible names of the table itself: the last part, the last two joined by a dot, and so on."""
    return (".".join(parts[i:]) for i in range(1, len(parts)))


def _with_names(connection: sa.Connection, catalog: str, ends: set[str]) -> Iterator[Any]:
    for chunk in _chunks(sorted(ends)):
        alike = TABLES.c.name.in_(chunk) | sa.func.lower(TABLES.c.name).in_([end.lower() for end in chunk])
        query = sa.select(*_NAME).where(TABLES.c.catalog == catalog, ~TABLES.c.dropped, alike).order_by(TABLES.c.id)
        yield from connection.execute(query)


def by_location(connection: sa.Connection, locations: Iterable[str]) -> Mapping[str, Sequence[Any]]:
    """Return the rows of tables whose folders hold a metadata file: of folders within one another, the innermost."""
    above = {location: _folders(location) for location in sorted(set(locations))}
    usual = {location: folders[1:2] for location, folders in above.items() if folders[0].endswith("/metadata")}
    rows = _nearest(connection, usual, [TABLES.c.location])
    rest = {location: folders for location, folders in above.items() if not rows.get(location)}
    return {**rows, **_nearest(connection, rest, [TABLES.c.location, _METADATA_FOLDER])}


def _nearest(
    connection: sa.Connection, above: Mapping[str, Sequence[str]], columns: Sequence[sa.ColumnElement[str]]
) -> dict[str, Sequence[Any]]:
    """Return the tables of the nearest of these folders that belongs to a table."""
    places = {spelled for folders in above.values() for folder in folders for spelled in _spellings(folder)}
    rows: dict[int, Any] = {}
    for chunk in _chunks(sorted(places)):
        near = sa.or_(*(column.in_(chunk) for column in columns))
        rows |= {row.id: row for row in connection.execute(sa.select(*_PLACE).where(~TABLES.c.dropped, near))}
    by_folder: dict[str, dict[int, tuple[Any, str]]] = {}
    for row in rows.values():
        for folder in (row.location, *(row.write_paths or ()), row.metadata_location.rpartition("/")[0]):
            if folder:
                by_folder.setdefault(directory_key(folder), {})[row.id] = (row, folder)
    return {location: _innermost(by_folder, folders, location) for location, folders in above.items()}


def _innermost(
    by_folder: Mapping[str, Mapping[int, tuple[Any, str]]], folders: Sequence[str], location: str
) -> Sequence[Any]:
    for folder in folders:  # nearest first
        candidates = by_folder.get(directory_key(folder), {}).values()
        if rows := [row for row, spelled in candidates if holds(spelled, location)]:
            return rows
    return []


def _folders(location: str) -> list[str]:
    """Return the folders above a file, nearest first, without the one that is the bucket."""
    place = split(location)
    parts = [part for part in place.path.split("/") if part][:-1]
    prefix = f"{place.scheme}://{place.authority}" if place.scheme else ""
    return ["/".join((prefix, *parts[:n])) for n in range(len(parts), 0, -1)][:_MAX_DEPTH] or [prefix]


def _spellings(folder: str) -> Iterator[str]:
    """Yield a folder as writers may spell it: s3a:// for s3://, file:/ for file:///, with a slash at its end."""
    place = split(folder)
    roots = [f"{place.scheme}://{place.authority}" if place.scheme else ""]
    if place.scheme in _SCHEMES:
        roots = [f"{scheme}://{place.authority}" for scheme in _SCHEMES]
    elif place.scheme in ("", "file"):
        roots = ["", "file:", "file://"]
    for root in roots:
        yield f"{root}{place.path.rstrip('/')}"
        yield f"{root}{place.path.rstrip('/')}/"


def _chunks(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    return (values[i : i + _CHUNK] for i in range(0, len(values), _CHUNK))
