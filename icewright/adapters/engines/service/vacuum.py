"""Vacuum of a catalog with branches: expiry by one commit for each table and branch, then a sweep of its places.

Live files are marked over all branches and tags, by commits; the listing is taken before that, so that a file committed
in between is reached. Before anything is deleted the references are read once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import polars as pl

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.deletion import Deletion, DeletionResult, JobDeletion, Proved
from icewright.adapters.engines.service.doubts import Doubts, require_clocks_agree_at, require_few_orphans
from icewright.adapters.engines.service.guard import DeletionGuard, Judgement
from icewright.adapters.engines.service.listing import LocationListing, hashed
from icewright.adapters.engines.service.nessie_live import NessieLiveSet, NessieReachability
from icewright.adapters.engines.service.remove_orphans import (
    delete_orphans,
    first_orphans,
    judge_orphans,
    require_same_prefixes,
    same_prefix,
)
from icewright.adapters.engines.service.successors import (
    IdentifiedMetadata,
    UnreferencedMetadata,
    identify,
    require_no_foreign_table,
    unreadable,
)
from icewright.core.effective import Knobs
from icewright.core.errors import CommitConflict, InvariantViolated, MetadataUnreadable, Refused
from icewright.core.operations.expire_snapshots import NOTHING
from icewright.core.paths import directory_key, folders_overlap
from icewright.core.policy import (
    DELETION_DELAY,
    EQUAL_AUTHORITIES,
    EQUAL_SCHEMES,
    MAX_DELETE_RATIO,
    PREFIX_MISMATCH,
    VACUUM_CUTOFF,
    VACUUM_GRACE,
    Operation,
)
from icewright.core.retention import Expiry, uncommitted_files, writer_state_rule
from icewright.core.runs import FileAction, Outcome, backoff, committed, skipped
from icewright.core.table import TableMetadata
from icewright.core.vacuum import CutoffPolicy, resolve
from icewright.core.verify import expiry_violations
from icewright.core.words import count
from icewright.ports import Branched, Head, LiveTable, RemoveSnapshots, Survey, Unfinished, VacuumOf

CONCURRENT_DELETES = 16
GC_DISABLED = "gc.enabled=false, or vacuum.enabled, keeps everything of the table"
GONE = "no branch or tag has the table any more"
_ATTEMPTS = 4
_LIST_OF = re.compile(r"/snap-(\d+)-[^/]*$")


@dataclass
class BranchVacuum:
    """The Vacuum port over one catalog. `guard` knows the other catalogs, but none over the same server."""

    catalog: Branched
    deletion: Deletion
    guard: DeletionGuard
    contents: NessieLiveSet
    knobs: Callable[[], Knobs]  # of the catalog as a whole
    storage_time: Callable[[str], datetime]  # the clock by which files below a location are dated
    _mark: NessieReachability | None = field(default=None, init=False)
    _last: Survey | None = field(default=None, init=False)
    _expired: dict[str, set[int]] = field(default_factory=dict, init=False)  # by content id

    def survey(self, now: datetime) -> Survey:
        """Identify the live contents anew, without the marks of earlier runs."""
        self.contents.forget()
        self._mark = None
        self._expired.clear()
        self._last = self.contents.survey(self._policy(now), now)
        return self._last

    def _policy(self, now: datetime) -> CutoffPolicy:
        knobs = self.knobs()
        grace = timedelta(hours=knobs[VACUUM_GRACE])
        return resolve(self.catalog.gc_config(), knobs[VACUUM_CUTOFF], grace, now)

    def expire(self, work: VacuumOf) -> Outcome:
        """Expire a table's old snapshots by one commit on each branch that has any."""
        commits = 0
        expired_ids: set[int] = set()
        notes: list[str] = []
        for head in work.table.heads:
            metadata = self.contents.metadata(head.content)
            if not head.reference.is_branch or metadata is None:
                continue
            if not self.contents.may_collect(metadata):
                notes.append(f"{head.reference.name}: {GC_DISABLED}")
                continue
            self._require_readable_files(work)
            expiry = self._expired_on(head, metadata, work)
            writers = (*expiry.kept_writers, *expiry.lost_writers)
            notes += [f"{head.reference.name}: {writer}" for writer in writers]
            if expiry.snapshot_ids:
                expired_ids.update(expiry.snapshot_ids)
                commits += 1
                verb = "would expire" if work.dry_run else "expired"
                notes.append(f"{head.reference.name}: {verb} {count(len(expiry.snapshot_ids), 'snapshot')}")
                if work.dry_run:
                    self.contents.plan_expiry(head)
        self._expired[work.table.content_id] = expired_ids
        if not commits:
            return skipped(Operation.EXPIRE_SNAPSHOTS, NOTHING, notes=tuple(notes))
        verb = "would expire" if work.dry_run else "expired"
        return committed(
            Operation.EXPIRE_SNAPSHOTS,
            f"{verb} {count(len(expired_ids), 'snapshot')} on {count(commits, 'branch')}",
            {"snapshots_expired": len(expired_ids), "branches": commits},
            notes=tuple(notes),
        )

    def _expired_on(self, head: Head, metadata: TableMetadata, work: VacuumOf) -> Expiry:
        """Expire a table's snapshots on one branch; plan again when somebody else commits to the table meanwhile."""
        for attempt in range(1, _ATTEMPTS + 1):
            expiry = self.contents.expiry(metadata, work.survey.policy, work.survey.taken)
            if not expiry.snapshot_ids or work.dry_run:
                return expiry
            now, folders, taken = self.deletion.clock.now(), [metadata.metadata_folder], work.survey.taken
            require_clocks_agree_at(metadata, folders, now, self.storage_time, planned_at=taken)
            work.check()
            try:
                after = self.catalog.expire(
                    head.reference, head.content, metadata, RemoveSnapshots(frozenset(expiry.snapshot_ids), frozenset())
                )
            except CommitConflict:
                if attempt == _ATTEMPTS:
                    raise
                self.deletion.clock.sleep(backoff(attempt).total_seconds())
                fresh = self._fresh_head(head)
                if fresh is None:
                    break
                head, metadata = fresh
                continue
            if violations := expiry_violations(metadata, after, expiry.snapshot_ids):
                where = f"{metadata.ref} on {head.reference.name}"
                raise InvariantViolated(f"{where}: vacuum broke the table: {'; '.join(violations)}; nothing deleted")
            return expiry
        return Expiry((), (), (), None)

    def _fresh_head(self, head: Head) -> tuple[Head, TableMetadata] | None:
        """Return the branch's head of the table as it is now; None when branch or table is gone."""
        for reference in self.catalog.references():
            if reference.name == head.reference.name:
                content = self.catalog.tables(reference, [head.content.key]).get(head.content.key)
                if content is not None and content.content_id == head.content.content_id:
                    return Head(reference, content), self.catalog.read(content)
        return None

    def _require_readable_files(self, work: VacuumOf) -> None:
        """Raise the error that stops reading any live file of the table: until it is mended no snapshot expires."""
        probe = NessieReachability(self.contents, self.deletion.files)
        probe.extend(replace(work.survey, tables=(work.table,)), dry_run=True)
        for broken in probe.broken.values():
            raise broken

    def sweep(self, work: VacuumOf) -> Outcome:
        """Delete the files in the table's places that no branch or tag reaches."""
        now, table, files = self.deletion.clock.now(), work.table, self.deletion.files
        base = self._base(table)
        self._require_collectable(work.survey, table)
        surroundings = self.guard.around(base)
        roots, notes = self.guard.roots(surroundings)
        # where REST writes it, the metadata of a table in Nessie tells no more of its age than its last commit
        doubts = Doubts(base, surroundings.adopted, by_age=False) if work.automatic else None
        if doubts is not None and (moved := surroundings.moved(roots)):
            raise doubts.moved(moved)
        require_clocks_agree_at(base, roots, now, self.storage_time, planned_at=work.survey.taken)
        knobs, heads, graced = self.contents.knobs(base.ref, base), self.contents.heads(table), work.survey.policy.grace
        older_than, kept = uncommitted_files(heads, writer_state_rule(knobs), now, now - graced)
        with closing(LocationListing(base, older_than, files.canonical)) as listing:
            for root in roots:
                listing.add_all(root, files.listing(root))
            mark, survey = self._mark_live(work)
            self._require_collectable(survey, table)
            self._require_marked(survey, table, mark)
            named = mark.named
            named.add(hashed(self.deletion.planned(table.ref, table.table_uuid), files.canonical))
            identified = self._identified(base, listing.unreferenced_metadata(named), surroundings.adopted)
            if knobs[PREFIX_MISMATCH] == "error":
                same = partial(same_prefix, schemes=knobs[EQUAL_SCHEMES], authorities=knobs[EQUAL_AUTHORITIES])
                require_same_prefixes(base, listing.mismatches(named, same))
            live = next(one for one in survey.tables if one.content_id == table.content_id)
            read_again = partial(mark.read_again, live, survey, dry_run=work.dry_run)
            names = listing.names_not_listed(mark.named_by(live), read_again, files)
            judged = judge_orphans(self.guard, surroundings, listing.orphans(named), names, roots)
            scanned = listing.files
            orphans, _, stays = first_orphans(judged, scanned, doubts, identified.documents)
        if doubts is not None:
            doubts.check_folders(read_again, files.canonical)
        self._require_few_orphans(work, base, orphans, scanned)
        notes += [*kept, *(f"{root} is not scanned: there is no such folder" for root in listing.missing), *stays]
        deleted = DeletionResult(orphans)
        if orphans and not work.dry_run:
            job = self._deletion(work, base.location, mark)
            deleted = delete_orphans(job, table.ref, orphans, timedelta(hours=knobs[DELETION_DELAY]))
        return self._swept(work, orphans, deleted, scanned, notes)

    def _identified(
        self, base: TableMetadata, unreferenced: Sequence[UnreferencedMetadata], adopted: frozenset[str]
    ) -> IdentifiedMetadata:
        """Tell apart metadata files that no branch reaches. Raises `Refused` when one may be another table's."""
        try:
            identified = identify(base, unreferenced, self.deletion.files.read, adopted)
        except MetadataUnreadable as error:
            raise unreadable(base, error) from error
        require_no_foreign_table(base, identified)
        return identified

    def _deletion(self, work: VacuumOf, location: str, mark: NessieReachability) -> JobDeletion:
        """Return what deletes the table's files, as long as the mark says that nothing has come to reach them."""
        proof = _BranchProof(self, work, mark)
        return JobDeletion(self.deletion, work.job_id, location, proof, CONCURRENT_DELETES, work.check)

    def _require_few_orphans(
        self, work: VacuumOf, base: TableMetadata, orphans: Sequence[FileAction], scanned: int
    ) -> None:
        """Raise `Refused` when too many of the files are orphans that no expiry of this vacuum explains."""
        max_ratio = self.contents.knobs(base.ref, base)[MAX_DELETE_RATIO]
        if scanned and len(orphans) / scanned <= max_ratio:
            return
        files = self.deletion.files
        expired = self._expired.get(work.table.content_id, set())
        heads = self.contents.heads(work.table)
        expired_snapshots = {s.snapshot_id: s for m in heads for s in m.snapshots if s.snapshot_id in expired}
        manifests = sets.manifests_of(files, list(expired_snapshots.values()))
        explained = [
            sets.lists_of(expired_snapshots.values()),
            sets.as_files(manifests),
            *sets.content_of(files, manifests),
        ]
        paths = pl.DataFrame({"path": [file.path for file in orphans]}, schema={"path": pl.String})
        look = (
            "raise remove_orphans.max_delete_ratio by a rule of the table, and look at "
            f"`icewright vacuum {base.ref.catalog} --dry-run`"
        )
        require_few_orphans(base, sets.unreached(paths, explained, files.canonical).height, scanned, max_ratio, look)

    def _swept(
        self, work: VacuumOf, orphans: Sequence[FileAction], deleted: DeletionResult, scanned: int, notes: Sequence[str]
    ) -> Outcome:
        list_snapshots = {int(m[1]) for f in deleted.files or deleted.waiting if (m := _LIST_OF.search(f.path))}
        other_snapshots = list_snapshots - self._expired.get(work.table.content_id, set())
        verb = "would remove" if work.dry_run else "removed"
        return committed(
            Operation.REMOVE_ORPHANS,
            f"{verb} {count(len(deleted.files), 'file')} that no branch or tag reaches"
            + (f", {len(deleted.waiting)} wait until {deleted.until:%Y-%m-%d %H:%M} UTC" if deleted.waiting else ""),
            {
                "orphans_found": len(orphans),
                "orphans_removed": len(deleted.files),
                "files_failed": deleted.failed,
                "bytes_deleted": sum(f.bytes or 0 for f in deleted.files),
                **{name: value for name, value in deleted.metrics.items() if name.endswith("_waiting")},
                "files_scanned": scanned,
                "snapshots_expired": len(other_snapshots),
            },
            deleted.files or deleted.waiting,
            notes=(*notes, *deleted.notes),
        )

    def live_since(self, work: VacuumOf, mark: NessieReachability) -> list[pl.DataFrame]:
        """Return the paths that became live since the mark. Raises when the table may not be touched any more."""
        survey = self._current_survey(work.survey)
        grown = mark.extend(survey, dry_run=False)
        self._require_collectable(survey, work.table)
        self._require_marked(survey, work.table, mark)
        return grown

    def judged(self, table: LiveTable, files: pl.DataFrame) -> Judgement:
        """Return the files that no table of another catalog needs now."""
        surroundings = self.guard.around(self._base(table))
        return self.guard.judge(surroundings, files, own=self.guard.roots(surroundings)[0])

    def resume(self, unfinished: Unfinished, now: datetime) -> Outcome:
        """Finish the planned deletions of an earlier job, proved against everything that is live now."""
        survey = self.survey(now)
        mark = NessieReachability(self.contents, self.deletion.files)
        table = next((t for t in survey.tables if t.table_uuid == unfinished.table_uuid), None)
        if table is None:
            deleted = DeletionResult((), len(unfinished.files), notes=(GONE,))
            self.deletion.keep(unfinished.job_id, unfinished.files, GONE)
        else:
            base, due_at = self._base(table), unfinished.due_at
            require_clocks_agree_at(base, base.roots, now, self.storage_time, planned_at=due_at)
            work = VacuumOf(table, survey, unfinished.job_id)
            deleted = self._deletion(work, table.location, mark).finish(unfinished.files)
        summary = f"finished deleting {count(len(deleted.files), 'file')} of job {unfinished.job_id}"
        return committed(Operation.REMOVE_ORPHANS, summary, deleted.metrics, deleted.files, notes=deleted.notes)

    def _mark_live(self, work: VacuumOf) -> tuple[NessieReachability, Survey]:
        """Return the mark over everything live now."""
        survey = self._current_survey(work.survey)
        self._mark = mark = self._mark or NessieReachability(self.contents, self.deletion.files)
        if self._expired.get(work.table.content_id):  # an earlier table's sweep may have marked it as it was before
            mark.forget(work.table.content_id)
        mark.extend(survey, dry_run=work.dry_run)
        return mark, survey

    def _current_survey(self, survey: Survey) -> Survey:
        """Return the live contents now, by the cut-off of the survey; scanned anew only when a reference has moved."""
        last = self._last if self._last is not None and self._last.taken == survey.taken else survey
        if set(self.catalog.references()) != set(last.references):
            last = self.contents.survey(survey.policy, survey.taken)
        self._last = last
        return last

    def _base(self, table: LiveTable) -> TableMetadata:
        """Return the newest metadata of the table that is live, under the table's name."""
        read = [m for c in table.versions if (m := self.contents.metadata(c)) is not None]
        if not read:
            raise Refused(f"{table.ref}: {table.problem}")
        return replace(max(read, key=lambda m: m.last_updated), ref=table.ref)

    def _require_collectable(self, survey: Survey, table: LiveTable) -> None:
        """Raise `Refused` when the table is gone, or something in its places is kept or cannot be read."""
        if all(other.content_id != table.content_id for other in survey.tables):
            raise Refused(f"{table.ref}: {GONE}")
        for other in survey.tables:
            same_table = other.content_id == table.content_id
            if same_table and other.problem:
                raise Refused(f"{other.ref}: {other.problem}")
            if same_table and not other.collect:
                raise Refused(GC_DISABLED)
            if other.problem and self._may_have_files_in(other, table):
                raise Refused(f"{other.ref} may have files in the same place: {other.problem}")
            if not other.collect and folders_overlap(other.folders, table.folders):
                raise Refused(f"{other.ref} lies in the same place: {GC_DISABLED}")

    def _require_marked(self, survey: Survey, table: LiveTable, mark: NessieReachability) -> None:
        """Raise the error that stopped the mark of the table, or of another table with files in its places."""
        for other in survey.tables:
            if other.content_id in mark.broken and self._may_have_files_in(other, table):
                raise mark.broken[other.content_id]

    def _may_have_files_in(self, unread: LiveTable, table: LiveTable) -> bool:
        """Return whether an unreadable table lies in the other's places, or was ever seen to have files there."""
        registrations = self.guard.registry.registrations.list()
        recorded = [one for one in registrations if one.is_of(unread.ref, unread.table_uuid)]
        folders = {directory_key(folder) for one in recorded for folder in (*one.places, *one.folders)}
        return folders_overlap({*unread.folders, *folders}, table.folders)


@dataclass
class _BranchProof:
    """Proves a vacuum's planned files against every branch and tag, and other catalogs, right before each batch."""

    vacuum: BranchVacuum
    work: VacuumOf
    mark: NessieReachability
    _live: list[pl.DataFrame] = field(default_factory=list)  # what has become live since the plan

    def prove(self, planned: Sequence[FileAction]) -> Proved:
        """Return the planned files that no live version reaches, and the reason why each of the others stays."""
        self._live += self.vacuum.live_since(self.work, self.mark)
        frame = pl.DataFrame({"path": [file.path for file in planned]}, schema={"path": pl.String})
        free = sets.unreached(frame, self._live, self.vacuum.deletion.files.canonical)
        judgement = self.vacuum.judged(self.work.table, free)
        return Proved.of(judgement, planned, "a branch or tag reaches it")
