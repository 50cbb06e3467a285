"""The scopes of catalogs, as configured or set by the API or on a page, and what they leave of a table's operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core.describe import MaintenanceStatus, table_status
from icewright.core.errors import StorageUnavailable
from icewright.core.policy import ENABLED, Operation
from icewright.core.table import TableMetadata
from icewright.flow.runtime import Runtime, Scope
from icewright.ports import CatalogSchedule, CatalogSettings, Clock, TableRow

_FRESH = timedelta(seconds=5)  # for which the settings are read once


class StoredScopes(Mapping[str, Scope]):
    """The scopes of the configured catalogs, with the settings that the store has of them."""

    def __init__(self, configured: Mapping[str, Scope], catalogs: CatalogSchedule, clock: Clock) -> None:
        self._configured, self._catalogs, self._clock = configured, catalogs, clock
        self._read_at: datetime | None = None
        self._scopes: Mapping[str, Scope] = {}

    def __getitem__(self, name: str) -> Scope:
        return self._current()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configured)

    def __len__(self) -> int:
        return len(self._configured)

    def read_again(self) -> None:
        """Read the settings at the next use, as they have changed."""
        self._read_at = None

    def _current(self) -> Mapping[str, Scope]:
        """Return the scopes; where the store does not answer, as they were last known."""
        now = self._clock.now()
        if self._read_at is None or not timedelta(0) <= now - self._read_at < _FRESH:
            try:
                settings = {row.name: row.settings for row in self._catalogs.list()}
            except StorageUnavailable:
                if not self._scopes:
                    raise
            else:
                self._scopes = {n: with_settings(s, settings.get(n)) for n, s in self._configured.items()}
                self._read_at = now
        return self._scopes


def with_settings(configured: Scope, settings: CatalogSettings | None) -> Scope:
    """Return the scope with the settings in the place of what the configuration says."""
    if settings is None:
        return configured
    interval = None if settings.interval_seconds is None else timedelta(seconds=settings.interval_seconds)
    return replace(
        configured,
        enabled=configured.enabled if settings.enabled is None else settings.enabled,
        namespaces=configured.namespaces if settings.namespaces is None else settings.namespaces,
        tables=configured.tables if settings.tables is None else settings.tables,
        interval=interval or configured.interval,
        configured=configured,
        settings=settings,
    )


def set_catalog(runtime: Runtime, name: str, settings: CatalogSettings) -> None:
    """Set a catalog in the place of its configuration, and list it soon; empty settings take back what is set."""
    now = runtime.clock.now()
    runtime.store.catalogs.record_settings(name, None if settings == CatalogSettings() else settings, now)
    runtime.store.catalogs.detect_soon([name], now)
    if isinstance(runtime.scopes, StoredScopes):
        runtime.scopes.read_again()


def maintained(
    runtime: Runtime, row: TableRow, metadata: TableMetadata | None = None
) -> Mapping[Operation, MaintenanceStatus]:
    """Return the maintenance status of each operation, by its last run, its catalog's `enabled` and the settings.

    Without metadata, table properties and policies of the catalog are not considered.
    """
    scope, knobs = runtime.scopes.get(row.ref.catalog), runtime.policy().knobs_for(row.ref, metadata)
    switched_on = scope is not None and scope.enabled
    enabled = {op: switched_on and knobs[ENABLED[op]] for op in Operation}
    return table_status(runtime.store.runs.history(row.ref, row.table_uuid or ""), enabled)
