"""Which tables the names and files mean that others send, however they spell them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.schema import TABLES
from icewright.core.events.directory import holds
from icewright.core.events.model import Name
from icewright.core.paths import directory_key, split

_NAME = [TABLES.c[name] for name in ("id", "catalog", "namespace", "name")]
_PLACE = [*_NAME, *(TABLES.c[n] for n in ("location", "write_paths", "metadata_location", "evaluated_location"))]
_CHUNK = 2000  # values of a statement
_SCHEMES = ("s3", "s3a", "s3n")
_DEEPEST = 32  # folders above a file


def by_name(connection: sa.Connection, names: Iterable[Name]) -> Mapping[Name, Sequence[Any]]:
    """The rows of tables by the name that was sent: exactly, else with dots anywhere, else in any case.

    Engines write `a.b.c` whether a dot is part of a name or stands between two, and Trino writes all in lower case.
    """
    wanted: dict[str, set[Name]] = {}
    for name in names:
        wanted.setdefault(name[0], set()).add(name)
    found: dict[Name, Sequence[Any]] = {}
    for catalog, mine in wanted.items():
        rows = list(_with_names(connection, catalog, {end for name in mine for end in _ends(name[1:])}))
        for name in mine:
            found[name] = _meant(rows, name)
    return found


def _ends(parts: Name) -> Iterator[str]:
    """What the table's own name may be: the last part, the last two with a dot between them, and so on."""
    return (".".join(parts[i:]) for i in range(1, len(parts)))


def _with_names(connection: sa.Connection, catalog: str, ends: set[str]) -> Iterator[Any]:
    for chunk in _chunks(sorted(ends)):
        alike = TABLES.c.name.in_(chunk) | sa.func.lower(TABLES.c.name).in_([end.lower() for end in chunk])
        query = sa.select(*_NAME).where(TABLES.c.catalog == catalog, ~TABLES.c.dropped, alike).order_by(TABLES.c.id)
        yield from connection.execute(query)


def _meant(rows: Sequence[Any], name: Name) -> Sequence[Any]:
    said, dotted = name[1:], ".".join(name[1:])
    parts = [(row, (*json.loads(row.namespace), row.name)) for row in rows]
    for means in (
        lambda full: full == said,
        lambda full: ".".join(full) == dotted,
        lambda full: ".".join(full).casefold() == dotted.casefold(),
    ):
        if found := [row for row, full in parts if means(full)]:
            return found
    return []


def by_location(connection: sa.Connection, locations: Iterable[str]) -> Mapping[str, Sequence[Any]]:
    """The rows of tables whose folders hold a metadata file: of folders within one another, the innermost."""
    wanted = sorted(set(locations))
    places = {spelled for location in wanted for folder in _folders(location) for spelled in _spellings(folder)}
    beside = {s for location in wanted for s in _spellings(location.rpartition("/")[0]) if not s.endswith("/")}
    rows: dict[int, Any] = {}
    for chunk in _chunks(sorted(places)):
        rows |= {row.id: row for row in connection.execute(_placed(TABLES.c.location.in_(chunk)))}
    for chunk in _chunks(sorted(beside), 100):
        near = sa.or_(*(TABLES.c.metadata_location.startswith(f"{folder}/", autoescape=True) for folder in chunk))
        rows |= {row.id: row for row in connection.execute(_placed(near))}
    return {location: _innermost(list(rows.values()), location) for location in wanted}


def _placed(where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(*_PLACE).where(~TABLES.c.dropped, where)


def _innermost(rows: Sequence[Any], location: str) -> Sequence[Any]:
    depths: dict[int, list[Any]] = {}
    for row in rows:
        folders = [f for f in (row.location, *(row.write_paths or ()), row.metadata_location.rpartition("/")[0]) if f]
        deep = max((len(directory_key(folder)) for folder in folders if holds(folder, location)), default=0)
        depths.setdefault(deep, []).append(row)
    depths.pop(0, None)
    return depths[max(depths)] if depths else []


def _folders(location: str) -> list[str]:
    """The folders above a file, from the nearest, without the one that a bucket is."""
    place = split(location)
    parts = [part for part in place.path.split("/") if part][:-1]
    prefix = f"{place.scheme}://{place.authority}" if place.scheme else ""
    return ["/".join((prefix, *parts[:n])) for n in range(len(parts), 0, -1)][:_DEEPEST]


def _spellings(folder: str) -> Iterator[str]:
    """A folder as writers may spell it: s3a:// for s3://, file:/ for file:///, with a slash at its end."""
    place = split(folder)
    roots = [f"{place.scheme}://{place.authority}" if place.scheme else ""]
    if place.scheme in _SCHEMES:
        roots = [f"{scheme}://{place.authority}" for scheme in _SCHEMES]
    elif place.scheme in ("", "file"):
        roots = ["", "file:", "file://"]
    for root in roots:
        yield f"{root}{place.path.rstrip('/')}"
        yield f"{root}{place.path.rstrip('/')}/"


def _chunks(values: Sequence[str], size: int = _CHUNK) -> Iterator[Sequence[str]]:
    return (values[i : i + size] for i in range(0, len(values), size))
