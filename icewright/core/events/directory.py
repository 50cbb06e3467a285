"""Resolve the tables that events name to configured catalogs, by name, alias and location."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from icewright.core.errors import BadEvent
from icewright.core.events.model import CommitReported, Event, Message, MetadataChanged, ScanReported, TableTouched
from icewright.core.paths import directory_key, key, same_place, split
from icewright.core.words import near

_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def folder_contains(folder: str, file: str) -> bool:
    """Return whether the file lies below the folder, whichever way both are spelled."""
    return key(file).startswith(directory_key(folder)) and same_place(split(folder), split(file), _SCHEMES, {})


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """The aliases of a configured catalog, and the locations of its tables."""

    aliases: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedMessage:
    """A message with the names of configured catalogs, and the faults of events that concern other catalogs."""

    message: Message
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Directory:
    """The catalogs of the configuration, by name."""

    catalogs: Mapping[str, CatalogEntry]

    def named(self, name: str) -> str | None:
        """Return the name of the catalog with this name or alias."""
        if name in self.catalogs:
            return name
        return next((ours for ours, catalog in self.catalogs.items() if name in catalog.aliases), None)

    def resolve(self, message: Message) -> ResolvedMessage:
        """Return the message with configured names. Raises `BadEvent` for an unknown catalog, unless `foreign`."""
        events: list[Event] = []
        unknown: list[str] = []
        for event in message.events:
            match event:
                case TableTouched(names):
                    ours = [self._ours(name, unknown) for name in names]
                    resolved = tuple(name for name in ours if name is not None)
                    events += [replace(event, names=resolved)] if resolved else []
                case ScanReported(table=table) | CommitReported(table=table):
                    name = self._ours(table, unknown)
                    events += [replace(event, table=name)] if name is not None else []
                case MetadataChanged(location):
                    holding = tuple(
                        n for n, k in self.catalogs.items() if any(folder_contains(p, location) for p in k.locations)
                    )
                    events.append(replace(event, catalogs=holding))
        missing = [f"there is no catalog {name}" for name in dict.fromkeys(unknown)]
        if missing and not message.foreign:
            remedy = "if a catalog has that name where the event comes from, add it to catalogs.*.aliases"
            hints = [near(name, tuple(self.catalogs)) for name in dict.fromkeys(unknown)]
            raise BadEvent([f"{fault}{hint}; {remedy}" for fault, hint in zip(missing, hints, strict=True)])
        return ResolvedMessage(replace(message, events=tuple(events)), tuple(missing))

    def _ours(self, name: tuple[str, ...], unknown: list[str]) -> tuple[str, ...] | None:
        catalog = self.named(name[0])
        if catalog is None:
            unknown.append(name[0])
            return None
        return (catalog, *name[1:])
