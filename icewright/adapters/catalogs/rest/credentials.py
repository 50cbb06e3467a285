"""Credentials that a REST catalog vends for the files of one table, cached until shortly before they expire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from icewright.adapters.catalogs.rest.client import StorageCredential
from icewright.core.table import TableRef
from icewright.ports import Clock, VendedCredentials

_EXPIRES = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at")
_EXPIRES_AZURE = "adls.sas-token-expires-at-ms."
_RENEWAL_MARGIN = timedelta(minutes=3)  # renewed before they expire, as a request for a large file takes long
_CREDENTIAL_KEYS = ("s3.access-key-id", "s3.session-token", "gcs.oauth2.token", "adls.sas-token", "adls.token")


@dataclass
class CredentialStore:
    """Cache vended credentials by path prefix. `renew` loads a table's credentials again and passes them to `keep`."""

    clock: Clock
    renew: Callable[[TableRef], None]
    _grants: dict[str, tuple[TableRef, VendedCredentials]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _renewing: dict[TableRef, threading.RLock] = field(default_factory=dict, init=False)

    def keep(
        self,
        ref: TableRef,
        location: str,
        base: Mapping[str, str],
        config: Mapping[str, str],
        credentials: tuple[StorageCredential, ...],
    ) -> None:
        """Store the credentials of a response, by their prefixes, or else for the table's location."""
        shared = {**base, **config}
        if credentials:
            grants = [(c.prefix, {**shared, **c.config}) for c in credentials]
        elif any(key.startswith(_CREDENTIAL_KEYS) for key in config):
            grants = [(location, shared)]
        else:
            return
        with self._lock:
            for prefix, properties in grants:
                key = prefix.rstrip("/")
                self._grants[key] = (ref, VendedCredentials(key, properties, _expiry(properties)))

    def grant(self, path: str) -> VendedCredentials | None:
        """Return the credentials of the longest prefix of the path, renewed when they are about to expire.

        Returns None if there are none.
        """
        entry = self._lookup(path)
        if entry is None or not self._stale(entry[1]):
            return entry[1] if entry else None
        with self._renewing.setdefault(entry[0], threading.RLock()):
            renewed = self._lookup(path)  # another thread may have renewed it meanwhile
            if renewed is not None and self._stale(renewed[1]):
                self.renew(renewed[0])
                renewed = self._lookup(path)
        return renewed[1] if renewed else None

    def _stale(self, grant: VendedCredentials) -> bool:
        return grant.expires is not None and self.clock.now() > grant.expires - _RENEWAL_MARGIN

    def _lookup(self, path: str) -> tuple[TableRef, VendedCredentials] | None:
        if not self._grants:
            return None
        folder = path.rstrip("/")
        with self._lock:
            while folder:
                if (entry := self._grants.get(folder)) is not None:
                    return entry
                folder = folder.rpartition("/")[0]
        return None


def _expiry(properties: Mapping[str, str]) -> datetime | None:
    times = [v for k, v in properties.items() if k in _EXPIRES or k.startswith(_EXPIRES_AZURE)]
    expiries = [int(t) for t in times if str(t).isdecimal()]
    return datetime.fromtimestamp(min(expiries) / 1000, UTC) if expiries else None
