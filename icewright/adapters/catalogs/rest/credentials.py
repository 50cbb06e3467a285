"""Credentials that a REST catalog lends for the files of one table, kept until they are about to expire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from icewright.adapters.catalogs.rest.answers import StorageCredential
from icewright.core.table import TableRef
from icewright.ports import Clock, VendedCredentials

_EXPIRES = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at")
_EXPIRES_AZURE = "adls.sas-token-expires-at-ms."
_EARLY = timedelta(minutes=3)  # before they expire they are renewed: a request of a large file takes its time
_LENT = ("s3.access-key-id", "s3.session-token", "gcs.oauth2.token", "adls.sas-token", "adls.token")


@dataclass
class CredentialStore:
    """What was lent, by prefix. `renew` loads the credentials of a table anew and gives them to `keep`."""

    clock: Clock
    renew: Callable[[TableRef], None]
    _grants: dict[str, tuple[TableRef, VendedCredentials]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _renewing: threading.RLock = field(default_factory=threading.RLock, init=False)

    def keep(
        self,
        ref: TableRef,
        location: str,
        base: Mapping[str, str],
        config: Mapping[str, str],
        credentials: tuple[StorageCredential, ...],
    ) -> None:
        """What an answer lends: for the prefixes that it names, else for the table's location."""
        said = {**base, **config}
        if credentials:
            lent = [(c.prefix, {**said, **c.config}) for c in credentials]
        elif any(key.startswith(_LENT) for key in config):
            lent = [(location, said)]
        else:
            return
        with self._lock:
            for prefix, properties in lent:
                key = prefix.rstrip("/")
                self._grants[key] = (ref, VendedCredentials(key, properties, _expiry(properties)))

    def grant(self, path: str) -> VendedCredentials | None:
        """Return what opens a file: the grant of the longest prefix, renewed when it is about to expire."""
        found = self._found(path)
        if found is None or not self._stale(found[1]):
            return found[1] if found else None
        with self._renewing:
            again = self._found(path)  # another thread may have renewed it meanwhile
            if again is not None and self._stale(again[1]):
                self.renew(again[0])
                again = self._found(path)
        return again[1] if again else None

    def _stale(self, grant: VendedCredentials) -> bool:
        return grant.expires is not None and self.clock.now() > grant.expires - _EARLY

    def _found(self, path: str) -> tuple[TableRef, VendedCredentials] | None:
        if not self._grants:
            return None
        folder = path.rstrip("/")
        with self._lock:
            while folder:
                if (found := self._grants.get(folder)) is not None:
                    return found
                folder = folder.rpartition("/")[0]
        return None


def _expiry(properties: Mapping[str, str]) -> datetime | None:
    times = [v for k, v in properties.items() if k in _EXPIRES or k.startswith(_EXPIRES_AZURE)]
    known = [int(t) for t in times if str(t).isdecimal()]
    return datetime.fromtimestamp(min(known) / 1000, UTC) if known else None
