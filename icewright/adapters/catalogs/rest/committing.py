"""Commits over REST, from the first request to the proof of the outcome.

The server compares only the table's uuid and the refs that a request names, not all of the metadata: a ref that another
writer sets meanwhile on a removed snapshot is dropped with the snapshot. So the metadata file that the commit replaced
is read afterwards, and a lost ref is restored before the conflict is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import msgspec

from icewright.adapters.catalogs.replies import table_reply
from icewright.adapters.catalogs.rest import commits, restoring
from icewright.adapters.catalogs.rest.client import Loaded, RestClient, RestResponse, loaded
from icewright.adapters.catalogs.staging import NeverSent, RequestOutcomeUnknown, conflict, gone
from icewright.adapters.metadata.document import Document, Editor, decode
from icewright.adapters.metadata.parsing import parse
from icewright.core.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    InvariantViolated,
    MetadataTooLarge,
    Refused,
    TableNotFound,
    TableReplaced,
)
from icewright.core.runs import backoff
from icewright.core.table import FORMAT_V3, SnapshotRef, TableMetadata, TableRef
from icewright.ports import AddSnapshot, Change, Clock, RemoveSnapshots, RestoreSnapshots, SetRefs, SetStatistics
from icewright.ports.work import progress

_OK, _NOT_FOUND, _CONFLICT, _TOO_MANY, _AWAY = 200, 404, 409, 429, 503
_RETRYABLE = frozenset({_TOO_MANY, _AWAY})
_REFUSALS = frozenset(range(400, 500)) - {408, 499}  # the server did nothing, unless a gateway sent the request twice
_TRIES = 4  # of a request that the server did not want to hear
_MAX_LOADS = 3  # at the table after a lost reply
_LONGEST_WAIT = timedelta(seconds=30)

_OF_NEW_FILES = AddSnapshot | SetStatistics  # which the table needs, should the commit come yet

Fetch = Callable[[TableRef], tuple[TableMetadata, Loaded | None]]


class SizeReader(Protocol):
    """The part of the Files port that proving a commit needs."""

    def read(self, path: str, /) -> bytes:
        """Return the content of a file."""


@dataclass(frozen=True)
class Committing:
    """Commit changes to tables over REST and prove the outcome of each."""

    client: RestClient
    files: SizeReader
    clock: Clock
    path: str
    fetch: Fetch

    def run(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Commit `change` to `base`; see `Catalog.commit`."""
        if isinstance(change, RestoreSnapshots):
            return self._restore_snapshots(base, change)
        if isinstance(change, AddSnapshot) and base.format_version >= FORMAT_V3:
            change = self._with_row_ids(base, change)
        request = {"requirements": commits.requirements(base, change), "updates": commits.updates(base, change)}
        self._require_unchanged(base)
        if not request["updates"]:
            return base
        try:
            after = self._committed(base, change, request)
        except Refused:
            if isinstance(change, SetRefs | SetStatistics):
                self._require_unchanged(base)  # else a snapshot that the change names went, which no requirement covers
            raise
        if isinstance(change, RemoveSnapshots):
            self._verify_refs(base, after, change)
        return after

    def _with_row_ids(self, base: TableMetadata, change: AddSnapshot) -> AddSnapshot:
        """Return the change with the fields of row lineage in its snapshot, which adds no rows."""
        rows = {"first-row-id": Editor(self._document_of(base)).get("next-row-id", 0), "added-rows": 0}
        return AddSnapshot({**rows, **change.snapshot}, change.branch)

    def _restore_snapshots(self, base: TableMetadata, change: RestoreSnapshots) -> TableMetadata:
        """Restore snapshots and verify that the server applied the updates in their order."""
        self._require_unchanged(base)
        updates = restoring.updates(self._document_of(base), change)
        if not updates:
            return base
        try:
            requirements = commits.requirements(base, change)
            after = self._committed(base, change, {"requirements": requirements, "updates": updates})
        except Refused:
            self._require_unchanged(base)  # else a snapshot that no requirement covers came in between
            raise
        left = restoring.placeholder_ids(updates) & after.by_id.keys()
        if left or after.last_sequence_number < base.last_sequence_number:
            raise InvariantViolated(
                f"{base.ref}: the server did not apply the restore as it stands: it left snapshots {sorted(left)} and "
                f"sequence number {after.last_sequence_number} (before {base.last_sequence_number}); no file is "
                f"deleted, and {base.metadata_location} is the table as it was"
            )
        return after

    def _require_unchanged(self, base: TableMetadata) -> None:
        """Raise `CommitConflict` if properties or new refs changed since `base`.

        REST requirements do not cover properties and new refs.
        """
        try:
            now, _ = self.fetch(base.ref)
        except TableNotFound as error:
            raise gone(base) from error
        if not _is_current(base, now):
            raise conflict(base)

    def _committed(self, base: TableMetadata, change: Change, request: commits.Json) -> TableMetadata:
        try:
            return self._answered(base, change, request)
        except RequestOutcomeUnknown as error:
            return self._outcome_of_lost_response(base, change, str(error))

    def _answered(self, base: TableMetadata, change: Change, request: commits.Json) -> TableMetadata:
        """Return the table after the commit. Raises `RequestOutcomeUnknown` when no answer tells what became of it."""
        under_way = False  # whether the server may still be at an earlier request
        for attempt in range(1, _TRIES + 1):
            try:
                answer = self._post(base.ref, request)
            except (CatalogUnavailable, Refused) as error:
                if under_way:
                    raise RequestOutcomeUnknown(f"the server was busy, then gave no answer ({error})") from error
                if isinstance(error, NeverSent):
                    raise
                return self._landed_before(base, change, error)
            why = f"the server answered {answer.message}"
            if answer.status == _OK:
                return self._after(base, change, answer)
            if answer.status not in _RETRYABLE:
                if under_way or answer.status not in _REFUSALS:
                    raise RequestOutcomeUnknown(why)
                return self._landed_before(base, change, _refusal(base, answer))
            under_way = under_way or answer.status == _AWAY
            wait = answer.wait or backoff(attempt + 3)
            self.clock.sleep(min(wait, _LONGEST_WAIT).total_seconds())
            try:
                now = self._look(base)
            except (IcewrightError, RequestOutcomeUnknown) as error:
                raise RequestOutcomeUnknown(why) from error
            if commits.has_landed(base, now, change):
                return now  # the commit landed despite the status
            if not _is_current(base, now):
                raise RequestOutcomeUnknown(why) if under_way else conflict(base)
        if under_way and isinstance(change, _OF_NEW_FILES):
            raise RequestOutcomeUnknown(why)
        raise CatalogUnavailable(f"{base.ref}: {self.client.where} takes no commits now ({answer.message})")

    def _post(self, ref: TableRef, request: commits.Json) -> RestResponse:
        progress()  # a commit may be sent again after long waits
        body = {"identifier": {"namespace": ref.namespace, "name": ref.name}, **request}
        try:
            return self.client.send("POST", self.path, table_reply(), data=msgspec.json.encode(body))
        except (MetadataTooLarge, RequestOutcomeUnknown) as error:
            raise RequestOutcomeUnknown(f"no answer came ({error})") from error

    def _after(self, base: TableMetadata, change: Change, answer: RestResponse) -> TableMetadata:
        """Return the metadata in the server's response. Raises `RequestOutcomeUnknown` if it does not show the change.

        A redirect makes a question of a commit, and some gateways answer with a page of their own.
        """
        try:
            table = loaded(base.ref, answer.body, self.client.where)
            location = table.metadata_location
            after = parse(base.ref, location, bytes(table.metadata)) if location else self.fetch(base.ref)[0]
        except (IcewrightError, RequestOutcomeUnknown) as error:
            raise RequestOutcomeUnknown(f"no answer that can be read came ({error})") from error
        if not commits.has_landed(base, after, change):
            raise RequestOutcomeUnknown("no answer that shows the change came")
        return after

    def _look(self, base: TableMetadata) -> TableMetadata:
        """Return the table as it is now. Raises `TableReplaced` where the name leads to another one.

        Neither that nor a name that is gone tells of a commit: under another name the table may need its files.
        """
        now, _ = self.fetch(base.ref)
        if now.table_uuid != base.table_uuid:
            raise TableReplaced(f"{base.ref} is another table than at {base.metadata_location}")
        return now

    def _landed_before(self, base: TableMetadata, change: Change, refusal: IcewrightError) -> TableMetadata:
        """Return the table if it shows that the commit landed; else raise the refusal.

        A gateway that sends a request again hands on what the server says to the second.
        """
        try:
            now = self._look(base)
        except (IcewrightError, RequestOutcomeUnknown) as error:
            raise CommitStateUnknown(f"{refusal}; whether it landed cannot be seen: {error}") from error
        if commits.has_landed(base, now, change):
            return now
        raise refusal

    def _outcome_of_lost_response(self, base: TableMetadata, change: Change, why: str) -> TableMetadata:
        """Return the table if it shows that the commit of a lost response landed; else raise the outcome."""
        for look in range(1, _MAX_LOADS + 1):
            try:
                now = self._look(base)
            except (IcewrightError, RequestOutcomeUnknown) as error:
                if look == _MAX_LOADS:
                    raise CommitStateUnknown(
                        f"{base.ref}: {why} to the commit, and what became of it cannot be seen: {error}"
                    ) from error
            else:
                if commits.has_landed(base, now, change):
                    return now
                if commits.can_never_land(base, now):
                    raise CommitConflict(f"{base.ref}: {why} to the commit, and another writer committed first")
            self.clock.sleep(backoff(look + 3).total_seconds())
        if isinstance(change, _OF_NEW_FILES):  # the server may still be at it
            raise CommitStateUnknown(f"{base.ref}: {why} to the commit, and the table does not show it yet")
        raise CommitConflict(f"{base.ref}: {why} to the commit, and the table does not show it")

    def _verify_refs(self, base: TableMetadata, after: TableMetadata, change: RemoveSnapshots) -> None:
        """Verify that the commit dropped no ref that was unknown to the plan; restore those that it dropped."""
        if base.metadata_location in (after.metadata_location, *after.metadata_log[-1:]):
            return  # it replaced what was planned on, or there was nothing to do
        replaced, document = self._replaced_version(base, after)
        lost = commits.lost_refs(replaced, after, change)
        if not lost:
            return
        for ref, _ in lost:
            self._restore_ref(after, ref, document)
        names = ", ".join(ref.name for ref, _ in lost)
        raise CommitConflict(f"{base.ref}: {names} was set on a snapshot that went at that moment; it was put back")

    def restore(self, ref: TableRef, location: str, change: RemoveSnapshots) -> list[str]:
        """Restore refs that the commit of a crashed process dropped, by the metadata files since its plan."""
        now, _ = self.fetch(ref)
        files = [*now.metadata_log, now.metadata_location]
        if location not in files:
            raise InvariantViolated(
                f"{ref}: the metadata log does not reach back to {location}, so nobody knows whether the commit of a "
                "process that ended dropped a tag or branch; no file is deleted"
            )
        names: list[str] = []
        replaced, document = self._read_version(ref, location)
        planned = {r.name for r in replaced.refs}  # the commit was made on condition that these are where they were
        for following in files[files.index(location) + 1 :]:
            after, after_document = self._read_version(ref, following)
            removed_ids = change.snapshot_ids & (replaced.by_id.keys() - after.by_id.keys())
            for lost, snapshot in commits.lost_refs(replaced, after, change) if removed_ids else ():
                if lost.name not in planned and snapshot.snapshot_id in removed_ids:
                    self._restore_ref(after, lost, document)
                    names.append(lost.name)
            replaced, document = after, after_document
        return names

    def _replaced_version(self, base: TableMetadata, after: TableMetadata) -> tuple[TableMetadata, list[commits.Json]]:
        """Return the metadata that the commit replaced, and its snapshots as stored."""
        if not after.metadata_log:
            raise InvariantViolated(
                f"{base.ref}: the catalog keeps no metadata log, so nobody knows what the commit replaced; no file is "
                "deleted"
            )
        return self._read_version(base.ref, after.metadata_log[-1])

    def _read_version(self, ref: TableRef, location: str) -> tuple[TableMetadata, list[commits.Json]]:
        """Return a metadata file, parsed, and its snapshots as stored."""
        try:
            content = self.files.read(location)
            document = decode(content, location)
            snapshots = msgspec.json.decode(document.get("snapshots", b"[]"))
            return parse(ref, location, content), snapshots
        except (IcewrightError, msgspec.MsgspecError) as error:
            raise InvariantViolated(
                f"{ref}: another writer committed at the same moment, and what it set cannot be read ({error}); "
                "no file is deleted"
            ) from error

    def _restore_ref(self, after: TableMetadata, ref: SnapshotRef, snapshots: list[commits.Json]) -> None:
        snapshot = next(s for s in snapshots if s["snapshot-id"] == ref.snapshot_id)
        message = "nobody asked"
        for attempt in range(1, _TRIES + 1):
            now, document = self.document(after.ref)
            if ref.name in {r.name for r in now.refs}:
                return
            next_row_id = Editor(document).get("next-row-id", None) if now.format_version >= FORMAT_V3 else None
            millis = max(int(self.clock.now().timestamp() * 1000), int(now.last_updated.timestamp() * 1000))
            try:
                got = self._post(after.ref, commits.restoring_request(now, next_row_id, ref, snapshot, millis))
                message = got.message
                if got.status == _OK:
                    return
            except RequestOutcomeUnknown as error:
                message = str(error)
            self.clock.sleep(backoff(attempt + 2).total_seconds())
        raise InvariantViolated(
            f"{after.ref}: {ref.kind} {ref.name} was set on snapshot {ref.snapshot_id} while that went, and could not "
            f"be put back ({message}); no file is deleted, and {after.metadata_log[-1]} still has both"
        )

    def _document_of(self, base: TableMetadata) -> Document:
        """Return the JSON fields of `base` as the server sent them. Raises `CommitConflict` when the table changed."""
        now, document = self.document(base.ref)
        if now.metadata_location != base.metadata_location:
            raise conflict(base)
        return document

    def document(self, ref: TableRef) -> tuple[TableMetadata, Document]:
        """Return the current metadata, parsed, and its JSON fields as the server sent them."""
        answer = self.client.get(self.path, size=table_reply())
        if answer.status != _OK:
            raise CatalogUnavailable(f"{ref}: {self.client.where} did not load it: {answer.message}")
        table = loaded(ref, answer.body, self.client.where)
        location, content = table.metadata_location or "", bytes(table.metadata)
        return parse(ref, location, content), decode(content, location)


def _is_current(base: TableMetadata, now: TableMetadata) -> bool:
    return (now.metadata_location, now.table_uuid) == (base.metadata_location, base.table_uuid)


def _refusal(base: TableMetadata, answer: RestResponse) -> CommitConflict | Refused:
    if answer.status == _CONFLICT:
        return CommitConflict(f"{base.ref}: another writer committed since the plan ({answer.message})")
    if answer.status == _NOT_FOUND:
        return gone(base)
    return Refused(f"{base.ref}: the catalog refused the commit ({answer.message})")
