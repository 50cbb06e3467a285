"""Plan which snapshots and refs expire: Iceberg's rules (core `RemoveSnapshots`), pins, and writers' states."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile
from operator import itemgetter

from icewright.core.ancestry import ancestors
from icewright.core.effective import Knobs
from icewright.core.numbers import number_or
from icewright.core.policy import WRITER_STATE_DAYS, WRITER_STATE_KEYS
from icewright.core.runs import JOB_ID
from icewright.core.steps import RetainedSnapshot
from icewright.core.table import MAIN, RefKind, Snapshot, SnapshotHold, SnapshotRef, TableMetadata
from icewright.core.writer_state import WriterState, WriterStateRule, newest_states, staged_ids

_DIGITS = 15  # of milliseconds: with more an age is longer than the calendar
_MAX_SENTENCES = 20  # on writers; a summary may have any number of keys
_YOUNG = "in no branch or tag, but younger than the retention"


@dataclass(frozen=True, slots=True)
class Expiry:
    """The snapshots and refs that expire, and the old snapshots that stay with the reason for each."""

    snapshot_ids: tuple[int, ...]
    remove_refs: tuple[str, ...]
    retained: tuple[RetainedSnapshot, ...]
    next_expiry: datetime | None  # when time alone lets the next snapshot expire
    kept_writers: tuple[str, ...] = ()  # for which writers snapshots stay that would expire else, as sentences
    lost_writers: tuple[str, ...] = ()  # which writers' newest states expire, as sentences

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to commit."""
        return not self.snapshot_ids and not self.remove_refs


def plan_expiry(
    metadata: TableMetadata,
    *,
    now: datetime,
    older_than: datetime,
    retain_last: int,
    max_ref_age: timedelta | None = None,
    holds: Sequence[SnapshotHold] = (),
    writers: WriterStateRule | None = None,
) -> Expiry:
    """Return what expires by Iceberg's retention rules, except what `holds` and `writers` need.

    A branch keeps its head, its own or `retain_last` newest ancestors (`_kept_by_count`), and those younger than its
    own `max_snapshot_age` or `older_than`; walking stops at the first that is neither. A tag keeps its snapshot. A ref
    other than main is removed when its head is older than its own `max_ref_age` or the given one. Snapshots that
    no ref leads to expire when they are older than `older_than`. A held snapshot stays with all its descendants until
    its hold ends. A branch keeps the newest state of each writer, and all that is newer, for `writers.max_age`.
    """
    if metadata.is_straight and not holds and _main_alone(metadata):
        plan = _straight(metadata, now, older_than, retain_last)
        if writers is None or not _has_newest_state(metadata, plan, writers):
            return plan
    removed = tuple(r.name for r in metadata.refs if _outlived(r, metadata, now, max_ref_age, writers))
    retained = _Retained(metadata, now, older_than, retain_last, writers)
    retained.keep_refs([ref for ref in metadata.refs if ref.name not in removed])
    for hold in holds:
        retained.keep_held(hold)
    expired = tuple(s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in retained.reasons)
    staying = tuple(
        RetainedSnapshot(s.snapshot_id, reason)
        for s in metadata.snapshots
        if (reason := retained.reasons.get(s.snapshot_id)) is not None
        if s.timestamp < older_than or reason in retained.unpublished
    )
    lost_writers = _lost_writers(metadata, expired, writers) if writers is not None else ()
    next_expiry = min(retained.expiries, default=None)
    return Expiry(expired, removed, staying, next_expiry, _first_sentences(retained.kept_writers), lost_writers)


def expired_by_iceberg(metadata: TableMetadata, now: datetime) -> Expiry:
    """Return what Iceberg's `RemoveSnapshots` expires besides the snapshots that it is told to.

    That is what is past the ages that branches, tags and `history.expire.max-ref-age-ms` set: it knows neither pins
    nor writers' states, and counts rewrites as it does other snapshots.
    """
    ref_age = metadata.properties.get("history.expire.max-ref-age-ms", "")
    return plan_expiry(
        replace(metadata, snapshots=tuple(replace(s, operation=None) for s in metadata.snapshots)),
        now=now,
        older_than=datetime.min.replace(tzinfo=now.tzinfo),
        retain_last=number_or(1, metadata.properties.get("history.expire.min-snapshots-to-keep", "")),
        max_ref_age=timedelta(milliseconds=int(ref_age)) if ref_age.isdecimal() and len(ref_age) < _DIGITS else None,
    )


@dataclass(frozen=True, slots=True)
class _Retained:
    """The snapshots that stay. The first reason that is given for a snapshot is the one that people see."""

    metadata: TableMetadata
    now: datetime
    older_than: datetime
    retain_last: int
    rule: WriterStateRule | None
    reasons: dict[int, str] = field(default_factory=dict)  # by snapshot id
    expiries: list[datetime] = field(default_factory=list)  # when snapshots that stay for their age alone may expire
    kept_writers: list[str] = field(default_factory=list)  # as in `Expiry`
    converted: dict[int, str] = field(default_factory=dict)  # the reason by `WriterState.converted`
    unpublished: set[str] = field(default_factory=set)  # reasons of snapshots that may still be published

    def keep_refs(self, refs: Iterable[SnapshotRef]) -> None:
        """Retain what these refs keep, main's before the others', and what may still be published."""
        main_first = sorted(refs, key=lambda ref: ref.name != MAIN)
        if self.metadata.current_snapshot_id is not None:
            self.keep(self.metadata.current_snapshot_id, "current snapshot")
        for ref in main_first:
            self.keep(ref.snapshot_id, f"head of {ref.kind} {ref.name}")
        branches = (ref for ref in main_first if ref.kind is RefKind.BRANCH)
        lineages = {branch: list(ancestors(self.metadata, branch.snapshot_id)) for branch in branches}
        for branch, lineage in lineages.items():
            self.keep_branch(branch, lineage)
            if self.rule is not None:
                self.keep_writer_states(lineage, self.rule)
        for lineage in lineages.values() if self.converted else ():
            self.keep_unconverted(lineage)
        on_branches = (snapshot.snapshot_id for lineage in lineages.values() for snapshot in lineage)
        self.keep_young({*on_branches, *(ref.snapshot_id for ref in main_first)})

    def keep(self, snapshot_id: int, reason: str, until: datetime | None = None) -> None:
        if snapshot_id not in self.reasons:
            self.reasons[snapshot_id] = reason
            self.expiries.extend(() if until is None else (until,))

    def keep_branch(self, ref: SnapshotRef, lineage: Sequence[Snapshot]) -> None:
        """Retain the snapshots of a branch by count and age, from its lineage, newest first.

        Histories have thousands of snapshots, and each evaluation goes through them: no text is made for each one.
        """
        reasons, now, retain_last = self.reasons, self.now, self.retain_last
        age = ref.max_snapshot_age or now - self.older_than  # Iceberg knows no age of 0
        least = ref.min_snapshots_to_keep if ref.min_snapshots_to_keep is not None else retain_last
        newest, by_count = _kept_by_count(ref, lineage, retain_last), f"one of the {least} newest of branch {ref.name}"
        for snapshot in lineage[:newest]:
            reasons.setdefault(snapshot.snapshot_id, by_count)
        rest = takewhile(lambda s: now - s.timestamp <= age, lineage[newest:])
        young = [s for s in rest if s.snapshot_id not in reasons]
        reasons.update(
            dict.fromkeys((s.snapshot_id for s in young), f"younger than the retention of branch {ref.name}")
        )
        self.expiries.extend([just_after(min(s.timestamp for s in young), age)] if young else [])

    def keep_writer_states(self, lineage: Sequence[Snapshot], rule: WriterStateRule) -> None:
        """Retain the snapshots from the branch's head to each writer's newest state: a restarting writer walks them."""
        done = 0
        for state in newest_states(lineage, rule.keys):
            if (until := _kept_until(state, rule)) > self.now:
                writer = f"{state.writer}, until {until:%Y-%m-%d}"
                if state.snapshot.snapshot_id not in self.reasons:
                    self.kept_writers.append(f"snapshots stay for {writer}")
                self.keep(state.snapshot.snapshot_id, writer, until)
                for snapshot in lineage[done : state.depth]:
                    self.reasons.setdefault(snapshot.snapshot_id, f"{writer}, which is behind it")
                done = max(done, state.depth)
                if (converted := state.converted) is not None:
                    self.converted.setdefault(converted, writer)

    def keep_unconverted(self, lineage: Sequence[Snapshot]) -> None:
        """Retain the snapshots of a branch from its head to the one converted last: no other branch has the rest."""
        last = next((depth for depth, s in enumerate(lineage) if s.snapshot_id in self.converted), None)
        if last is not None:
            writer = self.converted[lineage[last].snapshot_id]
            for snapshot in lineage[: last + 1]:
                self.reasons.setdefault(snapshot.snapshot_id, f"{writer}, which goes on from there")

    def keep_young(self, reachable: AbstractSet[int]) -> None:
        """Retain young snapshots to which no ref leads."""
        young = "not published yet, younger than the retention"
        staged = {one: f"staged as {wap_id}, {young}" for one, wap_id in staged_ids(self.metadata).items()}
        self.unpublished.update(staged.values())
        for snapshot in self.metadata.snapshots:
            if snapshot.snapshot_id not in reachable and snapshot.timestamp >= self.older_than:
                until = just_after(snapshot.timestamp, self.now - self.older_than)
                self.keep(snapshot.snapshot_id, staged.get(snapshot.snapshot_id, _YOUNG), until)

    def keep_held(self, hold: SnapshotHold) -> None:
        """Retain a held snapshot and its descendants."""
        for snapshot_id in held_snapshots(self.metadata, [hold], self.now):
            behind = "" if snapshot_id == hold.snapshot_id else ", which is behind it"
            self.keep(snapshot_id, f"{hold.by}{behind}", hold.until)


def writer_state_rule(knobs: Knobs) -> WriterStateRule:
    """Return how long the policy keeps the states of streaming writers, and where it looks for them."""
    patterns = (knobs[WRITER_STATE_KEYS] or "").split(",")
    keys = tuple(pattern.strip() for pattern in patterns if pattern.strip())
    return WriterStateRule(timedelta(days=knobs[WRITER_STATE_DAYS]), keys)


def kept_writer_states(metadata: TableMetadata, rule: WriterStateRule, now: datetime) -> list[RetainedSnapshot]:
    """Return the newest state of each streaming writer on each branch, as long as the rule keeps it."""
    kept = {(s.snapshot.snapshot_id, s.writer): until for s, until in _kept_states(metadata, rule, now)}
    return [RetainedSnapshot(found, f"{who}, until {until:%Y-%m-%d}") for (found, who), until in kept.items()]


def uncommitted_files(
    versions: Iterable[TableMetadata], rule: WriterStateRule, now: datetime, older_than: datetime
) -> tuple[datetime, tuple[str, ...]]:
    """Return `older_than`, or since when the files of a stopped writer may be younger, with a sentence on the writer.

    As long as its state is kept, the writer may start again and commit files that nothing else knows.
    """
    states = [(s.uncommitted_since, s, until) for m in versions for s, until in _kept_states(m, rule, now)]
    since, state, until = min(
        (one for one in states if one[1].commits_later), default=(older_than, None, now), key=itemgetter(0)
    )
    if state is None or since >= older_than:
        return older_than, ()
    who = f"{state.writer}, which may commit them when it starts again, until {until:%Y-%m-%d}"
    return since, (f"files written since {since:%Y-%m-%d %H:%M} UTC stay for {who}",)


def _kept_states(
    metadata: TableMetadata, rule: WriterStateRule, now: datetime
) -> Iterator[tuple[WriterState, datetime]]:
    """Yield the newest state of each writer on each branch that the rule keeps, and until when."""
    for branch in (ref for ref in metadata.refs if ref.kind is RefKind.BRANCH):
        for state in newest_states(ancestors(metadata, branch.snapshot_id), rule.keys):
            if (until := _kept_until(state, rule)) > now:
                yield state, until


def _kept_until(state: WriterState, rule: WriterStateRule) -> datetime:
    return just_after(state.snapshot.timestamp, rule.max_age) if rule.max_age else state.snapshot.timestamp


def _lost_writers(metadata: TableMetadata, expired: Sequence[int], rule: WriterStateRule) -> tuple[str, ...]:
    """Return a sentence for each writer whose newest state, on some branch or of all, expires.

    After a rollback, or when its branch was dropped, the newest of all may be on no branch.
    """
    by_id, gone = metadata.by_id, set(expired)
    if not any(by_id[snapshot_id].writer_properties for snapshot_id in expired):
        return ()
    branches = [list(ancestors(metadata, r.snapshot_id)) for r in metadata.refs if r.kind is RefKind.BRANCH]
    on_branches = {s.snapshot_id for branch in branches for s in branch}
    newest_first = sorted(metadata.snapshots, key=lambda s: (s.sequence_number, s.timestamp), reverse=True)
    states = (s for line in (*branches, newest_first) for s in newest_states(line, rule.keys))
    lost = (s for s in states if s.snapshot.snapshot_id in gone)
    return _first_sentences(
        f"the state of {s.writer} goes, its last commit was on {s.snapshot.timestamp:%Y-%m-%d}"
        + ", which is on no branch any more" * (s.snapshot.snapshot_id not in on_branches)
        for s in lost
    )


def _first_sentences(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return the first sentences, each once, and how many more writers there are."""
    distinct = tuple(dict.fromkeys(sentences))
    more = len(distinct) - _MAX_SENTENCES
    return (*distinct[:_MAX_SENTENCES], f"{more:,} more such writers") if more > 0 else distinct


def _main_alone(metadata: TableMetadata) -> bool:
    refs = [(ref.name, ref.kind, ref.snapshot_id) for ref in metadata.refs]
    return refs == [(MAIN, RefKind.BRANCH, metadata.current_snapshot_id)]


def _has_newest_state(metadata: TableMetadata, plan: Expiry, rule: WriterStateRule) -> bool:
    """Return whether the plan of a straight history would expire the newest state of a writer."""
    stay = len(metadata.snapshots) - len(plan.snapshot_ids)
    if not any(s.writer_properties for s in metadata.snapshots[: len(plan.snapshot_ids)]):
        return False
    return any(state.depth >= stay for state in newest_states(reversed(metadata.snapshots), rule.keys))


def _straight(metadata: TableMetadata, now: datetime, older_than: datetime, retain_last: int) -> Expiry:
    """Return the plan for a table with main alone, which leads to all snapshots: most tables are so.

    Only the oldest can expire then, so the history is not gone through.
    """
    (main,), snapshots = metadata.refs, metadata.snapshots
    age = main.max_snapshot_age or now - older_than
    least = main.min_snapshots_to_keep if main.min_snapshots_to_keep is not None else retain_last
    # from here on the count keeps them
    newest = len(snapshots) - _kept_by_count(main, reversed(snapshots), retain_last)
    young = bisect_left(snapshots, True, key=lambda s: now - s.timestamp <= age)  # from here on their age does
    gone = max(0, min(newest, young))
    names = {len(snapshots) - 1: "current snapshot"}
    count, by_age = f"one of the {least} newest of branch {MAIN}", f"younger than the retention of branch {MAIN}"
    old = takewhile(lambda n: snapshots[n].timestamp < older_than, range(gone, len(snapshots)))
    staying = tuple(
        RetainedSnapshot(snapshots[n].snapshot_id, names.get(n) or (count if n >= newest else by_age)) for n in old
    )
    until = just_after(snapshots[young].timestamp, age) if young < newest else None
    return Expiry(tuple(s.snapshot_id for s in snapshots[:gone]), (), staying, until)


def _kept_by_count(branch: SnapshotRef, newest_first: Iterable[Snapshot], retain_last: int) -> int:
    """Return how many snapshots of a branch stay as its newest.

    Icewright's own rewrites have the rows of their parents, so they do not count in `retain_last`: else compaction
    alone would push the commits of writers out. They do in a count that the branch sets itself, as Iceberg's spec has
    it. A count of 1 asks for the head alone, whatever it is: erasing rows relies on it.
    """
    if branch.min_snapshots_to_keep is not None:
        return max(1, branch.min_snapshots_to_keep)
    if retain_last <= 1:
        return 1
    kept, least = 0, retain_last
    for snapshot in newest_first:
        if not least:
            break
        kept += 1
        least -= snapshot.operation != "replace" or JOB_ID not in snapshot.summary
    return kept


def held_snapshots(metadata: TableMetadata, holds: Sequence[SnapshotHold], now: datetime) -> frozenset[int]:
    """Return the held snapshots and all their descendants.

    A reader that goes on from a snapshot walks back to it from a head, and so does a rewrite that looks for what was
    committed since: without any one in between they fail.
    """
    pinned = {h.snapshot_id for h in holds if h.until > now} & metadata.by_id.keys()
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for snapshot in metadata.snapshots if pinned else ():
        children[snapshot.parent_id].append(snapshot.snapshot_id)
    following = list(pinned)
    while following:
        new = {*children.pop(following.pop(), ())} - pinned
        pinned |= new
        following += new
    return frozenset(pinned)


def just_after(moment: datetime, age: timedelta) -> datetime:
    """Return when the moment is older than the age; an endless age ends with the calendar."""
    try:
        return moment + age + timedelta(seconds=1)
    except OverflowError:
        return datetime.max.replace(tzinfo=moment.tzinfo)


def unused_schemas(metadata: TableMetadata, snapshots: Iterable[Snapshot]) -> frozenset[int]:
    """Return the schemas that neither these snapshots nor the table use; none where a snapshot names no schema."""
    used = {s.schema_id for s in snapshots} | {metadata.schema.get("schema-id")}
    return frozenset() if None in used else frozenset(metadata.schema_ids) - used


def _outlived(
    ref: SnapshotRef, metadata: TableMetadata, now: datetime, default: timedelta | None, writers: WriterStateRule | None
) -> bool:
    """Return whether a ref is past its age, and no writer's state on it has to stay."""
    limit = ref.max_ref_age if ref.max_ref_age is not None else default
    head = metadata.by_id.get(ref.snapshot_id)
    if ref.name == MAIN or head is None or limit is None or now - head.timestamp <= limit:
        return False
    if ref.max_ref_age == timedelta(0):  # no writer of Iceberg's sets it, and no reader of Iceberg's loads it
        return False
    if writers is None or ref.kind is not RefKind.BRANCH:
        return True
    states = newest_states(ancestors(metadata, ref.snapshot_id), writers.keys)
    return all(_kept_until(state, writers) <= now for state in states)
