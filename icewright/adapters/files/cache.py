"""The manifest cache: the entries of manifests by path and fingerprint, in one SQLite file.

The fingerprint, in the column `length`, tells apart manifests that had the same path at different times. `turn` counts
loads; `used` is the turn of a manifest's last recorded use, by which manifests are evicted. Each row holds one Arrow
record batch as an IPC message without its schema, so that a thousand of them are read as one stream. SQLite makes the
file safe for several processes and after a crash; a broken file is deleted and created again.
"""

from __future__ import annotations

import io
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from icewright.adapters.private import make_private

_VERSION = 1  # of the schema of the rows; each version has a file of its own
_SCHEMA = """
create table if not exists manifests (
  path text primary key, length integer not null, batch blob not null, used integer not null
) without rowid;
create table if not exists size (id integer primary key check (id = 1), bytes integer not null, turn integer not null);
insert or ignore into size values (1, 0, 0);
"""
_OVERHEAD = 200  # bytes of a row beside its batch
_LOADS_BETWEEN_UPDATES = 4  # a use is recorded only after so many loads, as writing costs more than reading


@dataclass
class Cache:
    """A cache of at most `max_bytes` of manifests in `folder`; the least recently used are evicted first."""

    folder: Path
    max_bytes: int
    schema: pa.Schema
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def load(self, manifests: Sequence[tuple[str, int]]) -> dict[str, pa.RecordBatch]:
        """Return the cached entries of these manifests by path; one with another fingerprint counts as missing."""
        if not manifests:
            return {}
        fingerprints = dict(manifests)
        try:
            with self._lock, self._database() as database:
                turn = database.execute("update size set turn = turn + 1 returning turn").fetchone()[0]
                rows: list[tuple[str, int, bytes, int]] = []
                for start in range(0, len(manifests), 500):
                    paths = [p for p, _ in manifests[start : start + 500]]
                    places = ",".join("?" * len(paths))
                    rows += database.execute(
                        f"select path, length, batch, used from manifests where path in ({places})",  # noqa: S608
                        paths,
                    ).fetchall()
                stale = [(turn, path) for path, _, _, used in rows if turn - used > _LOADS_BETWEEN_UPDATES]
                database.executemany("update manifests set used = ? where path = ?", stale)
                database.commit()
        except (sqlite3.DatabaseError, OSError) as error:
            self._give_up(error)
            return {}
        current = {path: batch for path, fingerprint, batch, _ in rows if fingerprints[path] == fingerprint}
        try:
            return dict(zip(current, _read(list(current.values()), self.schema), strict=True))
        except (pa.ArrowInvalid, OSError, ValueError):  # some row is no batch: find out which
            return {path: decoded[0] for path, batch in current.items() if (decoded := self._decode_one(batch))}

    def _decode_one(self, batch: bytes) -> list[pa.RecordBatch]:
        try:
            return _read([batch], self.schema)
        except (pa.ArrowInvalid, OSError, ValueError):
            return []

    def save(self, batches: Mapping[tuple[str, int], pa.RecordBatch]) -> None:
        """Store manifests. A full disk or a locked file disables the cache and raises nothing."""
        rows = [(path, fingerprint, batch.serialize().to_pybytes()) for (path, fingerprint), batch in batches.items()]
        try:
            with self._lock, self._database() as database:
                turn = database.execute("select turn from size").fetchone()[0]
                for path, fingerprint, blob in rows:
                    deleted = database.execute("delete from manifests where path = ? returning length(batch)", (path,))
                    freed = sum(n + _OVERHEAD for (n,) in deleted.fetchall())
                    database.execute("insert into manifests values (?, ?, ?, ?)", (path, fingerprint, blob, turn))
                    database.execute("update size set bytes = bytes + ?", (len(blob) + _OVERHEAD - freed,))
                self._evict(database)
                database.commit()
        except (sqlite3.DatabaseError, OSError) as error:
            self._give_up(error)

    def _evict(self, database: sqlite3.Connection) -> None:
        total_bytes = database.execute("select bytes from size").fetchone()[0]
        if total_bytes <= self.max_bytes:
            return
        aim = self.max_bytes * 9 // 10  # a tenth at a time, so that not every save evicts
        oldest = database.execute("select path, length(batch) from manifests order by used").fetchall()
        for path, length in oldest:
            if total_bytes <= aim:
                break
            database.execute("delete from manifests where path = ?", (path,))
            total_bytes -= length + _OVERHEAD
        database.execute("update size set bytes = ?", (total_bytes,))

    @property
    def _file(self) -> Path:
        return self.folder / f"manifests-{_VERSION}.db"

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        make_private(self.folder)
        with closing(sqlite3.connect(self._file, timeout=30, isolation_level="IMMEDIATE")) as database:
            with suppress(sqlite3.OperationalError):  # another process changes it at this moment
                database.execute("pragma journal_mode = wal")
            database.execute("pragma synchronous = off")  # rows that a power cut loses are only read again
            database.executescript(_SCHEMA)
            yield database

    def _give_up(self, error: Exception) -> None:
        """Remove a broken file; leave a locked file, a full disk or a missing folder for a later attempt."""
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            for path in self.folder.glob(f"{self._file.name}*"):
                path.unlink(missing_ok=True)


def _read(messages: Sequence[bytes], schema: pa.Schema) -> list[pa.RecordBatch]:
    if not messages:
        return []
    stream = io.BytesIO(b"".join((schema.serialize().to_pybytes(), *messages)))
    with pa.ipc.open_stream(stream) as reader:
        return list(reader)
